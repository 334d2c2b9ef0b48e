/** The options with which a job or run is started, folded away: when it starts, what goes first, tags and keys. */
import { useState } from "react";

interface Option {
  label: string;
  about?: string;
  placeholder?: string;
  /** How what is typed is sent: as it is, if not given. */
  kind?: "number" | "moment" | "words";
  min?: number;
  max?: number;
  /** Another option that it excludes. */
  instead?: string;
}

const STARTS: Record<string, Option> = {
  delay: { label: "Delay", placeholder: "none, or 10s, 5m, 2h", instead: "at" },
  at: { label: "Not before", about: "In the time zone of this browser.", kind: "moment", instead: "delay" },
  deadline: { label: "Deadline", about: "Dropped if it has not started within this time.", placeholder: "none, or 10m" },
  priority: { label: "Priority", about: "0 to 9; 9 goes first.", placeholder: "the declared one", kind: "number", min: 0, max: 9 },
  tags: { label: "Tags", about: "Words to find it by, separated by commas.", placeholder: "the declared ones", kind: "words" },
};

const JOB: Record<string, Option> = {
  queue: { label: "Queue", placeholder: "the declared one" },
  ...STARTS,
  unique_key: { label: "Unique key", about: "While a job with this key is unfinished, no second one is enqueued.", placeholder: "none" },
  fair_key: { label: "Fair key", about: "Jobs of different keys take turns.", placeholder: "the declared one" },
  rate_key: { label: "Rate key", about: "Jobs with the same key start at the declared rate together.", placeholder: "the declared one" },
  concurrency_key: { label: "Concurrency key", about: "Only some jobs with the same key run at once.", placeholder: "the declared one" },
  max_concurrency: { label: "Jobs at once", about: "How many with that key.", placeholder: "1, or the declared limit", kind: "number", min: 1 },
};

const RUN: Record<string, Option> = {
  ...STARTS,
  unique_key: { label: "Unique key", about: "Only one run with this key is started, even if this form is sent again.", placeholder: "none" },
  rate_key: { label: "Rate key", about: "Runs with the same key begin at the declared rate together.", placeholder: "the declared one" },
};

/** What is typed, by the name of the option. */
export type Typed = Record<string, string>;

/** The options as the API takes them: those that are given. */
export function readOptions(typed: Typed): Record<string, unknown> {
  const given = Object.entries(typed).map(([name, text]): [string, string] => [name, text.trim()]);
  return Object.fromEntries(given.filter(([, text]) => text !== "").map(([name, text]) => [name, sent(text, JOB[name]?.kind)]));
}

function sent(text: string, kind: Option["kind"]): unknown {
  if (kind === "number") return Number(text);
  if (kind === "moment") return new Date(text).toISOString();
  if (kind === "words") return text.split(",").map((each) => each.trim()).filter(Boolean);
  return text;
}

export function StartOptions({ of, onChange }: { of: "job" | "run"; onChange: (typed: Typed) => void }) {
  const [typed, setTyped] = useState<Typed>({});
  const type = (name: string, text: string) => {
    const next = { ...typed, [name]: text };
    setTyped(next);
    onChange(next);
  };
  return (
    <details className="rare">
      <summary>More options</summary>
      <div className="form pairs">
        {Object.entries(of === "job" ? JOB : RUN).map(([name, each]) => (
          <label key={name}>
            <span>{each.label}</span>
            <input
              className="field"
              type={each.kind === "number" ? "number" : each.kind === "moment" ? "datetime-local" : "text"}
              min={each.min}
              max={each.max}
              value={typed[name] ?? ""}
              disabled={each.instead !== undefined && Boolean(typed[each.instead])}
              placeholder={each.placeholder}
              onChange={(event) => type(name, event.target.value)}
            />
            {each.about && <small>{each.about}</small>}
          </label>
        ))}
      </div>
    </details>
  );
}
