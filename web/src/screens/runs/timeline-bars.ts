/** The bars of a run's timeline: one for each attempt, a thin one for each wait. */
import type { Job, JobLine, Run, Tick, Tree } from "../../api/types";
import { argumentsText } from "../../components/format";
import type { Tone } from "../../components/states";

export interface Bar {
  from: number;
  to: number | null;
  tone: Tone;
  /** Waits are drawn thin. */
  thin?: boolean;
  label: string;
}

export interface Lane {
  name: string;
  /** Shown instead of the name. */
  label?: string;
  bars: Bar[];
  /** Lanes of the items of a map, shown when this one is expanded. */
  inner?: Lane[];
  /** How many items the map has; `inner` may hold only the first of them. */
  total?: number;
}

const seconds = (at: string) => Date.parse(at) / 1000;

const TONES: Record<string, Bar["tone"]> = { succeeded: "ok", failed: "bad", cancelled: "off", expired: "off", running: "run" };

/** The bars of a job: its waits, its failed attempts and the last attempt. */
function jobBars(job: JobLine | Job): Bar[] {
  const bars: Bar[] = [];
  let since = seconds(job.created_at);
  const failures = "errors" in job ? (job.errors ?? []) : [];
  const started = job.started_at === null ? null : seconds(job.started_at);
  const isOver = job.finished_at !== null;
  for (const failure of failures) {
    const at = typeof failure.at === "number" ? failure.at : null;
    if (at === null || (isOver && failure === failures.at(-1) && job.state === "failed")) continue;
    bars.push({ from: since, to: at, tone: "bad", label: `attempt ${failure.attempt} failed: ${failure.message ?? failure.kind}` });
    since = at;
  }
  if (started === null || started < since) {
    bars.push({ from: since, to: isOver ? seconds(job.finished_at as string) : null, tone: "wait", thin: true, label: job.note ?? "waiting" });
    return bars;
  }
  if (started - since > 0.001) bars.push({ from: since, to: started, tone: "wait", thin: true, label: "waiting for a worker" });
  bars.push({ from: started, to: isOver ? seconds(job.finished_at as string) : null, tone: TONES[job.state] ?? "run", label: `job ${job.id}, attempt ${job.attempt}: ${job.state}` });
  return bars;
}

/** A lane for each started node of a dag; the items of a map are inner lanes of their node. */
export function dagLanes(tree: Tree, jobs: Map<number, JobLine | Job>, jobOf: Map<string, number>): Lane[] {
  const tasks = new Map<string, string[]>();
  for (const spec of tree.definition.nodes) if (spec.kind === "task" && spec.task) tasks.set(spec.task, [...(tasks.get(spec.task) ?? []), spec.name]);
  return tree.nodes.filter((node) => node.began !== null).map((node) => {
    const spec = tree.definition.nodes.find((each) => each.name === node.node);
    const whole: Bar = {
      from: seconds(node.began as string),
      to: node.ended === null ? null : seconds(node.ended),
      tone: node.state === "waiting" || spec?.kind === "input" ? (node.state === "failed" ? "bad" : "wait") : (TONES[node.state] ?? "off"),
      thin: spec?.kind === "input",
      label: node.why || node.state,
    };
    const own = jobs.get(jobOf.get(node.node) ?? node.jobs[0]?.id ?? -1);
    if (node.total !== null) {
      const isAlone = spec?.task !== undefined && tasks.get(spec.task)?.length === 1;
      const inner = isAlone ? [...jobs.values()].filter((job) => job.task === spec.task).sort((a, b) => a.id - b.id).map((job) => ({ name: `job ${job.id}`, label: argumentsText(job.arguments) || undefined, bars: jobBars(job) })) : [];
      return { name: node.node, bars: [whole], inner, total: node.total };
    }
    return { name: node.node, bars: own ? jobBars(own) : [whole] };
  });
}

type Begun = [number, string][];

/** A lane for each step of a flow, from the journal. */
export function flowLanes(ticks: Tick[], run: Run): Lane[] {
  const lanes = new Map<string, Lane>();
  const open = new Map<number, { lane: Lane; bar: Bar }>();
  const waits = new Map<number, Bar>();
  const laneOf = (name: string) => {
    const found = lanes.get(name) ?? { name, bars: [] };
    lanes.set(name, found);
    return found;
  };
  for (const tick of ticks) {
    const at = typeof tick.data.at === "number" ? tick.data.at : 0;
    const work = tick.data.work as number | undefined;
    if (tick.kind === "completed" && work !== undefined) {
      const known = open.get(work);
      const error = tick.data.error as [string, string, string] | undefined;
      if (known) {
        known.bar.to = at;
        known.bar.tone = error ? "bad" : "ok";
        known.bar.label = error ? `${error[0]}: ${error[1]}` : "finished";
        const retry = tick.data.retry_in as number | undefined;
        if (retry !== undefined && retry !== null) known.lane.bars.push({ from: at, to: at + retry, tone: "wait", thin: true, label: "waiting before the next attempt" });
        const wait = waits.get(work);
        if (wait) wait.to = at;
        open.delete(work);
        waits.delete(work);
      }
    }
    if (tick.kind === "noted" && work !== undefined) {
      const note = tick.data.note as { kind?: string; question?: string } | undefined;
      const known = open.get(work);
      if (known && note?.kind === "asked") {
        known.bar.to = at;
        known.bar.tone = "ok";
        const wait: Bar = { from: at, to: null, tone: "wait", thin: true, label: `waiting for ${note.question ?? "an event"}` };
        known.lane.bars.push(wait);
        waits.set(work, wait);
      }
    }
    for (const [number, placed] of (tick.data.begun as Begun | undefined) ?? []) {
      const lane = laneOf(placed.split("@")[0] ?? placed);
      const wait = waits.get(number);
      if (wait) wait.to = at;
      waits.delete(number);
      const bar: Bar = { from: at, to: null, tone: "run", label: `work ${number}` };
      lane.bars.push(bar);
      open.set(number, { lane, bar });
    }
  }
  const end = run.ended_at === null ? null : seconds(run.ended_at);
  if (end !== null) {
    for (const lane of lanes.values()) for (const bar of lane.bars) if (bar.to === null) Object.assign(bar, { to: end, tone: bar.thin ? bar.tone : "off" });
  }
  return [...lanes.values()];
}

/** The lanes as they were at a moment: later bars are dropped, and bars that end later are still open. */
export function cutLanes(lanes: Lane[], until: number): Lane[] {
  return lanes.flatMap((lane) => {
    const bars = lane.bars.filter((bar) => bar.from <= until).map((bar): Bar => (bar.to !== null && bar.to <= until ? bar : { ...bar, to: until, tone: bar.thin ? bar.tone : "run" }));
    return bars.length === 0 ? [] : [{ ...lane, bars, inner: lane.inner && cutLanes(lane.inner, until) }];
  });
}
