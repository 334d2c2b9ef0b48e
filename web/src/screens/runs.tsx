/** Runs of all shapes in one list, with filters in the address, views that are kept, and actions on many. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { type Column, Listing, Note } from "../parts/listing";
import { BulkDialog, inWords, usePages } from "../parts/lists";
import { Button, Chips, count, Head, RunState, Search, Tag, toneOf } from "../parts/ui";
import { Views } from "../parts/views";
import { Link, useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { Declared, List, RunLine } from "../types";
import { StartRun } from "./enqueue";

const STATES = ["running", "parked", "succeeded", "failed", "timed_out", "cancelled"];

interface Asked {
  count: number;
  ids: number[];
  unchanged: number;
}

const told = (result: Asked) => `${count(result.count)} runs were asked to end${result.unchanged ? `, ${count(result.unchanged)} had ended already` : ""}.`;

const COLUMNS: Column<RunLine>[] = [
  { name: "Run", cell: (run) => <Link to={`/runs/${run.id}`}>r{run.id}</Link> },
  { name: "State", cell: (run) => <RunState state={run.state} asks={run.asks > 0} /> },
  {
    name: "Workflow",
    kind: "nowrap",
    cell: (run) => (
      <>
        {run.workflow} {run.key && <Tag>{run.key}</Tag>} {run.forked_from && <Tag>fork of r{run.forked_from}</Tag>}
      </>
    ),
  },
  { name: "Shape", kind: "soft", cell: (run) => run.shape },
  { name: "Ticks", kind: "num", cell: (run) => count(run.ticks) },
  { name: "Started", kind: "nowrap", cell: (run) => <Ago at={run.created_at} /> },
  { name: "Took", kind: "nowrap", cell: (run) => <Took from={run.created_at} to={run.ended_at} /> },
  { name: "Note", cell: (run) => {
      const note = run.note ?? (run.state === "running" && !run.owned && !run.awake && !run.asks ? "waits for an event, a timer or its jobs" : "");
      return note && <Note title={note}>{note}</Note>;
    } },
];

export function Runs() {
  const [query, change] = useFilters();
  const may = useMay("operate");
  const [ending, setEnding] = useState(false);
  const [starting, setStarting] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const number = (name: string) => (found.get(name) ? Number(found.get(name)) : undefined);
    const word = (name: string) => found.get(name) ?? undefined;
    return { state: found.getAll("state"), shape: word("shape"), workflow: word("workflow"), key: word("key"), parent: number("parent"), forked_from: number("forked_from") };
  }, [text]);
  const bulk = useMemo(() => ({ state: filter.state.filter((state) => state === "running" || state === "parked"), shape: filter.shape, workflow: filter.workflow, parent: filter.parent }), [filter]);
  const pages = usePages<RunLine>("runs", "/runs", filter);
  const declared = useQuery({ queryKey: ["workflows"], queryFn: () => get<List<Declared>>("/workflows") });
  const cancel = useAction<{ ids: number[]; clear: () => void }, Asked>({ act: ({ ids }) => post<Asked>("/runs/cancel", { ids }), told, then: (_, { clear }) => clear() });
  return (
    <>
      <Head title="Runs" under="Flows and dags in one list, the newest first.">
        {may && (
          <>
            <Button onClick={() => setEnding(true)}>Cancel all that match …</Button>
            <Button kind="main" onClick={() => setStarting(true)}>
              Start a run
            </Button>
          </>
        )}
      </Head>
      <div className="filters">
        <Chips label="State" options={STATES.map((value) => ({ value, tone: toneOf(value) }))} value={filter.state} onChange={(state) => change({ state })} />
        <Chips label="Shape" options={[{ value: "flow" }, { value: "dag" }]} value={filter.shape ? [filter.shape] : []} onChange={(shape) => change({ shape: shape.at(-1) ?? null })} />
        <Search label="Workflow" value={filter.workflow ?? ""} list={declared.data?.items.map((each) => each.name)} onChange={(workflow) => change({ workflow })} />
        <Search label="Key" value={filter.key ?? ""} onChange={(key) => change({ key })} />
        {filter.parent !== undefined && (
          <Button kind="quiet" onClick={() => change({ parent: null })}>
            children of r{filter.parent} ✕
          </Button>
        )}
        {filter.forked_from !== undefined && (
          <Button kind="quiet" onClick={() => change({ forked_from: null })}>
            forks of r{filter.forked_from} ✕
          </Button>
        )}
        <Views screen="/runs" />
      </div>
      <Listing
        what="runs"
        pages={pages}
        columns={COLUMNS}
        may={may}
        filtered={text !== ""}
        empty={
          <>
            Declare a flow with <code>@app.workflow</code> or a dag with <code>app.dag(…)</code>, and start it with <code>await app.start(…)</code>, or here.
          </>
        }
        actions={(ids, clear) => (
          <Button kind="danger" busy={cancel.isPending} onClick={() => cancel.mutate({ ids, clear })}>
            Cancel
          </Button>
        )}
      />
      {ending && (
        <BulkDialog<Asked> verb="cancel" what="runs" path="/runs/cancel" filter={bulk} filtered={inWords(bulk)} told={told} danger note={<p className="soft">Only runs that are running or parked can be cancelled.</p>} onClose={() => setEnding(false)} />
      )}
      {starting && <StartRun onClose={() => setStarting(false)} />}
    </>
  );
}
