/** The grid of a pipeline's states with filters and pages. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get } from "../../api/client";
import { useFilters } from "../../app/router";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { count } from "../../components/format";
import { Chips, Search } from "../../components/forms/filters";
import { Panel } from "../../components/layout";
import { Legend, StateGrid } from "./state-grid";
import { type Grid, NO_VARIABLES, type Pipeline, pipelineApi, REFRESH_MS } from "./types";

const PAGE_SIZE = 100;

export function GridPanel({ pipeline, chosen, onChoose }: { pipeline: Pipeline; chosen: { stage: string; entity: string } | null; onChoose: (stage: string, entity: string) => void }) {
  const [query, change] = useFilters();
  // A state that was opened by its address is in the grid of its stage.
  const own = chosen && (pipeline.stages.find((stage) => stage.name === chosen.stage)?.variables.join("/") || NO_VARIABLES);
  const filter = { by: query.get("by") ?? own, state: query.getAll("state"), text: query.get("text") ?? "", order: query.get("order") ?? "desc" };
  const cursor = query.get("cursor");
  const [trail, setTrail] = useState<string[]>([]);
  const found = useQuery({ queryKey: ["pipelines", pipeline.name, "grid", filter, cursor], queryFn: () => get<Grid>(`${pipelineApi(pipeline.name)}/grid`, { ...filter, cursor, limit: PAGE_SIZE }), placeholderData: keepPreviousData, refetchInterval: REFRESH_MS });
  const grid = found.data;
  const turn = (next: string | null, way: string[]) => {
    setTrail(way);
    change({ cursor: next });
  };
  const narrow = (changes: Record<string, string | string[] | null>) => {
    setTrail([]);
    change({ ...changes, cursor: null });
  };
  const filtered = filter.state.length > 0 || filter.text !== "";
  return (
    <Panel
      title="States"
      aside={
        grid && (
          <span className="faint">
            {grid.total === 0 ? "no entities" : `${count(grid.before + 1)}–${count(grid.before + grid.items.length)} of ${count(grid.total)}`}
          </span>
        )
      }
      className="grid-panel"
    >
      <div className="filters pad">
        <Legend counts={pipeline.counts} value={filter.state} onChange={(state) => narrow({ state })} />
        <Search label="Entity" value={filter.text} onChange={(text) => narrow({ text })} />
        <Chips label="Order" options={[{ value: "desc", label: "descending" }, { value: "asc", label: "ascending" }]} value={[filter.order]} onChange={(next) => narrow({ order: next.at(-1) === "asc" ? "asc" : null })} />
        {grid && grid.groups.length > 1 && (
          <Chips label="Group by" options={grid.groups.map((each) => ({ value: each.by, label: `${each.by === NO_VARIABLES ? each.stages.join(", ") : `by ${each.by}`} (${count(each.entities)})` }))} value={[grid.by]} onChange={(next) => narrow({ by: next.find((each) => each !== grid.by) ?? grid.by, stage: null, entity: null })} />
        )}
      </div>
      <LoadStatus query={found} lines={8} />
      {grid && grid.items.length === 0 && !found.error && (
        filtered ? (
          <Empty title="No entities match these filters">
            <Button kind="quiet" onClick={() => narrow({ state: null, text: null })}>
              Clear the filters
            </Button>
          </Empty>
        ) : (
          <Empty title="No input files yet">
            No file matches {pipeline.stages[0]?.inputs.map((input, index) => <span key={input}>{index > 0 && " or "}<code>{input}</code></span>)} in <code>{pipeline.place}</code>. States appear here when such a file exists.
          </Empty>
        )
      )}
      {grid && grid.items.length > 0 && (
        <div className={`scroll states-scroll ${found.isPlaceholderData ? "waiting" : ""}`} role="region" aria-label="Grid of states" tabIndex={0}>
          <StateGrid grid={grid} chosen={chosen} onChoose={onChoose} />
        </div>
      )}
      {grid && (grid.next || grid.before > 0) && (
        <div className="more row">
          <Button disabled={grid.before === 0} onClick={() => turn(trail.at(-1) || null, trail.slice(0, -1))}>
            Previous
          </Button>
          <Button disabled={!grid.next} onClick={() => turn(grid.next, [...trail, cursor ?? ""])}>
            Next {count(Math.min(PAGE_SIZE, Math.max(0, grid.total - grid.before - grid.items.length)))}
          </Button>
        </div>
      )}
    </Panel>
  );
}
