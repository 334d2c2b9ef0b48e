/** The small parts that every screen is made of. */
import { type ButtonHTMLAttributes, type ReactNode, useEffect, useRef, useState } from "react";
import { Problem } from "../api";
import { Link } from "../router";

const TONES: Record<string, string> = {
  succeeded: "ok", fresh: "ok", alive: "ok", open: "ok", resolved: "ok", healthy: "ok", run: "ok",
  running: "run", building: "run", working: "run", received: "run",
  ready: "wait", waiting: "wait", queued: "wait", gated: "wait", stale: "wait", delayed: "wait", paused: "wait", pause: "wait", drain: "wait", draining: "wait", acked: "wait",
  failed: "bad", timed_out: "bad", lost: "bad", silent: "bad", unrouted: "bad", stop: "bad", blocked: "bad", unhealthy: "bad", critical: "bad",
  parked: "park", expired: "off", cancelled: "off", discarded: "off", skipped: "off", ended: "off", pending: "off", stopped: "off",
};

/** The tone of a state: ok, run, wait, bad, park or off. */
export const toneOf = (state: string): string => TONES[state] ?? "off";

/** A state, as a dot and a word. */
export function State({ state, label }: { state: string; label?: string }) {
  return (
    <span className={`state ${toneOf(state)}`}>
      <i aria-hidden="true" />
      {label ?? state.replaceAll("_", " ")}
    </span>
  );
}

/** Where a run stands; one that asks somebody waits for the answer. */
export function RunState({ state, asks }: { state: string; asks: boolean }) {
  return asks ? <State state="waiting" label="waits for an answer" /> : <State state={state} />;
}

/** A small label. */
export function Tag({ children, tone = "off" }: { children: ReactNode; tone?: string }) {
  return <span className={`tag ${tone}`}>{children}</span>;
}

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { kind?: "plain" | "main" | "danger" | "quiet"; busy?: boolean };

export function Button({ kind = "plain", busy = false, className = "", children, disabled, ...rest }: ButtonProps) {
  return (
    <button type="button" className={`button ${kind} ${className}`} disabled={disabled || busy} aria-busy={busy} {...rest}>
      {children}
    </button>
  );
}

/** A titled part of a page. */
export function Panel({ title, aside, children, className = "" }: { title?: ReactNode; aside?: ReactNode; children: ReactNode; className?: string }) {
  return (
    <section className={`panel ${className}`}>
      {title !== undefined && (
        <header>
          <h2>{title}</h2>
          {aside}
        </header>
      )}
      {children}
    </section>
  );
}

/** The head of a screen. */
export function Head({ title, under, children }: { title: ReactNode; under?: ReactNode; children?: ReactNode }) {
  return (
    <div className="head">
      <div>
        <h1>{title}</h1>
        {under !== undefined && <p>{under}</p>}
      </div>
      {children !== undefined && <div className="actions">{children}</div>}
    </div>
  );
}

/** Nothing there: what that means, and what to do next. */
export function Empty({ title, children, good = false }: { title: string; children?: ReactNode; good?: boolean }) {
  return (
    <div className={`empty ${good ? "good" : ""}`}>
      <svg viewBox="0 0 48 20" aria-hidden="true">
        <path d="M2 8c4-5 8-5 11 0s7 5 11 0 8-5 11 0 8 5 11 0M2 15c4-5 8-5 11 0s7 5 11 0 8-5 11 0 8 5 11 0" />
      </svg>
      <b>{title}</b>
      {children !== undefined && <div>{children}</div>}
    </div>
  );
}

/** What went wrong, in the server's own words. */
export function Trouble({ error, retry }: { error: unknown; retry?: () => void }) {
  const told = error instanceof Problem ? error : null;
  return (
    <div className="trouble" role="alert">
      <b>{told?.status === 404 ? "Not found" : told?.status === 403 ? "Not allowed" : "That did not work"}</b>
      <span>{error instanceof Error ? error.message : String(error)}</span>
      {told?.fields.map((each) => (
        <span key={each.field + each.message}>
          <code>{each.field}</code> {each.message}
        </span>
      ))}
      {retry && (
        <Button kind="quiet" onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** Lines that stand for what is on its way. */
export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div className="loading" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <i key={index} />
      ))}
    </div>
  );
}

/** A pair in a list of facts. */
export function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

/** A bar from 0 to 1. */
export function Meter({ value, tone = "run", label }: { value: number; tone?: string; label?: string }) {
  const part = Math.max(0, Math.min(1, value));
  return (
    <span className={`meter ${tone}`} role="meter" aria-valuenow={Math.round(part * 100)} aria-valuemin={0} aria-valuemax={100} aria-label={label ?? "part"}>
      <i style={{ width: `${part * 100}%` }} />
    </span>
  );
}

/** A question in the middle of the page; Escape closes it. */
export function Dialog({ title, onClose, children, wide = false }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = ref.current;
    if (shown && !shown.open) shown.showModal();
  }, []);
  return (
    <dialog
      ref={ref}
      className={wide ? "dialog wide" : "dialog"}
      aria-label={title}
      onClose={onClose}
      onClick={(event) => event.target === ref.current && ref.current?.close()}
    >
      <div className="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button kind="quiet" aria-label="Close" onClick={() => ref.current?.close()}>
            ✕
          </Button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** A row of links to the same list with one filter changed. */
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
            {option.label ?? option.value.replaceAll("_", " ")}
          </button>
        );
      })}
    </div>
  );
}

/** A text field that tells its value when typing pauses. */
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

/** Why something is as it is, in sentences. */
export function Why({ lines }: { lines: string[] }) {
  return (
    <ul className="why">
      {lines.map((line) => (
        <li key={line}>{linked(line)}</li>
      ))}
    </ul>
  );
}

/** A sentence with its commands and ids made easy to use. */
export function linked(line: string): ReactNode[] {
  return line.split(/(`[^`]+`|\br\d+\b|\bjob \d+\b)/g).map((part, index) => {
    if (part.startsWith("`")) return <code key={index}>{part.slice(1, -1)}</code>;
    if (/^r\d+$/.test(part)) return <Link key={index} to={`/runs/${part.slice(1)}`}>{part}</Link>;
    if (/^job \d+$/.test(part)) return <Link key={index} to={`/jobs/${part.slice(4)}`}>{part}</Link>;
    return part;
  });
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Bytes in a few characters. */
export function bytes(size: number): string {
  let rest = size;
  let unit = 0;
  while (rest >= 1000 && unit < UNITS.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? Math.round(rest) : rest.toFixed(1)} ${UNITS[unit]}`;
}

/** A number of things, as it is said: 1 letter, 2 letters. */
export const plural = (value: number, what: string): string => `${count(value)} ${what}${value === 1 ? "" : "s"}`;

/** A number with its thousands apart. */
export const count = (value: number): string => value.toLocaleString("en-GB");
