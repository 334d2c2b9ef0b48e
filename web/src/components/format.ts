/** Numbers as people read them. */
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** A size in bytes, such as 1.2 MB. */
export function bytes(size: number): string {
  let rest = size;
  let unit = 0;
  while (rest >= 1000 && unit < UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? Math.round(rest) : rest.toFixed(1)} ${UNITS[unit]}`;
}

/** A count with its noun: 1 job, 2 jobs. */
export const plural = (value: number, what: string): string => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

/** The arguments of a job from its line in a list, such as order_id=7; the beginning of longer ones. */
export function argumentsText(text: string | null | undefined): string {
  if (!text) return "";
  try {
    const value = JSON.parse(text) as Record<string, unknown>;
    return Object.entries(value).map(([name, each]) => `${name}=${typeof each === "string" ? each : JSON.stringify(each)}`).join(", ");
  } catch {
    return `${text}…`;
  }
}

/** A rate: one decimal where it is small, so that 0.4 is not 0. */
export const rateText = (value: number): string => (value >= 10 || value === 0 ? count(Math.round(value)) : value.toFixed(1));

/** A number with separators for thousands. */
export const count = (value: number): string => value.toLocaleString("en-GB");
