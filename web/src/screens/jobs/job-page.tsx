/** One job: its state and why, its attempts, log, arguments and result. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { Done, Job } from "../../api/types";
import { useAction } from "../../api/use-action";
import { go, Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { AttemptErrors } from "../../components/details/attempt-errors";
import { Explanation } from "../../components/details/explanation";
import { FollowedPanel } from "../../components/details/followed";
import { JsonView, parseJson } from "../../components/details/json";
import { JobLog } from "../../components/details/log";
import { Dialog } from "../../components/dialog";
import { ErrorMessage, PageStatus } from "../../components/feedback";
import { Fact, Meter, PageHeader, Panel } from "../../components/layout";
import { Tag } from "../../components/state";
import { LIVE_JOB_STATES } from "../../components/states";
import { duration, Took, When } from "../../components/times";
import { JobState, resultMessage } from "./jobs";

export function JobPage({ id }: { id: string }) {
  const may = useMay("operator");
  const found = useQuery({ queryKey: ["job", id], queryFn: () => get<Job>(`/jobs/${id}`), refetchInterval: (query) => (LIVE_JOB_STATES.includes(query.state.data?.state ?? "") ? 2000 : false) });
  const act = useAction<"cancel" | "retry", Done>({
    request: (verb) => post<Done>(`/jobs/${verb}`, { ids: [Number(id)] }),
    message: (result, verb) => resultMessage(verb)(result),
    onSuccess: (result, verb) => {
      const next = result.ids[0];
      if (verb === "retry" && next && next !== Number(id)) go(`/jobs/${next}`);
    },
  });
  const [editing, setEditing] = useState(false);
  const job = found.data;
  if (!job) return <PageStatus title={`Job ${id}`} query={found} lines={8} />;
  const isLive = LIVE_JOB_STATES.includes(job.state);
  return (
    <>
      <PageHeader
        title={job.task}
        subtitle={
          <span className="row">
            <JobState job={job} /> job {job.id} of <Link to={`/tasks/${encodeURIComponent(job.task)}`}>this task</Link> in queue <Link to={`/queues/${encodeURIComponent(job.queue)}`}>{job.queue}</Link>
            {job.batch_id !== null && <Link to={`/batches/${job.batch_id}`}>batch b{job.batch_id}</Link>}
            {job.tags?.map((tag) => <Tag key={tag}>{tag}</Tag>)}
          </span>
        }
      >
        {may && (
          <>
            {job.state !== "running" && (
              <Button busy={act.isPending} onClick={() => act.mutate("retry")}>
                {isLive ? "Run now" : "Retry"}
              </Button>
            )}
            {job.state !== "running" && !isCut(job.args) && <Button onClick={() => setEditing(true)}>Edit and retry</Button>}
            {isLive && (
              <Button kind="danger" busy={act.isPending} onClick={() => act.mutate("cancel")}>
                Cancel
              </Button>
            )}
          </>
        )}
      </PageHeader>
      {editing && <EditDialog job={job} onClose={() => setEditing(false)} />}
      <div className="run-grid">
        <div className="stack">
          <Panel title="Explanation">
            {job.progress !== null && job.state === "running" && (
              <div className="pad">
                <Meter value={job.progress} label="Progress" />
              </div>
            )}
            <Explanation lines={job.why} />
          </Panel>
          <AttemptErrors errors={job.errors ?? []} />
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
        <div className="stack">
          <JobFacts job={job} />
          <FollowedPanel id={String(job.id)} />
        </div>
      </div>
    </>
  );
}

function JobFacts({ job }: { job: Job }) {
  return (
    <Panel title="Details">
      <dl className="facts">
        <Fact name="Created">
          <When at={job.created_at} />
        </Fact>
        <Fact name="Due">
          <When at={job.due_at} />
        </Fact>
        <Fact name="Started">
          <When at={job.started_at} />
        </Fact>
        {job.finished_at && (
          <Fact name="Finished">
            <When at={job.finished_at} />
          </Fact>
        )}
        {job.started_at && (
          <Fact name="Duration">
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
            {job.concurrency_key}, at most {job.max_concurrency ?? "?"} at once
          </Fact>
        )}
        {job.fair_key && <Fact name="Fair key">{job.fair_key}</Fact>}
        {job.rate_key && <Fact name="Rate key">{job.rate_key}</Fact>}
        {job.deadline && (
          <Fact name="Deadline">
            <When at={job.deadline} />
          </Fact>
        )}
        {Object.entries(job.options ?? {}).map(([name, value]) => (
          <Fact key={name} name={`${name[0]?.toUpperCase()}${name.slice(1).replaceAll("_", " ")}`}>
            <span title={JSON.stringify(value)}>{describeOption(name, value)}</span>
          </Fact>
        ))}
      </dl>
    </Panel>
  );
}

/** An option of the job as text. */
function describeOption(name: string, value: unknown): string {
  if (typeof value === "number" && (name === "budget" || name === "stall")) return duration(value);
  if (name === "retry" && value !== null && typeof value === "object") {
    const { max_attempts: most = 1, backoff = 1, schedule } = value as { max_attempts?: number; backoff?: number; schedule?: number[] };
    if (most === 1) return "one attempt only";
    return `up to ${most} attempts, ${schedule?.length ? `with delays of ${schedule.map(duration).join(", ")}` : `first delay ${duration(backoff)}`}`;
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}

function isCut(value: unknown): boolean {
  return typeof value === "object" && value !== null && "$cut" in value;
}

/** Runs a job again with other arguments. */
function EditDialog({ job, onClose }: { job: Job; onClose: () => void }) {
  const [text, setText] = useState(() => JSON.stringify(job.args, null, 2));
  const read = parseJson(text);
  const action = useAction<void, Done>({
    request: () => post<Done>("/jobs/retry", { ids: [job.id], args: read.value }),
    message: resultMessage("retry"),
    onSuccess: (result) => {
      onClose();
      const next = result.ids[0];
      if (next && next !== job.id) go(`/jobs/${next}`);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title={`Edit and retry job ${job.id}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Arguments</span>
          <textarea className="field mono" rows={8} value={text} onChange={(event) => setText(event.target.value)} aria-invalid={read.wrong !== undefined} autoFocus />
          <small>{read.wrong ?? "They replace those of the same name and are checked against the task."}</small>
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending} disabled={read.wrong !== undefined}>
          Retry
        </Button>
      </form>
    </Dialog>
  );
}
