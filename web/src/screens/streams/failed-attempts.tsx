/** The failed attempts at a message: where it waited before, plan, engine, log lines and traceback of each. */
import { Tag } from "../../components/state";
import { Ago, Duration, duration } from "../../components/times";
import type { FailedAttempt } from "./types";

interface LogLine {
  level?: string;
  event?: string;
  fields?: Record<string, unknown>;
}

export function FailedAttempts({ attempts }: { attempts: FailedAttempt[] }) {
  return (
    <section className="attempts" aria-label="Failed attempts">
      {attempts.map((each, index) => (
        <details key={index} open={index === attempts.length - 1}>
          <summary>
            <Tag tone="bad">attempt {each.attempt}</Tag> {each.plan && `plan ${each.plan}, `}
            {each.seconds ? <><Duration seconds={each.seconds} />, </> : null}
            <b>{each.kind}</b> {each.error} {each.at ? <span className="faint"><Ago at={each.at} /></span> : null}
          </summary>
          {each.engine && <p className="soft">Ran in {each.engine}.</p>}
          {each.waited && <p className="soft">Waited {waits(each.waited)}.</p>}
          {((each.lines ?? []) as LogLine[]).map((line, number) => (
            <div key={number} className="mono soft wrap">
              {line.level}: {line.event} {Object.entries(line.fields ?? {}).map(([name, value]) => `${name}=${String(value)}`).join(" ")}
            </div>
          ))}
          {each.traceback && <pre className="trace" tabIndex={0} aria-label={`Traceback of attempt ${each.attempt}`}>{each.traceback}</pre>}
        </details>
      ))}
    </section>
  );
}

/** Where a message waited before an attempt, as words. */
function waits(waited: Record<string, number>): string {
  const words: string[] = [];
  if (waited.source) words.push(`${duration(waited.source)} at its source`);
  if (waited.dispatcher) words.push(`${duration(waited.dispatcher)} in the dispatcher${waited.key ? ` (${duration(waited.key)} for its key)` : ""}`);
  return words.join(", ") || "not at all";
}
