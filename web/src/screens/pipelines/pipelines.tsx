/** The list of pipelines. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { List } from "../../api/types";
import { Link, useFilters } from "../../app/router";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { bytes } from "../../components/format";
import { PageHeader, Panel } from "../../components/layout";
import { PipelineStatus, Problems } from "./pipeline-status";
import { Lineage } from "./lineage";
import "./pipelines.css";
import { StateCounts } from "./state-counts";
import { Legend } from "./state-grid";
import { type Pipeline, pipelineUrl, REFRESH_MS } from "./types";


export function Pipelines() {
  const [query, change] = useFilters();
  const found = useQuery({ queryKey: ["pipelines", "list"], queryFn: () => get<List<Pipeline> & { problems: string[] }>("/pipelines"), refetchInterval: REFRESH_MS });
  const states = query.getAll("state");
  const all = found.data?.items ?? [];
  const shown = states.length === 0 ? all : all.filter((pipeline) => states.some((each) => pipeline.counts[each]));
  const counts: Record<string, number> = {};
  for (const pipeline of all) for (const [each, number] of Object.entries(pipeline.counts)) counts[each] = (counts[each] ?? 0) + number;
  const urlOf = (name: string) => pipelineUrl(name) + (states.length ? `?${states.map((each) => `state=${each}`).join("&")}` : "");
  return (
    <>
      <PageHeader title="Pipelines" subtitle="The states that pipelines build: which are up to date, which are not, and why." />
      <LoadStatus query={found} />
      {found.data && <Problems problems={found.data.problems} title="Some workflow files cannot be used" />}
      {found.data && found.data.problems.length > 0 && (
        <p className="below">
          <Link to="/editor">Correct them in the editor</Link>
        </p>
      )}
      {found.data && all.length === 0 && (
        <Panel>
          <Empty title="No pipelines yet">
            Declare what to build with <code>Pipeline("blog", root="output/")</code> and <code>@blog.stage(input=…, output=…)</code>, add it with <code>app.pipeline(blog)</code>, and start it with <code>tidemill up</code>.
          </Empty>
        </Panel>
      )}
      {all.length > 0 && <Lineage chosen={query.get("node")} onChoose={(node) => change({ node })} />}
      {all.length > 0 && (
        <div className="filters">
          <Legend counts={counts} value={states} onChange={(next) => change({ state: next })} />
        </div>
      )}
      {all.length > 0 && shown.length === 0 && (
        <Panel>
          <Empty title="No pipeline has such states">
            <Button kind="quiet" onClick={() => change({ state: null })}>
              Clear the filters
            </Button>
          </Empty>
        </Panel>
      )}
      <div className="cards">
        {shown.map((pipeline) => (
          <Panel key={pipeline.name} title={<Link to={urlOf(pipeline.name)}>{pipeline.name}</Link>} aside={<PipelineStatus pipeline={pipeline} />}>
            <div className="pad stack-small">
              <StateCounts counts={pipeline.counts} label={`States of ${pipeline.name}`} />
              <Problems problems={pipeline.problems} />
              <span className="soft">
                {pipeline.stages.map((stage) => stage.name).join(" → ")}
              </span>
            </div>
            <div className="card-foot">
              <span>
                {bytes(pipeline.bytes)} in <code>{pipeline.place}</code>
              </span>
              <Link to={urlOf(pipeline.name)}>Show states</Link>
            </div>
          </Panel>
        ))}
      </div>
    </>
  );
}
