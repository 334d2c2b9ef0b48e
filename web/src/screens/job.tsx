/** One job: why it is as it is, what it was given, what came of it, how each attempt went. */
import { useQuery } from "@tanstack/react-query";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { JobLog } from "../parts/log";
import { Button, Fact, Head, Loading, Meter, Panel, State, Tag, Trouble, Why } from "../parts/ui";
import { go, Link } from "../router";
import { useMay } from "../session";
import { Ago, duration, Took } from "../times";
import type { Attempt, Done, Job } from "../types";
import { told } from "./jobs";

const LIVE = ["ready", "gated", "unrouted", "running"];

export function JobPage({ id }: { id: string }) {
  const may = useMay("operate");
  const found = useQuery({ queryKey: ["job", id], queryFn: () => get<Job>(`/jobs/${id}`), refetchInterval: (query) => (LIVE.includes(query.state.data?.state ?? "") ? 2000 : false) });
  const act = useAction<"cancel" | "retry", Done>({
    act: (verb) => post<Done>(`/jobs/${verb}`, { ids: [Number(id)] }),
    told: (result, verb) => told(verb === "retry" ? "Retry" : "Cancel")(result),
    then: (result, verb) => {
      const next = result.ids[0];
      if (verb === "retry" && next && next !== Number(id)) go(`/jobs/${next}`);
    },
  });
  const job = found.data;
  if (found.error) return <Trouble error={found.error} retry={() => void found.refetch()} />;
  if (!job) return <Loading lines={8} />;
  const isLive = LIVE.includes(job.state);
  return (
    <>
      <Head
        title={job.task}
        under={
          <span className="row">
            <State state={job.state} /> job {job.id} on queue <Link to={`/jobs?queue=${encodeURIComponent(job.queue)}`}>{job.queue}</Link>
            {job.tags?.map((tag) => <Tag key={tag}>{tag}</Tag>)}
          </span>
        }
      >
        {may && (
          <>
            {job.state !== "running" && (
              <Button busy={act.isPending} onClick={() => act.mutate("retry")}>
                {isLive ? "Run now" : "Run again"}
              </Button>
            )}
            {isLive && (
              <Button kind="danger" busy={act.isPending} onClick={() => act.mutate("cancel")}>
                Cancel
              </Button>
            )}
          </>
        )}
      </Head>
      <div className="run-grid">
        <div className="stack">
          <Panel title="Why">
            {job.progress !== null && job.state === "running" && (
              <div className="pad">
                <Meter value={job.progress} label="Progress" />
              </div>
            )}
            <Why lines={job.why} />
          </Panel>
          <Attempts errors={job.errors ?? []} />
          <Panel title="Log">
            <JobLog jobId={job.id} isLive={isLive} />
          </Panel>
          <Panel title="Arguments">
            <JsonView value={job.args} label="arguments" />
          </Panel>
          {job.state === "succeeded" && (
            <Panel title="Result">
              <JsonView value={job.result} label="result" />
            </Panel>
          )}
        </div>
        <JobFacts job={job} />
      </div>
    </>
  );
}

function JobFacts({ job }: { job: Job }) {
  return (
    <Panel title="Facts">
      <dl className="facts">
        <Fact name="Created">
          <Ago at={job.created_at} />
        </Fact>
        <Fact name="Due">
          <Ago at={job.due_at} />
        </Fact>
        <Fact name="Started">
          <Ago at={job.started_at} />
        </Fact>
        {job.finished_at && (
          <Fact name="Ended">
            <Ago at={job.finished_at} />
          </Fact>
        )}
        {job.started_at && (
          <Fact name="Took">
            <Took from={job.started_at} to={job.finished_at} />
          </Fact>
        )}
        <Fact name="Attempt">
          {job.attempt} <span className="faint">({job.failures} failed, {job.losses} lost)</span>
        </Fact>
        <Fact name="Priority">{job.priority}</Fact>
        {job.run_id && (
          <Fact name="Run">
            <Link to={`/runs/${job.run_id}`}>r{job.run_id}</Link>
          </Fact>
        )}
        {job.worker_host && (
          <Fact name="Worker">
            <Link to={`/workers/${encodeURIComponent(job.worker_host)}`}>{job.worker_host}</Link> (pid {job.worker_pid})
          </Fact>
        )}
        {job.unique_key && <Fact name="Unique key">{job.unique_key}</Fact>}
        {job.concurrency_key && (
          <Fact name="Concurrency">
            {job.concurrency_key}, {job.concurrency_max ?? "?"} at once
          </Fact>
        )}
        {job.deadline && (
          <Fact name="Deadline">
            <Ago at={job.deadline} />
          </Fact>
        )}
        {Object.entries(job.options ?? {}).map(([name, value]) => (
          <Fact key={name} name={`${name[0]?.toUpperCase()}${name.slice(1).replaceAll("_", " ")}`}>
            <span title={JSON.stringify(value)}>{optionInWords(name, value)}</span>
          </Fact>
        ))}
      </dl>
    </Panel>
  );
}

/** What was decided when the job was enqueued, as a person says it. */
function optionInWords(name: string, value: unknown): string {
  if (typeof value === "number" && (name === "budget" || name === "stall")) return duration(value);
  if (name === "retry" && value !== null && typeof value === "object") {
    const { max_attempts: most = 1, backoff = 1, schedule } = value as { max_attempts?: number; backoff?: number; schedule?: number[] };
    if (most === 1) return "one attempt";
    return `up to ${most} attempts, ${schedule?.length ? `waits of ${schedule.map(duration).join(", ")}` : `the first wait ${duration(backoff)}`}`;
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What went wrong at each attempt, the last first. */
export function Attempts({ errors }: { errors: Attempt[] }) {
  if (errors.length === 0) return null;
  return (
    <Panel title={errors.length === 1 ? "What went wrong" : `What went wrong, ${errors.length} times`}>
      <div className="attempts">
        {[...errors].reverse().map((error, index) => (
          <details key={`${error.attempt}-${error.at}`} open={index === 0}>
            <summary>
              <Tag tone="bad">attempt {error.attempt ?? errors.length - index}</Tag> <b>{error.kind ?? error.type ?? "error"}</b> {error.message ?? error.error}{" "}
              {error.at !== undefined && (
                <span className="faint">
                  <Ago at={error.at} />
                </span>
              )}
            </summary>
            {error.traceback && (
              <pre className="trace" tabIndex={0} aria-label="Traceback">
                {error.traceback}
              </pre>
            )}
          </details>
        ))}
      </div>
    </Panel>
  );
}
