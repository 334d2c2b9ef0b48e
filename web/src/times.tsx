/** Times as people say them: relative, with the absolute time on hover. One clock ticks for the whole page. */
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

/** The time, once a second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

/** Seconds in a few characters: 340ms, 2.1s, 4m 10s, 3h 5m, 12d. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "";
  const s = Math.abs(seconds);
  if (s < 0.0005) return "0s";
  if (s < 1) return `${Math.round(s * 1000)}ms`;
  if (s < 10) return `${s.toFixed(1)}s`;
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${Math.floor(s % 60) ? ` ${Math.floor(s % 60)}s` : ""}`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60) ? ` ${Math.floor((s % 3600) / 60)}m` : ""}`;
  return `${Math.floor(s / 86_400)}d${Math.floor((s % 86_400) / 3600) ? ` ${Math.floor((s % 86_400) / 3600)}h` : ""}`;
}

export const millis = (at: string | number): number => (typeof at === "number" ? at * 1000 : Date.parse(at));

/** A time in full, as it is read on hover. */
export function absolute(at: string | number): string {
  return new Date(millis(at)).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** How long ago, or in how long. */
export function Ago({ at }: { at: string | number | null | undefined }) {
  const time = useNow();
  if (at === null || at === undefined) return <span className="faint">–</span>;
  const seconds = (time - millis(at)) / 1000;
  const whole = Math.round(Math.abs(seconds));
  const said = whole < 2 ? "now" : seconds > 0 ? `${whole < 60 ? `${whole}s` : duration(whole)} ago` : `in ${whole < 60 ? `${whole}s` : duration(whole)}`;
  return (
    <time dateTime={new Date(millis(at)).toISOString()} title={absolute(at)}>
      {said}
    </time>
  );
}

/** How long something took, or has taken until now. */
export function Took({ from, to }: { from: string | number | null | undefined; to: string | number | null | undefined }) {
  const time = useNow();
  if (from === null || from === undefined) return <span className="faint">–</span>;
  const end = to === null || to === undefined ? Math.max(time, millis(from)) : millis(to);
  const seconds = (end - millis(from)) / 1000;
  return <span title={`since ${absolute(from)}`}>{to ? duration(seconds) : seconds < 60 ? `${Math.floor(seconds)}s` : duration(seconds)}</span>;
}
