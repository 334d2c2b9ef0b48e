/** A JSON value as a tree that folds, with a copy button; and parsing of JSON that people type. */
import { type ReactNode, useState } from "react";
import { Button } from "../button";
import { bytes } from "../format";

const LONG = 400;
const MANY = 100;
const SHOWN_OF_CUT = 1_500;

function Text({ value }: { value: string }) {
  const [whole, setWhole] = useState(value.length <= LONG);
  return (
    <span className="j-text">
      "{whole ? value : value.slice(0, LONG)}"
      {!whole && (
        <button type="button" className="j-more" onClick={() => setWhole(true)}>
          … {value.length - LONG} more
        </button>
      )}
    </span>
  );
}

function Branch({ open, close, entries, deep }: { open: string; close: string; entries: [string | null, unknown][]; deep: number }) {
  const [shown, setShown] = useState(deep < 3 && entries.length <= 30);
  const [most, setMost] = useState(MANY);
  if (entries.length === 0) return <span>{open + close}</span>;
  const parts: ReactNode = shown && (
    <span className="j-inside">
      {entries.slice(0, most).map(([name, value], index) => (
        <span className="j-line" key={name ?? index}>
          {name !== null && <span className="j-name">{name}: </span>}
          <Value value={value} deep={deep + 1} />
        </span>
      ))}
      {entries.length > most && (
        <button type="button" className="j-more" onClick={() => setMost(most + 500)}>
          … {entries.length - most} more
        </button>
      )}
    </span>
  );
  return (
    <span>
      <button type="button" className="j-fold" aria-expanded={shown} aria-label={shown ? "Collapse" : "Expand"} onClick={() => setShown(!shown)}>
        {shown ? "▾" : "▸"}
      </button>
      {open}
      {!shown && (
        <button type="button" className="j-more" onClick={() => setShown(true)}>
          {entries.length} {entries.length === 1 ? "entry" : "entries"}
        </button>
      )}
      {parts}
      {close}
    </span>
  );
}

function Value({ value, deep }: { value: unknown; deep: number }) {
  if (value === null || value === undefined) return <span className="j-null">null</span>;
  if (typeof value === "string") return <Text value={value} />;
  const cut = findCut(value);
  if (cut !== null) return <Cut found={cut} />;
  if (typeof value === "number" || typeof value === "boolean") return <span className="j-number">{String(value)}</span>;
  if (Array.isArray(value)) return <Branch open="[" close="]" deep={deep} entries={value.map((each) => [null, each])} />;
  return <Branch open="{" close="}" deep={deep} entries={Object.entries(value as object)} />;
}

interface CutValue {
  first: string;
  bytes: number;
  whole: string;
}

/** What is known of a value that is too large for an answer. */
function findCut(value: unknown): CutValue | null {
  const found = typeof value === "object" && value !== null ? (value as { $cut?: CutValue }).$cut : undefined;
  return found && typeof found.whole === "string" ? found : null;
}

function Cut({ found }: { found: CutValue }) {
  return (
    <span>
      <span className="j-cut">
        The beginning of {bytes(found.bytes)}. <a href={found.whole}>Show the whole value</a>
      </span>
      <span className="j-text">{found.first.slice(0, SHOWN_OF_CUT)}…</span>
    </span>
  );
}

export function JsonView({ value, label }: { value: unknown; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(JSON.stringify(value, null, 2));
    setCopied(true);
    window.setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div className="json" tabIndex={0} role="group" aria-label={label}>
      <Button kind="quiet" className="copy" onClick={() => void copy()} aria-label={`Copy ${label}`}>
        {copied ? "Copied" : "Copy"}
      </Button>
      <span className="j-line">
        <Value value={value} deep={0} />
      </span>
    </div>
  );
}

/** Parse the text of a field; an empty one is an empty object. */
export function parseJson(text: string): { value?: unknown; wrong?: string } {
  if (!text.trim()) return { value: {} };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { wrong: `Not valid JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}
