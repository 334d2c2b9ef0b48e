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

const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "long" });

/** The time zone of this browser, in which times are shown. */
export const timeZone = (): string => FULL.resolvedOptions().timeZone;

/** A date and time in full, with the zone. */
export const absolute = (at: string | number): string => FULL.format(millis(at));

/** A time of today with the zone; of another day with the date. */
function clock(at: string | number): string {
  return new Date(millis(at)).toDateString() === new Date().toDateString() ? CLOCK.format(millis(at)) : absolute(at);
}

/** A date and time in full, and how long ago that is on hover. */
export function At({ at }: { at: string }) {
  const time = useNow();
  return (
    <time dateTime={at} title={relative(at, time)}>
      {absolute(at)}
    </time>
  );
}

/** A time relative to now, and on the clock, as logs have it. */
export function When({ at }: { at: string | number | null | undefined }) {
  return (
    <>
      <Ago at={at} /> {at !== null && at !== undefined && <span className="faint">{clock(at)}</span>}
    </>
  );
}

function relative(at: string | number, current: number): string {
  const seconds = (current - millis(at)) / 1000;
  const whole = Math.round(Math.abs(seconds));
  return whole < 2 ? "now" : seconds > 0 ? `${coarse(whole)} ago` : `in ${coarse(whole)}`;
}

/** A time relative to now: 5m ago, in 2h. */
export function Ago({ at }: { at: string | number | null | undefined }) {
  const time = useNow();
  if (at === null || at === undefined) return <span className="faint">–</span>;
  return (
    <time dateTime={new Date(millis(at)).toISOString()} title={absolute(at)}>
      {relative(at, time)}
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
