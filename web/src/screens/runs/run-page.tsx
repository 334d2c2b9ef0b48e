/** One run, live: its state and why, graph, timeline, steps, and its state after any tick. */
import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useMemo, useState } from "react";
import { get } from "../../api/client";
import type { Declared, Input, Job, JobLine, List, Page, Run, StateAt, Tick, Ticks, Tree } from "../../api/types";
import { importOrReload } from "../../app/lazy-import";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { AttemptErrors } from "../../components/details/attempt-errors";
import { Explanation, linked } from "../../components/details/explanation";
import { FollowedPanel } from "../../components/details/followed";
import { JsonView } from "../../components/details/json";
import { Empty, ErrorMessage, LoadStatus, Loading, PageStatus } from "../../components/feedback";
import { askingStep } from "../../components/forms/input-form";
import { dagGraph, findSpec } from "../../components/graph/dag-edges";
import { plural } from "../../components/format";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { RunState, Tag } from "../../components/state";
import { LIVE_RUN_STATES } from "../../components/states";
import { absolute, duration, Took, When } from "../../components/times";
import { describeTick, describeWaits, flowGraph, stepNamesByWork } from "./journal";
import { drawRelated, useRelatedRuns } from "./related-runs";
import { CancelNode, CancelRun, ForkRun, RerunDag, RetryRun, SendEvent } from "./run-dialogs";
import "./runs.css";
import { DagStep, FlowStep, type NodeState, unpack } from "./step-panel";
import { Timeline } from "./timeline";
import { cutLanes, dagLanes, flowLanes } from "./timeline-bars";

const Graph = lazy(() => importOrReload(() => import("../../components/graph/graph")));

const MAX_TICKS = 5000;

/** The whole journal, or the beginning of a very long one; ticks that are known do not change and are not read again. */
async function readTicks(id: string, known: Ticks | undefined): Promise<Ticks> {
  const items: Tick[] = [...(known?.items ?? [])];
  for (;;) {
    const page = await get<Ticks>(`/runs/${id}/ticks`, { after: items.at(-1)?.seq ?? 0, limit: 1000 });
    items.push(...page.items.slice(0, MAX_TICKS - items.length));
    if (page.items.length < 1000 || items.length >= MAX_TICKS) return { items, total: page.total };
  }
}

/** The run's newest jobs; those with failed attempts with all their attempts. */
async function readJobs(id: string): Promise<(JobLine | Job)[]> {
  const page = await get<Page<JobLine>>("/jobs", { run: id, limit: 200 });
  const retried = page.items.filter((job) => job.failures + job.losses > 0).slice(0, 20);
  const known = new Map(await Promise.all(retried.map(async (job) => [job.id, await get<Job>(`/jobs/${job.id}`)] as const)));
  return page.items.map((job) => known.get(job.id) ?? job);
}

export function RunPage({ id: named }: { id: string }) {
  const id = named.replace(/^r(?=\d+$)/, ""); // Lists show r12, so accept both.
  const [query, change] = useFilters();
  const may = useMay("operator");
  const [act, setAct] = useState<"cancel" | "cancel_node" | "retry" | "rerun" | "fork" | "send" | null>(null);
  const [start, setStart] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["run", id], queryFn: () => get<Run>(`/runs/${id}`) });
  const run = found.data;
  const isDag = run?.shape === "dag";
  const at = query.get("at") === null ? null : Number(query.get("at"));
  const chosen = query.get("step");
  const choose = useCallback((name: string) => change({ step: name }), [change]);
  const client = useQueryClient();
  const ticks = useQuery({ queryKey: ["ticks", id], queryFn: () => readTicks(id, client.getQueryData<Ticks>(["ticks", id])), enabled: run !== undefined });
  const tree = useQuery({ queryKey: ["tree", id, at], queryFn: () => get<Tree>(`/runs/${id}/tree`, { at }), enabled: isDag, placeholderData: keepPreviousData });
  const state = useQuery({ queryKey: ["run", id, "state", at], queryFn: () => get<StateAt>(`/runs/${id}/state`, { at }), enabled: run !== undefined && (isDag || at !== null), placeholderData: keepPreviousData, retry: false });
  const asks = useQuery({ queryKey: ["inputs", Number(id)], queryFn: () => get<List<Input>>("/inputs", { run: id }), enabled: run !== undefined && LIVE_RUN_STATES.includes(run.state) });
  const jobs = useQuery({ queryKey: ["runjobs", id], queryFn: () => readJobs(id), enabled: isDag });

  if (!run) return <PageStatus title={`Run r${id}`} query={found} lines={10} />;
  const isLive = LIVE_RUN_STATES.includes(run.state);
  const question = isLive && at === null ? asks.data?.items[0] : undefined;
  const failed = isDag && at === null ? tree.data?.nodes.find((node) => node.state === "failed")?.node : undefined;
  const step = chosen ?? (question ? askingStep(question) : (failed ?? null)); // People come here for an open question, or for what failed.
  const showTick = (next: number | null) => change({ at: next === null ? null : String(next), step });
  const journal = ticks.data?.items ?? [];
  const shown = at === null ? journal : journal.filter((tick) => tick.seq <= at);
  const moment = at === null ? null : (shown.at(-1)?.at ?? run.created_at);
  const until = moment === null ? null : Date.parse(moment) / 1000;
  const nodeStates = (state.data?.state.state as { nodes?: Record<string, NodeState> } | undefined)?.nodes ?? (state.data?.state.nodes as Record<string, NodeState> | undefined) ?? {};
  return (
    <>
      <PageHeader
        title={run.workflow}
        subtitle={
          <span className="row">
            <RunState state={run.state} asks={isLive && (asks.data?.items.length ?? 0) > 0} /> <span>r{run.id}</span> <Tag>{run.shape}</Tag> {run.key && <Tag>{run.key}</Tag>}
            <span className="soft">
              started <When at={run.created_at} />, {run.ended_at ? "took" : "running for"} <Took from={run.created_at} to={run.ended_at} />
            </span>
          </span>
        }
      >
        {may && (
          <>
            {isDag && <Button onClick={() => { setStart(null); setAct("rerun"); }}>Run again</Button>}
            {!isDag && run.state === "needs_attention" && <Button onClick={() => setAct("retry")}>Retry</Button>}
            {!isDag && isLive && <Button onClick={() => setAct("send")}>Send an event</Button>}
            {!isDag && run.ticks > 0 && <Button onClick={() => setAct("fork")}>Fork{at === null ? "" : ` at tick ${at}`}</Button>}
            {isLive && (
              <Button kind="danger" onClick={() => setAct("cancel")}>
                Cancel
              </Button>
            )}
          </>
        )}
      </PageHeader>
      <div className="run-grid">
        <div className="stack">
          <Panel title="Explanation">
            <Explanation lines={at !== null && tree.data ? tree.data.why : [...run.why, ...(isLive && !isDag ? describeWaits(journal) : [])]} />
          </Panel>
          {run.error !== null && <RunError run={run} />}
          <GraphPanel run={run} tree={tree.data} ticks={shown} total={run.ticks} at={at} until={until} chosen={step} onChoose={choose} onAt={showTick} journal={journal} isLoading={ticks.isPending || (isDag && tree.isPending)} error={ticks.error ?? tree.error} />
          <Bars run={run} tree={isDag ? tree.data : undefined} jobs={jobs.data ?? []} ticks={shown} states={nodeStates} isLoading={ticks.isPending || (isDag && (tree.isPending || jobs.isPending))} until={until} chosen={step} onChoose={choose} />
          {at !== null && !isDag && (
            <Panel title={`State after tick ${at}`}>{state.error ? <ErrorMessage error={state.error} /> : state.data ? <JsonView value={state.data.state} label={`state after tick ${at}`} /> : <Loading />}</Panel>
          )}
          <div className="stack later">
            {run.input !== null && <Panel title="Input"><JsonView value={isDag ? run.input : unpack([run.input])} label="input" /></Panel>}
            {run.result !== null && <Panel title="Result"><JsonView value={run.result} label="result" /></Panel>}
            <Journal ticks={journal} total={run.ticks} at={at} onAt={showTick} states={nodeStates} isDag={isDag} query={ticks} />
          </div>
        </div>
        <div className="stack">
          {step && isDag && tree.data?.nodes.some((node) => node.node === step) && (
            <DagStep key={step} runId={run.id} node={tree.data.nodes.find((node) => node.node === step) as Tree["nodes"][number]} spec={findSpec(tree.data.definition, step)} state={nodeStates[step]} isPast={at !== null} may={may} isLive={isLive} onRerun={(node) => { setStart(node); setAct("rerun"); }} onCancel={(node) => { setStart(node); setAct("cancel_node"); }} />
          )}
          {step && !isDag && <FlowStep key={step} runId={run.id} name={step} ticks={shown} isLive={isLive && at === null} may={may} />}
          {!step && <Panel title="Step"><Empty title="Select a step">Click a node of the graph or a line of the timeline to see its input and output.</Empty></Panel>}
          <Facts run={run} />
          <FollowedPanel id={`r${run.id}`} />
        </div>
      </div>
      {act === "cancel" && <CancelRun run={run} onClose={() => setAct(null)} />}
      {act === "cancel_node" && start !== null && <CancelNode run={run} node={start} onClose={() => setAct(null)} />}
      {act === "retry" && <RetryRun run={run} onClose={() => setAct(null)} />}
      {act === "rerun" && <RerunDag run={run} start={start} onClose={() => setAct(null)} />}
      {act === "fork" && <ForkRun run={run} at={at ?? run.ticks} onClose={() => setAct(null)} />}
      {act === "send" && <SendEvent run={run} onClose={() => setAct(null)} />}
    </>
  );
}

/** Why a run failed: the traceback, unless the explanation above says all there is. */
function RunError({ run }: { run: Run }) {
  const { kind = "", message, trace, ...more } = run.error as { kind?: string; message?: string; trace?: string };
  if (message === undefined) return <Panel title="Error"><JsonView value={run.error} label="error" /></Panel>;
  if (!trace && run.why.some((line) => line.includes(message))) return null;
  return <AttemptErrors errors={[{ ...more, kind: kind.split(".").at(-1), message, traceback: trace }]} />;
}

interface GraphProps {
  run: Run;
  tree: Tree | undefined;
  ticks: Tick[];
  journal: Tick[];
  total: number;
  at: number | null;
  until: number | null;
  chosen: string | null;
  onChoose: (name: string) => void;
  onAt: (at: number | null) => void;
  isLoading: boolean;
  error: unknown;
}

function GraphPanel({ run, tree, ticks, journal, total, at, until, chosen, onChoose, onAt, isLoading, error }: GraphProps) {
  const [big, setBig] = useState(false);
  const [isFar, setFar] = useState(false);
  const definition = tree ? JSON.stringify(tree.definition) : "";
  // eslint-disable-next-line react-hooks/exhaustive-deps
  const drawn = useMemo(() => (tree ? dagGraph(tree.definition) : null), [definition]);
  const isOver = at === null && run.ended_at !== null;
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows"), enabled: run.shape === "flow", staleTime: 60_000 });
  const graph = declared.data?.items.find((each) => each.name === run.workflow && each.shape === "flow")?.graph ?? null;
  const related = useRelatedRuns(run);
  const { boxes: own, edges: ownEdges } = useMemo(() => {
    if (run.shape === "flow") return flowGraph(ticks, isOver, graph);
    const known = new Map(tree?.nodes.map((node) => [node.node, node]));
    const nodes = (drawn?.nodes ?? []).filter(({ name }) => known.has(name));
    const names = new Set(nodes.map(({ name }) => name));
    return {
      boxes: nodes.map(({ name, spec }) => {
        const node = known.get(name);
        const about = node?.total ? `${node.done ?? 0}/${node.total}` : (spec.queue ?? spec.task ?? (spec.kind === "input" ? "human input" : ""));
        const job = node?.jobs.length === 1 ? node.jobs[0] : undefined;
        const queued = node?.state === "running" && job !== undefined && job.state !== "running";
        return { name, state: queued ? "queued" : (node?.state ?? "pending"), about };
      }),
      edges: (drawn?.edges ?? []).filter((edge) => names.has(edge.from) && names.has(edge.to)),
    };
  }, [run.shape, ticks, isOver, graph, tree, drawn]);
  const { boxes, edges } = useMemo(() => {
    const reached = new Set(ownEdges.map((edge) => edge.to));
    const roots = own.some((box) => box.name === "start") ? ["start"] : own.filter((box) => !reached.has(box.name)).map((box) => box.name);
    const around = drawRelated(run, related, stepNamesByWork(ticks), roots, until);
    return { boxes: [...own, ...around.boxes], edges: [...ownEdges, ...around.edges] };
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [run, own, ownEdges, ticks, until, related.above[0]?.run, related.children, related.forks]);
  const moment = at === null ? null : journal.find((tick) => tick.seq === at)?.at;
  return (
    <Panel
      title="Graph"
      aside={
        <span className="row">
          <span className="faint">{run.shape === "dag" ? plural(own.length, "node") : graph ? `${own.length} steps and events` : `${plural(own.length, "step")} so far`}</span>
          <Button kind="quiet" aria-pressed={big} onClick={() => setBig(!big)}>
            {big ? "Shrink" : "Enlarge"}
          </Button>
        </span>
      }
    >
      <div className={`graph ${big ? "big" : boxes.length <= 6 ? "low" : boxes.length <= 14 ? "middle" : ""} ${isFar ? "far" : ""}`}>
        {boxes.length === 0 && error ? <ErrorMessage error={error} /> : boxes.length === 0 && isLoading ? <Loading lines={4} /> : boxes.length === 0 ? <Empty title="No step has started yet" /> : (
          <Suspense fallback={<Loading lines={6} />}>
            <Graph label="Graph of the run" boxes={boxes} edges={edges} chosen={chosen} onChoose={onChoose} onFar={setFar} />
          </Suspense>
        )}
      </div>
      {at !== null && (
        <div className="then" role="status">
          <span>
            State after tick {at}
            {moment && ` (${absolute(moment)}, ${duration((Date.parse(moment) - Date.parse(run.created_at)) / 1000)} after the start)`}
          </span>
          <Button kind="quiet" onClick={() => onAt(null)}>
            Show now
          </Button>
        </div>
      )}
      <div className="slider">
        <span className="soft">Tick</span>
        <input type="range" min={0} max={total} step={1} value={at ?? total} aria-label="Tick" onChange={(event) => onAt(Number(event.target.value) === total ? null : Number(event.target.value))} />
        <output>{at === null ? `now, ${plural(total, "tick")}` : `tick ${at} of ${total}`}</output>
      </div>
    </Panel>
  );
}

interface BarsProps {
  run: Run;
  tree: Tree | undefined;
  jobs: (JobLine | Job)[];
  ticks: Tick[];
  states: Record<string, NodeState>;
  isLoading: boolean;
  until: number | null;
  chosen: string | null;
  onChoose: (name: string) => void;
}

function Bars({ run, tree, jobs, ticks, states, isLoading, until, chosen, onChoose }: BarsProps) {
  const lanes = useMemo(() => {
    if (run.shape === "flow") return flowLanes(ticks, run);
    if (!tree) return [];
    const jobOf = new Map(Object.entries(states).flatMap(([name, node]) => (node.job ? [[name, node.job] as const] : [])));
    return dagLanes(tree, new Map(jobs.map((job) => [job.id, job])), jobOf);
  }, [run, tree, jobs, ticks, states]);
  const shown = useMemo(() => (until === null ? lanes : cutLanes(lanes, until)), [lanes, until]);
  return <Timeline lanes={shown} isLoading={isLoading} from={Date.parse(run.created_at) / 1000} to={until ?? (run.ended_at ? Date.parse(run.ended_at) / 1000 : null)} chosen={chosen} onChoose={onChoose} />;
}

function Facts({ run }: { run: Run }) {
  const origin = run.origin ?? {};
  const by = [origin.by && String(origin.by), origin.host && `on ${String(origin.host)}`, origin.pid && `(pid ${String(origin.pid)})`].filter(Boolean).join(" ");
  return (
    <Panel title="Details">
      <dl className="facts">
        <Fact name="Started by">{by ? linked(by) : "not recorded"}</Fact>
        {typeof origin.repeats === "number" && <Fact name="Repeats"><Link to={`/runs/${origin.repeats}`}>r{origin.repeats}</Link></Fact>}
        {run.parent && <Fact name="Parent"><Link to={`/runs/${run.parent}`}>r{run.parent}</Link></Fact>}
        {run.forked_from && <Fact name="Fork of"><Link to={`/runs/${run.forked_from}`}>r{run.forked_from}</Link></Fact>}
        {run.owner_host && <Fact name="Run worker"><Link to={`/workers/${encodeURIComponent(run.owner_host)}`}>{run.owner_host}</Link> (pid {run.owner_pid})</Fact>}
        {run.buffered && Object.keys(run.buffered.events).length > 0 && <Fact name="Buffered">{Object.entries(run.buffered.events).map(([name, count]) => `${count} ${name.split(".").at(-1)}`).join(", ")}</Fact>}
        <Fact name="Version"><code>{run.version}</code></Fact>
        <Fact name="Related">
          <span className="row">
            <Link to={`/jobs?run=${run.id}`}>jobs</Link>
            <Link to={`/runs?parent=${run.id}`}>child runs</Link>
            <Link to={`/runs?forked_from=${run.id}`}>forks</Link>
          </span>
        </Fact>
      </dl>
    </Panel>
  );
}

function Journal({ ticks, total, at, onAt, states, isDag, query }: { ticks: Tick[]; total: number; at: number | null; onAt: (at: number) => void; states: Record<string, NodeState>; isDag: boolean; query: Parameters<typeof LoadStatus>[0]["query"] }) {
  const names = useMemo(() => {
    if (!isDag) return stepNamesByWork(ticks);
    return new Map(Object.entries(states).flatMap(([name, node]) => { const work = (node as { work?: number }).work; return work === undefined || work === null ? [] : [[work, name] as const]; }));
  }, [isDag, ticks, states]);
  const first = ticks[0]?.at ? Date.parse(ticks[0].at) : 0;
  return (
    <Panel title="Journal" aside={<span className="faint">{plural(total, "tick")}</span>}>
      {query.isPending || query.error ? (
        <LoadStatus query={query} />
      ) : ticks.length === 0 ? (
        <Empty title="No ticks yet" />
      ) : (
        <div className="ticks" tabIndex={0} role="group" aria-label="Ticks">
          {ticks.slice(-400).map((tick) => (
            <button key={tick.seq} type="button" aria-pressed={at === tick.seq} onClick={() => onAt(tick.seq)} title={tick.at ? absolute(tick.at) : ""}>
              <span className="seq">{tick.seq}</span>
              <span className="at">+{tick.at ? duration((Date.parse(tick.at) - first) / 1000) : ""}</span>
              <span>{describeTick(tick, names)}</span>
            </button>
          ))}
        </div>
      )}
    </Panel>
  );
}
