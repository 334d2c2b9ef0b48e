/** Relative times, with the absolute time on hover. One timer serves the whole page. */
import { useSyncExternalStore } from "react";

const listeners = new Set<() => void>();
let now = Date.now();
let timer: number | undefined;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  if (timer === undefined) now = Date.now();
  timer ??= window.setInterval(() => {
    now = Date.now();
    for (const each of [...listeners]) each();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      window.clearInterval(timer);
      timer = undefined;
    }
  };
}

/** The current time, updated every second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

const two = (whole: number, unit: string, part: number, less: string): string => (part ? `${whole}${unit} ${part}${less}` : `${whole}${unit}`);

/** A duration as short text: 85µs, 3.4ms, 340ms, 2.1s, 4m 10s, 3h 5m, 12d. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "";
  const s = Math.abs(seconds);
  if (s < 0.000_000_5) return "0s";
  if (s < 0.000_999_5) return `${Math.round(s * 1_000_000)}µs`;
  if (s < 0.009_95) return `${(s * 1000).toFixed(1)}ms`;
  if (s < 0.999_5) return `${Math.round(s * 1000)}ms`;
  if (s < 9.95 && !Number.isInteger(s)) return `${s.toFixed(1)}s`;
  return coarse(s);
}

/** The same, in whole seconds. */
function coarse(seconds: number): string {
  const s = Math.floor(Math.abs(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return two(Math.floor(s / 60), "m", s % 60, "s");
  if (s < 86_400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "m");
  return two(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

/** A duration in seconds; a dash when unknown. */
export function Duration({ seconds, atMost = false }: { seconds: number | null; atMost?: boolean }) {
  if (seconds === null) return <span className="faint">–</span>;
  return <span title={`${seconds.toLocaleString("en-GB", { maximumSignificantDigits: 4 })} seconds`}>{atMost ? `≤ ${duration(seconds)}` : duration(seconds)}</span>;
}

export const millis = (at: string | number): number => (typeof at === "number" ? at * 1000 : Date.parse(at));

/** A date and time in full. */
export function absolute(at: string | number): string {
  return new Date(millis(at)).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** A time relative to now: 5m ago, in 2h. */
export function Ago({ at }: { at: string | number | null | undefined }) {
  const time = useNow();
  if (at === null || at === undefined) return <span className="faint">–</span>;
  const seconds = (time - millis(at)) / 1000;
  const whole = Math.round(Math.abs(seconds));
  const text = whole < 2 ? "now" : seconds > 0 ? `${coarse(whole)} ago` : `in ${coarse(whole)}`;
  return (
    <time dateTime={new Date(millis(at)).toISOString()} title={absolute(at)}>
      {text}
    </time>
  );
}

/** The duration between two times; until now if the second is missing. */
export function Took({ from, to }: { from: string | number | null | undefined; to: string | number | null | undefined }) {
  const time = useNow();
  if (from === null || from === undefined) return <span className="faint">–</span>;
  const end = to === null || to === undefined ? Math.max(time, millis(from)) : millis(to);
  const seconds = (end - millis(from)) / 1000;
  return <span title={`since ${absolute(from)}`}>{to ? duration(seconds) : coarse(seconds)}</span>;
}
