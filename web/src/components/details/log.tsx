/** The last log lines of each attempt of a job or step, live while it runs. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import { LoadStatus } from "../feedback";
import { Chips } from "../forms/filters";
import { absolute } from "../times";
import "./log.css";

interface LogLine {
  at: string;
  level: string;
  event: string;
  fields: Record<string, unknown>;
  trace: string;
}

interface AttemptLog {
  attempt: number;
  began_at: string;
  dropped: number;
  lines: LogLine[];
  work?: number;
}

const nameOf = (each: AttemptLog) => (each.work === undefined ? `attempt ${each.attempt}` : `work ${each.work}, attempt ${each.attempt}`);
const TONES: Record<string, string> = { error: "bad", critical: "bad", exception: "bad", warning: "wait", info: "run" };
const clock = (at: string) => new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1 });

export function JobLog({ jobId, isLive }: { jobId: number | string; isLive: boolean }) {
  return <Log name={["job", String(jobId), "log"]} address={`/jobs/${jobId}/log`} isLive={isLive} />;
}

export function StepLog({ runId, step, isLive }: { runId: number; step: string; isLive: boolean }) {
  return <Log name={["run", runId, "log", step]} address={`/runs/${runId}/log?step=${encodeURIComponent(step)}`} isLive={isLive} />;
}

function Log({ name, address, isLive }: { name: unknown[]; address: string; isLive: boolean }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const found = useQuery({ queryKey: name, queryFn: () => get<{ items: AttemptLog[] }>(address), refetchInterval: isLive ? 1500 : false });
  if (!found.data) return <LoadStatus query={found} lines={3} />;
  const attempts = found.data.items;
  const shown = attempts.find((each) => nameOf(each) === chosen) ?? attempts[0];
  if (!shown) {
    return (
      <p className="pad soft">
        {isLive ? "No log lines yet." : "No log lines."} <span className="faint">Lines written with <code>structlog</code> or with Python's <code>logging</code> appear here.</span>
      </p>
    );
  }
  return (
    <>
      {attempts.length > 1 && (
        <div className="pad">
          <Chips label="Attempt" options={attempts.map((each) => ({ value: nameOf(each), label: nameOf(each) }))} value={[nameOf(shown)]} onChange={(next) => setChosen(next.at(-1) ?? null)} />
        </div>
      )}
      <div className="log" tabIndex={0} role="log" aria-label={`Log of ${nameOf(shown)}`}>
        {shown.dropped > 0 && <div className="dropped">{shown.dropped} earlier lines were dropped</div>}
        {shown.lines.map((line, index) => (
          <div className={`line ${TONES[line.level] ?? "off"}`} key={index}>
            <span className="at" title={absolute(line.at)}>{clock(line.at)}</span>
            <span className="level">{line.level}</span>
            <span className="words">
              {line.event}{" "}
              {Object.entries(line.fields).map(([name, value]) => (
                <i key={name}>
                  {name}={typeof value === "string" ? value : JSON.stringify(value)}{" "}
                </i>
              ))}
              {line.trace && <pre>{line.trace}</pre>}
            </span>
          </div>
        ))}
      </div>
    </>
  );
}
