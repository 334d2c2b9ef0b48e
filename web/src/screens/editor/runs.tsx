/** Runs of a saved workflow: start one, up to any node, and see what each node returned. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { get, post } from "../../api/client";
import type { Job, JobLine, List, Page, Schedule, Schemas } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { JsonView, parseJson } from "../../components/details/json";
import { Empty, LoadStatus } from "../../components/feedback";
import { Panel } from "../../components/layout";
import { State, Tag } from "../../components/state";
import { LIVE_JOB_STATES } from "../../components/states";
import { Ago } from "../../components/times";

/** What each node returned, by its name: an entry for each item. */
export type Outputs = Record<string, unknown[]>;

const SHOWN = 10;

interface Props {
  /** The workflow, as its task is called: workflow/NAME. */
  name: string;
  isSaved: boolean;
  /** The name of the chosen node. */
  chosen: string | null;
  onOutputs: (outputs: Outputs | null) => void;
}

export function WorkflowRuns({ name, isSaved, chosen, onOutputs }: Props) {
  const task = `workflow/${name}`;
  const may = useMay("operator");
  const [payload, setPayload] = useState("{}");
  const [picked, setPicked] = useState<number | null>(null);
  const read = parseJson(payload);
  const runs = useQuery({ queryKey: ["jobs", "of workflow", task], queryFn: () => get<Page<JobLine>>("/jobs", { task, limit: SHOWN }) });
  const id = picked ?? runs.data?.items[0]?.id ?? null;
  const job = useQuery({ queryKey: ["job", String(id)], queryFn: () => get<Job>(`/jobs/${id}`), enabled: id !== null, refetchInterval: (query) => (LIVE_JOB_STATES.includes(query.state.data?.state ?? "") ? 2000 : false) });
  const run = useAction<string | null, Schemas["Enqueued"]>({
    request: (until) => post("/jobs", { task, args: { payload: read.value, until } }),
    message: (made) => `Run ${made.id} is enqueued.`,
    onSuccess: (made) => setPicked(made.id),
  });
  const result = job.data?.result;
  const outputs = useMemo(() => outputsOf(result), [result]);
  useEffect(() => onOutputs(outputs), [outputs, onOutputs]);
  return (
    <Panel title="Runs" className="runs" aside={<SchedulePause task={task} />}>
      {may && (
        <div className="row pad">
          <label htmlFor="run-payload">Payload</label>
          <textarea id="run-payload" className="field grow" rows={1} spellCheck={false} value={payload} aria-invalid={read.wrong !== undefined} onChange={(event) => setPayload(event.target.value)} />
          <Button kind="main" busy={run.isPending} disabled={!isSaved || read.wrong !== undefined} title={isSaved ? undefined : "Save the file first: a run is of the saved file."} onClick={() => run.mutate(null)}>
            Run
          </Button>
          {chosen !== null && (
            <Button busy={run.isPending} disabled={!isSaved || read.wrong !== undefined} onClick={() => run.mutate(chosen)}>
              Run to {chosen}
            </Button>
          )}
        </div>
      )}
      <LoadStatus query={runs} lines={2} />
      {runs.data?.items.length === 0 && <Empty title="No runs yet">Run the saved file, or send it an event.</Empty>}
      <div className="chips pad" role="group" aria-label="Last runs">
        {runs.data?.items.map((each) => (
          <button key={each.id} type="button" className="chip" aria-pressed={each.id === id} onClick={() => setPicked(each.id)}>
            {each.id} <State state={each.state} />
          </button>
        ))}
      </div>
      {job.data && (
        <div className="pad run-outputs">
          <p className="row">
            <Link to={`/jobs/${job.data.id}`}>Job {job.data.id}</Link> <State state={job.data.state} /> <Ago at={job.data.created_at} />
          </p>
          {job.data.errors?.length ? <pre className="trace">{String(job.data.errors[job.data.errors.length - 1]?.message ?? "it failed")}</pre> : null}
          {outputs &&
            Object.entries(outputs)
              .filter(([node]) => chosen === null || node === chosen)
              .map(([node, items]) => (
                <section key={node} aria-label={`Output of ${node}`}>
                  <h3>
                    {node} <Tag>{items.length === 1 ? "1 item" : `${items.length} items`}</Tag>
                  </h3>
                  <JsonView value={items.length === 1 ? items[0] : items} label={`Output of ${node}`} />
                </section>
              ))}
        </div>
      )}
    </Panel>
  );
}

/** Pause or resume the schedule of a workflow, if it has one. */
function SchedulePause({ task }: { task: string }) {
  const may = useMay("operator");
  const found = useQuery({ queryKey: ["schedules"], queryFn: () => get<List<Schedule>>("/schedules") });
  const mine = found.data?.items.filter((each) => each.task === task) ?? [];
  const isPaused = mine.length > 0 && mine.every((each) => each.paused);
  const act = useAction<"pause" | "resume">({ request: (verb) => Promise.all(mine.map((each) => post(`/schedules/${encodeURIComponent(each.name)}/${verb}`))), message: (_, verb) => (verb === "pause" ? "Its schedule is paused." : "Its schedule is resumed.") });
  if (mine.length === 0) return null;
  return (
    <span className="row">
      <span className="soft">{mine.map((each) => each.when).join(", ")}</span>
      {may && (
        <Button busy={act.isPending} onClick={() => act.mutate(isPaused ? "resume" : "pause")}>
          {isPaused ? "Enable" : "Disable"}
        </Button>
      )}
    </span>
  );
}

/** The result of a run by node. */
function outputsOf(result: unknown): Outputs | null {
  const isObject = typeof result === "object" && result !== null && !Array.isArray(result);
  return isObject && Object.values(result).every(Array.isArray) ? (result as Outputs) : null;
}
