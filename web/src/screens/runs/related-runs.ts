/** The runs around a run as boxes of its graph: its parent and children, what it forks or repeats, and its forks. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { Page, Run, RunLine } from "../../api/types";
import { count } from "../../components/format";
import type { Edge } from "../../components/graph/dag-edges";
import type { Box } from "../../components/graph/graph";
import { LIVE_RUN_STATES } from "../../components/states";

/** More children of one step and workflow than this are one box. */
const MAX_BOXES = 8;
const MAX_READ = 200;
const NONE: RunLine[] = [];

type AnyRun = Run | RunLine;

interface RelatedRuns {
  above: { run: AnyRun; about: string }[];
  children: RunLine[];
  forks: RunLine[];
}

/** The run that a run comes from, with what it is to it. */
function originOf(run: Run): { id: number; about: string } | null {
  if (run.parent) return { id: run.parent, about: "parent" };
  if (run.forked_from) return { id: run.forked_from, about: "forked here" };
  const repeated = run.origin?.repeats;
  return typeof repeated === "number" ? { id: repeated, about: "repeated here" } : null;
}

export function useRelatedRuns(run: Run): RelatedRuns {
  const origin = originOf(run);
  const above = useQuery({ queryKey: ["run", String(origin?.id)], queryFn: () => get<Run>(`/runs/${origin?.id}`), enabled: origin !== null, retry: false });
  const read = (query: { parent?: number; forked_from?: number }) => ({ queryKey: ["runs", query], queryFn: () => get<Page<RunLine>>("/runs", { ...query, limit: MAX_READ }), enabled: run.shape === "flow" });
  const children = useQuery(read({ parent: run.id }));
  const forks = useQuery(read({ forked_from: run.id }));
  return {
    above: origin && above.data ? [{ run: above.data, about: origin.about }] : [],
    children: children.data?.items ?? NONE,
    forks: forks.data?.items ?? NONE,
  };
}

const nameOf = (run: AnyRun) => `run ${run.id}`;

function box(run: AnyRun, about: string, until: number | null): Box {
  const isLive = until !== null && (run.ended_at === null || Date.parse(run.ended_at) / 1000 > until);
  return { name: nameOf(run), label: `r${run.id} ${run.workflow}`, state: isLive ? "running" : run.state, about, to: `/runs/${run.id}` };
}

/**
 * Boxes and edges to add to the graph of a run. `steps` are the steps by their work, `roots` the boxes that a run begins
 * with; with `until`, only what existed at that moment.
 */
export function drawRelated(run: Run, related: RelatedRuns, steps: Map<number, string>, roots: string[], until: number | null): { boxes: Box[]; edges: Edge[] } {
  const boxes: Box[] = [];
  const edges: Edge[] = [];
  const first = roots[0];
  for (const { run: other, about } of related.above) {
    boxes.push(box(other, about, until));
    for (const to of roots.slice(0, 3)) edges.push({ from: nameOf(other), to });
  }
  const existed = (other: RunLine) => until === null || Date.parse(other.created_at) / 1000 <= until;
  const groups = new Map<string, RunLine[]>();
  for (const child of related.children.filter(existed).reverse()) {
    const step = steps.get(child.parent_work ?? -1) ?? first;
    if (step === undefined) continue;
    const key = `${step}\n${child.workflow}`;
    groups.set(key, [...(groups.get(key) ?? []), child]);
  }
  for (const [key, members] of groups) {
    const [step = "", workflow = ""] = key.split("\n");
    if (members.length > MAX_BOXES) {
      const unfinished = members.filter((each) => LIVE_RUN_STATES.includes(each.state)).length;
      const name = `runs ${key}`;
      const state = unfinished > 0 ? "running" : members.some((each) => each.state !== "succeeded") ? "failed" : "succeeded";
      const total = related.children.length === MAX_READ ? `${count(members.length)} or more` : count(members.length);
      boxes.push({ name, label: `${total} runs of ${workflow}`, state, about: unfinished > 0 ? `${count(unfinished)} unfinished` : "children", to: `/runs?parent=${run.id}&workflow=${encodeURIComponent(workflow)}` });
      edges.push({ from: step, to: name });
      continue;
    }
    for (const child of members) {
      boxes.push(box(child, "child", until));
      edges.push({ from: step, to: nameOf(child) });
    }
  }
  const forks = related.forks.filter(existed);
  if (first !== undefined && forks.length > MAX_BOXES) {
    boxes.push({ name: "forks", label: `${count(forks.length)} forks`, state: "", about: "", to: `/runs?forked_from=${run.id}` });
    edges.push({ from: first, to: "forks" });
  } else if (first !== undefined) {
    for (const fork of forks) {
      boxes.push(box(fork, "fork", until));
      edges.push({ from: first, to: nameOf(fork) });
    }
  }
  return { boxes, edges };
}
