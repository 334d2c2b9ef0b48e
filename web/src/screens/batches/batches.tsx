/** Batches: jobs that are followed and cancelled as one. */
import { useMemo } from "react";
import { post } from "../../api/client";
import type { Batch } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { count } from "../../components/format";
import { Chips, Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { Meter, PageHeader } from "../../components/layout";
import { type Column, ListPanel } from "../../components/lists/list-panel";
import { usePages } from "../../components/lists/paging";
import { Count } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { toneOf } from "../../components/states";
import { Ago, Took } from "../../components/times";

const STATES = ["running", "succeeded", "failed", "cancelled"];

const COLUMNS: Column<Batch>[] = [
  { name: "Batch", cell: (batch) => <Link to={`/batches/${batch.id}`}>b{batch.id}</Link> },
  { name: "State", cell: (batch) => <State state={batch.state} /> },
  {
    name: "Name",
    kind: "name",
    cell: (batch) => (
      <div className="name-cell" title={batch.name ?? ""}>
        <span className="cut">{batch.name}</span> {batch.is_open && <Tag>open</Tag>} {batch.run_id !== null && <Link to={`/runs/${batch.run_id}`}>r{batch.run_id}</Link>}
      </div>
    ),
  },
  {
    name: "Progress",
    cell: (batch) => (
      <span className="progress">
        <Meter value={batch.total ? 1 - batch.unfinished / batch.total : batch.ended_at ? 1 : 0} tone={toneOf(batch.state)} label={`Progress of batch b${batch.id}`} />
      </span>
    ),
  },
  { name: "Jobs", kind: "num", cell: (batch) => count(batch.total) },
  { name: "Unfinished", kind: "num", cell: (batch) => <Count value={batch.unfinished} /> },
  { name: "Failed", kind: "num", cell: (batch) => <Count value={batch.failed} to={`/jobs?batch=${batch.id}&state=failed`} /> },
  { name: "Created", kind: "nowrap", cell: (batch) => <Ago at={batch.created_at} /> },
  { name: "Duration", kind: "nowrap", cell: (batch) => <Took from={batch.created_at} to={batch.ended_at} /> },
];

export function Batches() {
  const [query, change] = useFilters();
  const may = useMay("operator");
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    return { state: found.get("state") ?? undefined, name: found.get("name") ?? undefined, ...timeRange(found) };
  }, [text]);
  const { state } = filter;
  const pages = usePages<Batch>("batches", "/batches", filter);
  const cancel = useAction<{ ids: number[]; clear: () => void }, Batch[]>({
    request: ({ ids }) => Promise.all(ids.map((id) => post<Batch>(`/batches/${id}/cancel`))),
    message: (_, { ids }) => `Cancelled ${ids.length === 1 ? "1 batch" : `${count(ids.length)} batches`}: waiting jobs at once, running ones are asked to stop.`,
    onSuccess: (_, { clear }) => clear(),
  });
  return (
    <>
      <PageHeader title="Batches" subtitle="Jobs that are followed and cancelled as one, and how many of them have ended." />
      <div className="filters">
        <Chips label="State" options={STATES.map((value) => ({ value, tone: toneOf(value) }))} value={state ? [state] : []} onChange={(next) => change({ state: next.at(-1) ?? null })} />
        <Search label="Name" value={filter.name ?? ""} onChange={(name) => change({ name })} />
        <TimeFilter query={query} onChange={change} />
      </div>
      <ListPanel
        what="batches"
        pages={pages}
        columns={COLUMNS}
        may={may}
        filtered={text !== ""}
        empty={
          <>
            Enqueue one in Python with <code>await app.batch(calls)</code>, or on the command line with <code>tidemill batch enqueue</code>.
          </>
        }
        actions={(ids, clear) => (
          <Button kind="danger" busy={cancel.isPending} onClick={() => cancel.mutate({ ids, clear })}>
            Cancel
          </Button>
        )}
      />
    </>
  );
}
