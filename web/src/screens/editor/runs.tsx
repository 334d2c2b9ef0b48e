/** Runs of a workflow: start one of the current text, up to any node, and see what each node got and gave. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { get, post, postQuery } from "../../api/client";
import type { Job, JobLine, List, Page, Schemas } from "../../api/types";
import { useAction } from "../../api/use-action";
import { go, Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { JsonView, parseJson } from "../../components/details/json";
import { Empty, LoadStatus } from "../../components/feedback";
import { Panel } from "../../components/layout";
import { State, Tag } from "../../components/state";
import { LIVE_JOB_STATES } from "../../components/states";
import { Ago } from "../../components/times";
import type { Data } from "./text/document";
import type { WorkflowDryRun } from "./types";

/** What a node got and gave in a run; runs of events and schedules keep only what it gave. */
export interface NodeResult {
  name: string;
  items: number;
  inputs?: unknown[];
  fields?: Record<string, unknown>;
  outputs: unknown[];
  is_pinned?: boolean;
  error: string | null;
}

interface StageResult {
  stage: string;
  output: string | null;
  content: string | null;
  note: string;
}

interface RunResult {
  nodes: NodeResult[];
  stages: StageResult[];
  error: string | null;
}

const SHOWN = 10;

interface Props {
  path: string;
  text: string;
  /** The workflow, as its task is called: workflow/NAME. */
  name: string;
  isPipeline: boolean;
  isSaved: boolean;
  hasErrors: boolean;
  /** Whether the caller may run any text: who may not runs the saved file. */
  mayDraft: boolean;
  /** The name of the chosen node. */
  chosen: string | null;
  onResults: (results: NodeResult[] | null) => void;
  /** Pin a node to an output, or unpin it. */
  onPin: (node: string, output: unknown) => void;
}

export function WorkflowRuns({ path, text, name, isPipeline, isSaved, hasErrors, mayDraft, chosen, onResults, onPin }: Props) {
  const task = `workflow/${name}`;
  const draft = `workflow-draft/${name}`;
  const mayOperate = useMay("operator");
  const [payload, setPayload] = useState("{}");
  const [entity, setEntity] = useState("");
  const [picked, setPicked] = useState<number | null>(null);
  const read = parseJson(payload);
  const drafts = useQuery({ queryKey: ["jobs", "of workflow", draft], queryFn: () => get<Page<JobLine>>("/jobs", { task: draft, limit: SHOWN }) });
  const events = useQuery({ queryKey: ["jobs", "of workflow", task], queryFn: () => get<Page<JobLine>>("/jobs", { task, limit: SHOWN }), enabled: !isPipeline });
  const runs = [...(drafts.data?.items ?? []), ...(events.data?.items ?? [])].sort((a, b) => b.id - a.id).slice(0, SHOWN);
  const entities = useQuery({ queryKey: ["entities of workflow", path], queryFn: () => postQuery<WorkflowDryRun>("/workflow-files/dry-run", { path, text }), enabled: isPipeline && mayDraft && isSaved && !hasErrors });
  const id = picked ?? runs[0]?.id ?? null;
  const job = useQuery({ queryKey: ["job", String(id)], queryFn: () => get<Job>(`/jobs/${id}`), enabled: id !== null, refetchInterval: (query) => (LIVE_JOB_STATES.includes(query.state.data?.state ?? "") ? 2000 : false) });
  const run = useAction<string | null, Schemas["Enqueued"]>({
    request: (until) => (mayDraft ? post("/workflow-files/run", { path, text, until, ...(isPipeline ? { entity: entity.trim() } : { payload: read.value }) }) : post("/jobs", { task, args: { payload: read.value, until } })),
    message: (made) => `Run ${made.id} is enqueued.`,
    onSuccess: (made) => setPicked(made.id),
  });
  const result = job.data?.result;
  const shown = useMemo(() => resultOf(result), [result]);
  useEffect(() => onResults(shown?.nodes ?? null), [shown, onResults]);
  const may = mayDraft || (mayOperate && !isPipeline);
  const isReady = !hasErrors && (mayDraft || isSaved) && (isPipeline ? entity.trim() !== "" : read.wrong === undefined);
  const why = hasErrors ? "Correct the errors first." : mayDraft || isSaved ? undefined : "Save the file first: a run is of the saved file.";
  const error = shown?.error ?? (job.data?.errors?.length ? String(job.data.errors[job.data.errors.length - 1]?.message ?? "it failed") : null);
  const outcome = job.data ? (shown?.error ? "failed" : job.data.state) : null;
  return (
    <Panel title="Runs" className="runs" aside={isSaved ? <WorkflowSwitch name={name} isPipeline={isPipeline} /> : null}>
      {may && (
        <div className="row pad">
          {isPipeline ? (
            <>
              <label htmlFor="run-entity">For entity</label>
              <input id="run-entity" className="field mono grow" list="run-entities" autoComplete="off" value={entity} placeholder={entities.data?.entities.at(-1)} onChange={(event) => setEntity(event.target.value)} />
              <datalist id="run-entities">
                {entities.data?.entities.map((each) => (
                  <option key={each} value={each} />
                ))}
              </datalist>
            </>
          ) : (
            <>
              <label htmlFor="run-payload">Payload</label>
              <textarea id="run-payload" className="field grow" rows={1} spellCheck={false} value={payload} aria-invalid={read.wrong !== undefined} onChange={(event) => setPayload(event.target.value)} />
            </>
          )}
          <Button kind="main" busy={run.isPending} disabled={!isReady} title={why} onClick={() => run.mutate(null)}>
            Run
          </Button>
          {chosen !== null && (
            <Button busy={run.isPending} disabled={!isReady} title={why} onClick={() => run.mutate(chosen)}>
              Run to {chosen}
            </Button>
          )}
          {isPipeline && <small className="soft">The nodes do their work; no state is written.</small>}
        </div>
      )}
      {!isPipeline && isSaved && <EventAddress name={name} />}
      <LoadStatus query={drafts} lines={2} />
      {drafts.data && runs.length === 0 && <Empty title="No runs yet">{isPipeline ? "Run the text for one entity." : "Run the text, or send the saved file an event."}</Empty>}
      <div className="chips pad" role="group" aria-label="Last runs">
        {runs.map((each) => (
          <button key={each.id} type="button" className="chip" aria-pressed={each.id === id} onClick={() => setPicked(each.id)}>
            {each.id} {each.task === draft && "draft "}
            {/* The job of a draft also succeeds where a node fails: its result says so. */}
            {each.id === id && outcome !== null ? <State state={outcome} /> : (each.task !== draft || each.state !== "succeeded") && <State state={each.state} />}
          </button>
        ))}
      </div>
      {job.data && (
        <div className="pad run-outputs">
          <p className="row">
            <Link to={`/jobs/${job.data.id}`}>Job {job.data.id}</Link> <State state={outcome ?? job.data.state} /> <Ago at={job.data.created_at} />
          </p>
          {error !== null && <pre className="trace">{error}</pre>}
          {shown?.nodes.filter((each) => chosen === null || each.name === chosen).map((each) => <NodeView key={each.name} node={each} said={error} onPin={mayDraft ? onPin : null} />)}
          {shown?.stages.filter((each) => chosen === null || each.stage === chosen).map((each) => <StageView key={each.stage} stage={each} />)}
        </div>
      )}
    </Panel>
  );
}

/** What a node returned, or why it failed, unless that is `said` already. */
function NodeView({ node, said, onPin }: { node: NodeResult; said: string | null; onPin: Props["onPin"] | null }) {
  const value = node.outputs.length === 1 ? node.outputs[0] : node.outputs;
  return (
    <section aria-label={`Output of ${node.name}`}>
      <h3 className="row">
        {node.name} <Tag>{node.outputs.length === 1 ? "1 item" : `${node.outputs.length} items`}</Tag>
        {node.error !== null && <Tag tone="bad">failed</Tag>}
        {node.is_pinned && <Tag tone="wait">pinned</Tag>}
        {onPin && node.error === null && (
          <Button kind="quiet" onClick={() => onPin(node.name, node.is_pinned ? undefined : value)}>
            {node.is_pinned ? "Unpin" : "Pin this output"}
          </Button>
        )}
      </h3>
      {node.error !== null && node.error !== said && <pre className="trace">{node.error}</pre>}
      {node.inputs && node.inputs.length > 0 && (
        <details>
          <summary>Input</summary>
          <JsonView value={node.inputs.length === 1 ? node.inputs[0] : node.inputs} label={`Input of ${node.name}`} />
        </details>
      )}
      {node.fields && Object.keys(node.fields).length > 0 && (
        <details>
          <summary>Fields</summary>
          <JsonView value={node.fields} label={`Fields of ${node.name}`} />
        </details>
      )}
      {node.error === null && <JsonView value={value} label={`Output of ${node.name}`} />}
    </section>
  );
}

function StageView({ stage }: { stage: StageResult }) {
  return (
    <section aria-label={`State of ${stage.stage}`}>
      <h3>
        {stage.stage} {stage.output && <code>{stage.output}</code>}
      </h3>
      {stage.content === null ? <p className="soft">Nothing would be written: {stage.note}</p> : <pre className="trace">{stage.content}</pre>}
    </section>
  );
}

/** Where the saved workflow takes events, as soon as the application has loaded it. */
function EventAddress({ name }: { name: string }) {
  const found = useQuery({ queryKey: ["triggers"], queryFn: () => get<List<Schemas["TriggerLine"]>>("/triggers") });
  const mine = found.data?.items.find((each) => each.name === name);
  if (!mine) return null;
  const path = mine.webhook ?? `/api/v1/triggers/${encodeURIComponent(name)}`;
  return (
    <p className="pad soft">
      Events: <code>POST {location.origin + path}</code> {mine.webhook ? `signed (${mine.signature})` : `with a token of the role ${mine.role}`}
    </p>
  );
}

/** Whether the workflow is enabled, with all its triggers; a pipeline is disabled while it is paused. */
function WorkflowSwitch({ name, isPipeline }: { name: string; isPipeline: boolean }) {
  const may = useMay("operator");
  const triggers = useQuery({ queryKey: ["triggers"], queryFn: () => get<List<Schemas["TriggerLine"]>>("/triggers"), enabled: !isPipeline });
  const pipelines = useQuery({ queryKey: ["pipelines", "switch"], queryFn: () => get<List<Schemas["PipelineLine"]>>("/pipelines"), enabled: isPipeline });
  const trigger = triggers.data?.items.find((each) => each.name === name);
  const pipeline = pipelines.data?.items.find((each) => each.name === name);
  const act = useAction<"enable" | "disable">({ request: (verb) => post(`/workflows/${encodeURIComponent(name)}/${verb}`), message: (_, verb) => (verb === "disable" ? "The workflow is disabled: nothing starts it." : "The workflow is enabled.") });
  if (trigger === undefined && pipeline === undefined) return null;
  const by = trigger?.disabled_by ?? pipeline?.paused_by ?? null;
  return (
    <span className="row">
      <span className="soft">{by === null ? trigger?.schedules.join(", ") : `disabled by ${by}`}</span>
      {may && (
        <Button busy={act.isPending} onClick={() => act.mutate(by === null ? "disable" : "enable")}>
          {by === null ? "Disable" : "Enable"}
        </Button>
      )}
    </span>
  );
}

/** Start a run of a dag as it is drawn. */
export function DagStart({ data, hasErrors }: { data: Data; hasErrors: boolean }) {
  const [args, setArgs] = useState("{}");
  const read = parseJson(args);
  const start = useAction<void, { id: number }>({
    request: () => post("/runs", { workflow: String(data.name ?? ""), definition: data, args: read.value }),
    message: (made) => `Run r${made.id} is started.`,
    onSuccess: (made) => go(`/runs/${made.id}`),
  });
  return (
    <Panel title="Start a run">
      <div className="row pad">
        <label htmlFor="dag-args">Arguments</label>
        <textarea id="dag-args" className="field grow" rows={1} spellCheck={false} value={args} aria-invalid={read.wrong !== undefined} onChange={(event) => setArgs(event.target.value)} />
        <Button kind="main" busy={start.isPending} disabled={hasErrors || read.wrong !== undefined} title={hasErrors ? "Correct the errors first." : undefined} onClick={() => start.mutate()}>
          Start
        </Button>
      </div>
    </Panel>
  );
}

/** The result of a job: of a draft with all that its nodes got and gave, of others what each gave, by name. */
function resultOf(result: unknown): RunResult | null {
  if (typeof result !== "object" || result === null || Array.isArray(result)) return null;
  const found = result as Record<string, unknown>;
  if (Array.isArray(found.nodes) && Array.isArray(found.stages) && "error" in found) return found as unknown as RunResult;
  if (!Object.values(found).every(Array.isArray)) return null;
  const nodes = Object.entries(found as Record<string, unknown[]>).map(([name, outputs]) => ({ name, items: outputs.length, outputs, error: null }));
  return { nodes, stages: [], error: null };
}
