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
      <input className="field" type="search" placeholder={label} aria-label={label} value={text} list={list ? id : undefined} onChange={(event) => setText(event.target.value)} />
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
