/** What the attempts at a job logged: the last lines of each, live while it runs. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../api";
import { absolute } from "../times";
import "../style/log.css";
import { Chips, Empty, Loading, Trouble } from "./ui";

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
}

const TONES: Record<string, string> = { error: "bad", critical: "bad", exception: "bad", warning: "wait", info: "run" };
const clock = (at: string) => new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1 });

export function JobLog({ jobId, isLive }: { jobId: number | string; isLive: boolean }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const found = useQuery({ queryKey: ["job", String(jobId), "log"], queryFn: () => get<{ items: AttemptLog[] }>(`/jobs/${jobId}/log`), refetchInterval: isLive ? 1500 : false });
  if (found.error) return <Trouble error={found.error} />;
  if (!found.data) return <Loading lines={3} />;
  const attempts = found.data.items;
  const shown = attempts.find((each) => each.attempt === chosen) ?? attempts[0];
  if (!shown) {
    return (
      <Empty title={isLive ? "Nothing logged yet" : "It logged nothing"}>
        Lines of <code>structlog</code> and of Python's own <code>logging</code> appear here, the last 200 of each attempt.
      </Empty>
    );
  }
  return (
    <>
      {attempts.length > 1 && (
        <div className="pad">
          <Chips label="Attempt" options={attempts.map((each) => ({ value: String(each.attempt), label: `attempt ${each.attempt}` }))} value={[String(shown.attempt)]} onChange={(next) => setChosen(Number(next.at(-1) ?? shown.attempt))} />
        </div>
      )}
      <div className="log" tabIndex={0} role="log" aria-label={`Log of attempt ${shown.attempt}`}>
        {shown.dropped > 0 && <div className="dropped">{shown.dropped} earlier lines were not kept</div>}
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
