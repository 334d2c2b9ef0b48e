/** All pipelines as one graph, from sources to ends, and what a change of a file or a function would have built. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type CSSProperties, type FormEvent, lazy, Suspense, useMemo, useState } from "react";
import { get } from "../../api/client";
import type { Schemas } from "../../api/types";
import { importOrReload } from "../../app/lazy-import";
import { Link } from "../../app/router";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { ErrorMessage, Loading, LoadStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import type { Edge } from "../../components/graph/dag-edges";
import type { Box } from "../../components/graph/graph";
import { layoutGraph } from "../../components/graph/layout";
import { Fact, Panel } from "../../components/layout";
import { State } from "../../components/state";
import { PIPELINE_STATES } from "../../components/states";
import { duration } from "../../components/times";
import { StateCounts } from "./state-counts";
import { type ChangePreview, type LineageGraph, type LineageNode, pipelineUrl, REFRESH_MS } from "./types";

const Graph = lazy(() => importOrReload(() => import("../../components/graph/graph")));

/** The states of a stage that colour it, the most urgent first. */
const URGENT = ["needs_attention", "failed", "building", "needs_approval", "paused", "stale", "blocked", "orphan", "fresh"];

export function Lineage({ chosen, onChoose }: { chosen: string | null; onChoose: (node: string | null) => void }) {
  const [isFar, setFar] = useState(false);
  const found = useQuery({ queryKey: ["pipelines", "lineage"], queryFn: () => get<LineageGraph>("/lineage"), placeholderData: keepPreviousData, refetchInterval: REFRESH_MS });
  const { boxes, edges } = useMemo(() => drawn(found.data), [found.data]);
  const tall = useMemo(() => heightOf(boxes, edges), [boxes, edges]);
  const node = found.data?.nodes.find((each) => each.id === chosen) ?? null;
  return (
    <Panel title="Lineage" aside={<span className="faint">{found.data && `${plural(boxes.length, "node")}, from sources to ends`}</span>} className="lineage-panel">
      <LoadStatus query={found} lines={6} />
      {found.data && (
        <div className="lineage-page">
          <div className={`graph ${isFar ? "far" : ""}`} style={{ "--tall": `${tall}px` } as CSSProperties}>
            <Suspense fallback={<Loading lines={4} />}>
              <Graph label="Lineage of all pipelines" boxes={boxes} edges={edges} chosen={chosen} onChoose={onChoose} onFar={setFar} />
            </Suspense>
          </div>
          <div className="pad stack-small what-if">
            {node && <NodeFacts node={node} />}
            <WhatIf key={chosen ?? ""} node={node} />
          </div>
        </div>
      )}
    </Panel>
  );
}

function drawn(lineage: LineageGraph | undefined): { boxes: Box[]; edges: Edge[] } {
  const nodes = lineage?.nodes ?? [];
  return {
    boxes: nodes.map((node) => ({ name: node.id, state: stateOf(node), about: node.kind === "source" ? "" : aboutOf(node) })),
    edges: (lineage?.arrows ?? []).map(([from = "", to = ""]) => ({ from, to })),
  };
}

/** The pixels in which a graph can be shown in full size, with space above and below. */
function heightOf(boxes: Box[], edges: Edge[]): number {
  const tops = [...layoutGraph(boxes.map((box) => box.name), edges, 1).values()].map((place) => place.y);
  return tops.length === 0 ? 0 : Math.max(...tops) - Math.min(...tops) + 120;
}

/** The state that a node is coloured by: the most urgent of its states. */
function stateOf(node: LineageNode): string {
  if (node.kind === "source") return "source";
  return URGENT.find((state) => node.counts[state]) ?? "fresh";
}

function aboutOf(node: LineageNode): string {
  const all = PIPELINE_STATES.reduce((sum, state) => sum + (node.counts[state] ?? 0), 0);
  const shown = node.counts[stateOf(node)] ?? 0;
  return shown === all ? count(all) : `${count(shown)} of ${count(all)}`;
}

function NodeFacts({ node }: { node: LineageNode }) {
  return (
    <>
      <h3>{node.id}</h3>
      <dl className="facts">
        <Fact name={node.kind === "source" ? "Files" : "Makes"}><code>{node.output}</code></Fact>
        {node.pipeline && <Fact name="Pipeline"><Link to={pipelineUrl(node.pipeline)}>{node.pipeline}</Link></Fact>}
      </dl>
      {node.kind === "stage" && <StateCounts counts={node.counts} label={`States of ${node.id}`} />}
    </>
  );
}

/** Asks what a change of a function or a file would have built, and why a file is as it is or does not exist. */
function WhatIf({ node }: { node: LineageNode | null }) {
  const isStage = node?.kind === "stage";
  const [text, setText] = useState(isStage ? node.id : "");
  const [asked, setAsked] = useState(isStage ? node.id : "");
  const ask = (event: FormEvent) => {
    event.preventDefault();
    setAsked(text.trim());
  };
  return (
    <>
      <form className="row" onSubmit={ask}>
        <label htmlFor="what-if">What if this changes?</label>
        <input id="what-if" className="field mono grow" value={text} autoComplete="off" placeholder={node ? node.output : "FILE or PIPELINE/STAGE"} onChange={(event) => setText(event.target.value)} />
        <Button type="submit" disabled={text.trim() === ""}>
          Show
        </Button>
      </form>
      {asked && <Change what={asked} />}
    </>
  );
}

function Change({ what }: { what: string }) {
  const found = useQuery({ queryKey: ["pipelines", "change", what], queryFn: () => get<ChangePreview>("/lineage/change", { what }), retry: false });
  const why = useQuery({ queryKey: ["pipelines", "explain", what], queryFn: () => get<Schemas["Explanation"]>(`/explain/${what.split("/").map(encodeURIComponent).join("/")}`), retry: false, enabled: found.data?.kind === "state" });
  return (
    <div className="stack-small" role="region" aria-label={`A change of ${what}`}>
      {why.data && (
        <>
          <p><State state={why.data.state} /></p>
          <Explanation lines={why.data.why} />
        </>
      )}
      {found.error && <ErrorMessage error={found.error} />}
      {found.isPending && <Loading lines={2} />}
      {found.data && (
        <>
          <p>
            <b>{plural(found.data.states, "state")} would be built</b>
            {found.data.states > 0 && <span className="soft">; last time that took {duration(found.data.seconds)}, one after the other</span>}
          </p>
          <ul className="lineage">
            {found.data.parts.map((part) => (
              <li key={`${part.pipeline}/${part.stage}`}>
                <Link to={pipelineUrl(part.pipeline)}>{part.pipeline}</Link> / {part.stage}: {plural(part.states, "state")} <span className="faint">{duration(part.seconds)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
