/** Reads a run's journal: describes its ticks, and derives the steps of a flow and their states. */
import type { FlowGraph, Tick } from "../../api/types";
import type { Edge } from "../../components/graph/dag-edges";
import type { Box } from "../../components/graph/graph";

const shortName = (type: unknown) => String(type ?? "").split(".").at(-1) ?? "";
const typeOf = (event: unknown) => shortName((event as { type?: string } | null)?.type);

/** The kind of a tick; dags and flows store it in different fields. */
export const kindOf = (tick: Tick): string => tick.kind || String(tick.data.type ?? "");

/** The event that a step waits for, from the tick that started the wait. */
const askedFor = (tick: Tick): string => shortName(String((tick.data.note as { question?: string } | undefined)?.question ?? "an event").replace(/ \[.*$/, ""));

/** A tick as short text. */
export function describeTick(tick: Tick, nodes?: Map<number, string>): string {
  const data = tick.data;
  const job = (data.outcome as { job?: number } | undefined)?.job;
  const known = nodes?.get(data.work as number);
  const who = known ?? (job ? `job ${job}` : undefined) ?? (data.work === undefined ? "" : `work ${String(data.work)}`);
  switch (kindOf(tick)) {
    case "started":
      return data.event ? `started with ${typeOf(data.event)}` : "started";
    case "received": {
      const event = data.event as { node?: string; by?: string } | undefined;
      if (event?.node) return `${event.by || "a person"} answered ${event.node}`;
      return `received ${typeOf(data.event)}${data.target ? ` for ${String(data.target)}` : ""}`;
    }
    case "completed": {
      const outcome = data.outcome as { state?: string; job?: number; note?: string } | undefined;
      if (outcome) return `${who} ${outcome.state ?? "finished"}${known && outcome.job ? ` (job ${outcome.job})` : ""}`;
      const error = data.error as [string, string] | undefined;
      if (error) return `${who} failed: ${shortName(error[0])}: ${error[1]}${data.retry_in ? "; will retry" : ""}`;
      const events = ((data.events as unknown[] | undefined) ?? []).map(typeOf);
      return `${who} returned ${events.join(", ") || "nothing"}`;
    }
    case "noted": {
      const note = data.note as Record<string, unknown> | undefined;
      const about = note?.question ?? note?.path ?? note?.name ?? note?.buffer ?? "";
      return `${who} ${note?.kind === "asked" ? "waiting for" : String(note?.kind ?? "noted")} ${about ? shortName(String(about).replace(/ \[.*$/, "")) : ""}`.trim();
    }
    case "elapsed":
      return `timer ${String(data.timer)} fired`;
    case "cancel_asked":
      return `cancel requested: ${String(data.reason ?? "")}`;
    case "migrated":
      return "migrated to another version of the workflow";
    case "resumed":
      return "resumed by a run worker";
    default:
      return kindOf(tick);
  }
}

/** The step of each piece of work, by its number. */
export function stepNamesByWork(ticks: Tick[]): Map<number, string> {
  const found = new Map<number, string>();
  for (const tick of ticks) for (const [work, name] of (tick.data.begun as [number, string][] | undefined) ?? []) found.set(work, name.split("@")[0] ?? name);
  return found;
}

/** The declared steps of a flow and the edges between them. */
function declaredSteps(graph: FlowGraph): { steps: string[]; edges: Edge[] } {
  const steps = graph.nodes.filter((node) => node.kind === "step").map((node) => node.name);
  const known = new Set(steps);
  const edges: Edge[] = [];
  for (const event of graph.nodes) {
    if (known.has(event.name)) continue;
    const makers = graph.edges.filter(([from, to]) => to === event.name && known.has(from)).map(([from]) => from);
    const takers = graph.edges.filter(([from, to]) => from === event.name && known.has(to)).map(([, to]) => to);
    const isFirst = event.kind === "event" && !graph.edges.some(([, to]) => to === event.name);
    for (const from of isFirst ? ["start"] : makers) for (const to of takers) if (from !== to) edges.push({ from, to });
  }
  return { steps, edges };
}

/** The state of a step that was not finished when its run ended. */
const ENDED: Record<string, string> = { running: "cancelled", pending: "skipped" };

/** The graph of a flow: steps with their states, including declared steps that have not started. */
export function flowGraph(ticks: Tick[], isOver: boolean, graph: FlowGraph | null = null): { boxes: Box[]; edges: Edge[] } {
  const boxes = new Map<string, { state: string; times: number }>();
  const edges = new Map<string, Edge>();
  if (graph) {
    const declared = declaredSteps(graph);
    boxes.set("start", { state: "pending", times: 0 });
    for (const step of declared.steps) boxes.set(step, { state: "pending", times: 0 });
    for (const edge of declared.edges) edges.set(`${edge.from} ${edge.to}`, edge);
  }
  const works = new Map<number, string>();
  const waits = new Map<number, string>();
  for (const tick of ticks) {
    const kind = kindOf(tick);
    const work = tick.data.work as number | undefined;
    let cause = kind === "completed" || kind === "noted" ? works.get(work ?? -1) : kind === "started" ? "start" : undefined;
    if (kind === "started") boxes.set("start", { state: "succeeded", times: 1 });
    if (kind === "received") {
      cause = typeOf(tick.data.event) || "event";
      boxes.set(cause, { state: "received", times: (boxes.get(cause)?.times ?? 0) + 1 });
      for (const [waiting, event] of waits) {
        const to = works.get(waiting);
        if (event !== cause || !to) continue;
        edges.set(`${cause} ${to}`, { from: cause, to });
        waits.delete(waiting);
      }
    }
    if (kind === "completed" && cause) {
      const box = boxes.get(cause);
      if (box) box.state = tick.data.error ? (tick.data.retry_in ? "waiting" : "failed") : "succeeded";
    }
    if (kind === "noted" && cause && (tick.data.note as { kind?: string } | undefined)?.kind === "asked") {
      const box = boxes.get(cause);
      if (box) box.state = "waiting";
      if (work !== undefined) waits.set(work, askedFor(tick));
    }
    for (const [number, placed] of (tick.data.begun as [number, string][] | undefined) ?? []) {
      const name = placed.split("@")[0] ?? placed;
      const isAgain = works.has(number);
      works.set(number, name);
      const box = boxes.get(name) ?? { state: "running", times: 0 };
      boxes.set(name, { state: "running", times: box.times + (isAgain ? 0 : 1) });
      if (cause && cause !== name) edges.set(`${cause} ${name}`, { from: cause, to: name });
    }
  }
  const shown = [...boxes].map(([name, box]) => ({ name, state: isOver ? (ENDED[box.state] ?? box.state) : box.state, about: box.times > 1 ? `×${box.times}` : "" }));
  return { boxes: shown, edges: [...edges.values()] };
}

/** What the steps of a flow are waiting for, as sentences. */
export function describeWaits(ticks: Tick[]): string[] {
  const works = stepNamesByWork(ticks);
  const waits = new Map<number, string>();
  for (const tick of ticks) {
    const work = tick.data.work as number;
    const note = tick.data.note as { kind?: string } | undefined;
    if (kindOf(tick) === "noted" && note?.kind === "asked") waits.set(work, askedFor(tick));
    else if (kindOf(tick) === "completed" || kindOf(tick) === "noted") waits.delete(work);
    for (const [begun] of (tick.data.begun as [number, string][] | undefined) ?? []) waits.delete(begun);
  }
  return [...waits].map(([work, event]) => `Step ${works.get(work) ?? work} is waiting for ${event}. Answer in the panel of the step, or use “Send an event”.`);
}
