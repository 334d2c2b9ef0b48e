/** Filters above a list: chips to toggle and a search field. */
import { useEffect, useRef, useState } from "react";
import { labelOf } from "../states";

/** A row of toggles, one for each value of a filter. */
export function Chips({ label, options, value, onChange }: { label: string; options: { value: string; label?: string; tone?: string }[]; value: string[]; onChange: (value: string[]) => void }) {
  return (
    <div className="chips" role="group" aria-label={label}>
      {options.map((option) => {
        const on = value.includes(option.value);
        return (
          <button
            key={option.value}
            type="button"
            className={`chip ${option.tone ?? ""}`}
            aria-pressed={on}
            onClick={() => onChange(on ? value.filter((each) => each !== option.value) : [...value, option.value])}
          >
            {option.label ?? labelOf(option.value)}
          </button>
        );
      })}
    </div>
  );
}

/** A text field that reports its value when typing pauses. */
export function Search({ label, value, onChange, list }: { label: string; value: string; onChange: (value: string) => void; list?: string[] }) {
  const [text, setText] = useState(value);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) {
      sent.current = value;
      setText(value);
    }
  }, [value]);
  useEffect(() => {
    if (text === sent.current) return;
    const timer = window.setTimeout(() => {
      sent.current = text;
      onChange(text);
    }, 300);
    return () => window.clearTimeout(timer);
  }, [text, onChange]);
  const id = `list-${label.replaceAll(" ", "-")}`;
  return (
    <>
      <input className="field" type="search" size={Math.max(9, label.length + 1)} placeholder={label} aria-label={label} value={text} list={list ? id : undefined} onChange={(event) => setText(event.target.value)} />
      {list && (
        <datalist id={id}>
          {list.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

const SPANS: [string, string][] = [["15m", "15 minutes"], ["1h", "1 hour"], ["1d", "1 day"], ["7d", "7 days"]];
const SECONDS: Record<string, number> = { "15m": 900, "1h": 3600, "1d": 86_400, "7d": 604_800 };

/** The time from which on something happened, and until when, as the API takes them. */
export function timeRange(query: URLSearchParams): { since?: string; until?: string } {
  const iso = (text: string | null) => (text && !Number.isNaN(Date.parse(text)) ? new Date(text).toISOString() : undefined);
  const seconds = SECONDS[query.get("within") ?? ""];
  if (seconds) return { since: new Date(Date.now() - seconds * 1000).toISOString() };
  return { since: iso(query.get("since")), until: iso(query.get("until")) };
}

/** Selects when something happened (`Created`, `Opened`): lately, or between two times. */
export function TimeFilter({ what = "Created", query, onChange }: { what?: string; query: URLSearchParams; onChange: (changes: Record<string, string | null>) => void }) {
  const within = query.get("within") ?? "";
  const [isOwn, setOwn] = useState(query.has("since") || query.has("until"));
  const choose = (value: string) => {
    setOwn(value === "own");
    onChange({ within: value === "own" ? null : value || null, since: null, until: null });
  };
  return (
    <>
      <select className="field" aria-label={what} value={isOwn ? "own" : within} onChange={(event) => choose(event.target.value)}>
        <option value="">{what} at any time</option>
        {SPANS.map(([value, label]) => (
          <option key={value} value={value}>
            {what} in the last {label}
          </option>
        ))}
        <option value="own">{what} between …</option>
      </select>
      {isOwn && (
        <>
          <input className="field time" type="datetime-local" aria-label={`${what} since`} value={query.get("since") ?? ""} onChange={(event) => onChange({ since: event.target.value || null })} />
          <input className="field time" type="datetime-local" aria-label={`${what} before`} value={query.get("until") ?? ""} onChange={(event) => onChange({ until: event.target.value || null })} />
        </>
      )}
    </>
  );
}

/** Arguments that are complete, such as `order_id=7`; others are still being typed. */
export const completeArguments = (query: URLSearchParams): string[] => query.getAll("arg").filter((each) => /^[^=]+=./.test(each));
