/** The failed attempts at a message: plan, engine, log lines and traceback of each. */
import { Tag } from "../../components/state";
import { Duration } from "../../components/times";
import type { FailedAttempt } from "./types";

interface LogLine {
  level?: string;
  event?: string;
  fields?: Record<string, unknown>;
}

export function FailedAttempts({ attempts }: { attempts: FailedAttempt[] }) {
  if (attempts.length === 0) return null;
  return (
    <section aria-label="Failed attempts">
      {attempts.map((each, index) => (
        <details key={index} open={index === attempts.length - 1}>
          <summary>
            Attempt {each.attempt}, plan {each.plan || "–"}, <Duration seconds={each.seconds ?? null} /> <Tag tone="bad">{each.kind}</Tag> {each.error}
          </summary>
          {each.engine && <p className="soft">{each.engine}</p>}
          {((each.lines ?? []) as LogLine[]).map((line, number) => (
            <div key={number} className="mono soft">
              {line.level}: {line.event} {Object.entries(line.fields ?? {}).map(([name, value]) => `${name}=${String(value)}`).join(" ")}
            </div>
          ))}
          {each.traceback && <pre tabIndex={0} aria-label={`Traceback of attempt ${each.attempt}`}>{each.traceback}</pre>}
        </details>
      ))}
    </section>
  );
}
