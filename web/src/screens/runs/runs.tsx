/** Runs of flows and dags in one list, with filters in the URL, saved filters and bulk actions. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../../api/client";
import type { Declared, List, RunLine } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { count, plural } from "../../components/format";
import { Chips, completeArguments, Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { PageHeader } from "../../components/layout";
import { BulkDialog, describeFilter } from "../../components/lists/bulk-dialog";
import { type Column, ListPanel, Note } from "../../components/lists/list-panel";
import { usePages } from "../../components/lists/paging";
import { SavedFilters } from "../../components/lists/saved-filters";
import { RunState, Tag } from "../../components/state";
import { RUN_STATES, toneOf } from "../../components/states";
import { Ago, Took } from "../../components/times";
import { FlowVersions } from "./flow-versions";
import { StartRunDialog } from "./start-run-dialog";

interface CancelResult {
  count: number;
  ids: number[];
  unchanged: number;
}

const cancelMessage = (result: CancelResult) => `${plural(result.count, "run")} asked to stop${result.unchanged ? `, ${count(result.unchanged)} already finished` : ""}.`;

const COLUMNS: Column<RunLine>[] = [
  { name: "Run", cell: (run) => <Link to={`/runs/${run.id}`}>r{run.id}</Link> },
  { name: "State", cell: (run) => <RunState state={run.state} asks={run.asks > 0} /> },
  {
    name: "Workflow",
    kind: "name",
    cell: (run) => (
      <div className="name-cell" title={run.workflow}>
        <span className="cut">{run.workflow}</span> {run.key && <Tag>{run.key}</Tag>} {run.forked_from && <Tag>fork of r{run.forked_from}</Tag>}
      </div>
    ),
  },
  { name: "Shape", kind: "soft", cell: (run) => run.shape },
  { name: "Ticks", kind: "num", cell: (run) => count(run.ticks) },
  { name: "Started", kind: "nowrap", cell: (run) => <Ago at={run.created_at} /> },
  { name: "Duration", kind: "nowrap", cell: (run) => <Took from={run.created_at} to={run.ended_at} /> },
  { name: "Note", cell: (run) => {
      const note = run.note ?? (run.state === "running" && !run.owned && !run.awake && !run.asks ? "waiting for an event, a timer or its jobs" : "");
      return note && <Note title={note}>{note}</Note>;
    } },
];

export function Runs() {
  const [query, change] = useFilters();
  const may = useMay("operator");
  const [cancelling, setCancelling] = useState(false);
  const [starting, setStarting] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const number = (name: string) => (found.get(name) ? Number(found.get(name)) : undefined);
    const word = (name: string) => found.get(name) ?? undefined;
    return { state: found.getAll("state"), shape: word("shape"), workflow: word("workflow"), key: word("key"), parent: number("parent"), forked_from: number("forked_from"), tag: word("tag"), arg: completeArguments(found), error: word("error"), ...timeRange(found) };
  }, [text]);
  const pages = usePages<RunLine>("runs", "/runs", filter);
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows") });
  const cancel = useAction<{ ids: number[]; clear: () => void }, CancelResult>({ request: ({ ids }) => post<CancelResult>("/runs/cancel", { ids }), message: cancelMessage, onSuccess: (_, { clear }) => clear() });
  return (
    <>
      <PageHeader title="Runs" subtitle="All runs of flows and dags, newest first.">
        {may && (
          <>
            <Button onClick={() => setCancelling(true)}>Cancel all matching …</Button>
            <Button kind="main" onClick={() => setStarting(true)}>
              Start a run
            </Button>
          </>
        )}
      </PageHeader>
      <div className="filters">
        <Chips label="State" options={RUN_STATES.map((value) => ({ value, tone: toneOf(value) }))} value={filter.state} onChange={(state) => change({ state })} />
        <Chips label="Shape" options={[{ value: "flow" }, { value: "dag" }]} value={filter.shape ? [filter.shape] : []} onChange={(shape) => change({ shape: shape.at(-1) ?? null })} />
        <SavedFilters screen="/runs" />
      </div>
      <div className="filters">
        <Search label="Workflow" value={filter.workflow ?? ""} list={declared.data?.items.map((each) => each.name)} onChange={(workflow) => change({ workflow })} />
        <Search label="Key" value={filter.key ?? ""} onChange={(key) => change({ key })} />
        <Search label="Tag" value={filter.tag ?? ""} onChange={(tag) => change({ tag })} />
        <Search label="Argument: day=monday" value={query.get("arg") ?? ""} onChange={(arg) => change({ arg })} />
        <Search label="Error text" value={filter.error ?? ""} onChange={(error) => change({ error })} />
        <TimeFilter query={query} onChange={change} />
        {filter.parent !== undefined && (
          <Button kind="quiet" onClick={() => change({ parent: null })}>
            Children of r{filter.parent} ✕
          </Button>
        )}
        {filter.forked_from !== undefined && (
          <Button kind="quiet" onClick={() => change({ forked_from: null })}>
            Forks of r{filter.forked_from} ✕
          </Button>
        )}
      </div>
      {filter.workflow && declared.data?.items.some((each) => each.name === filter.workflow && each.shape === "flow") && <FlowVersions workflow={filter.workflow} may={may} />}
      <ListPanel
        what="runs"
        pages={pages}
        columns={COLUMNS}
        may={may}
        filtered={text !== ""}
        empty={
          <>
            Declare a flow with <code>@app.workflow</code> or a dag with <code>app.dag(…)</code>, and start it with <code>await app.start(…)</code> or with the button above.
          </>
        }
        actions={(ids, clear) => (
          <Button kind="danger" busy={cancel.isPending} onClick={() => cancel.mutate({ ids, clear })}>
            Cancel
          </Button>
        )}
      />
      {cancelling && (
        <BulkDialog<CancelResult> verb="cancel" what="runs" path="/runs/cancel" filter={filter} filtered={describeFilter(filter)} message={cancelMessage} danger note={<p className="soft">Only runs that have not finished can be cancelled.</p>} onClose={() => setCancelling(false)} />
      )}
      {starting && <StartRunDialog onClose={() => setStarting(false)} />}
    </>
  );
}
