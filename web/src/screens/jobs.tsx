/** Jobs: all of them, unfinished and finished, with filters in the address and actions on many. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { type Column, Listing, Note } from "../parts/listing";
import { BulkDialog, inWords, usePages } from "../parts/lists";
import { Button, Chips, count, Head, Meter, Search, State, Tag, toneOf } from "../parts/ui";
import { Views } from "../parts/views";
import { Link, useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { Done, JobLine, List, Queue } from "../types";
import { Enqueue } from "./enqueue";

const STATES = ["ready", "gated", "unrouted", "running", "succeeded", "failed", "cancelled", "expired"];

export const told = (verb: string) => (result: Done) =>
  `${verb}: ${count(result.done)} done${result.asked ? `, ${count(result.asked)} ${verb === "Retry" ? "enqueued anew" : "asked to stop"}` : ""}${result.unchanged ? `, ${count(result.unchanged)} unchanged` : ""}.`;

const COLUMNS: Column<JobLine>[] = [
  { name: "Job", cell: (job) => <Link to={`/jobs/${job.id}`}>{job.id}</Link> },
  { name: "State", cell: (job) => <State state={job.state} /> },
  {
    name: "Task",
    kind: "nowrap",
    cell: (job) => (
      <>
        {job.task} {job.tags?.map((tag) => <Tag key={tag}>{tag}</Tag>)}
      </>
    ),
  },
  { name: "Queue", cell: (job) => job.queue },
  { name: "Attempt", kind: "num", cell: (job) => job.attempt || "" },
  { name: "Created", kind: "nowrap", cell: (job) => <Ago at={job.created_at} /> },
  { name: "Took", kind: "nowrap", cell: (job) => (job.state === "running" || job.finished_at ? <Took from={job.started_at} to={job.finished_at} /> : <span className="faint">–</span>) },
  {
    name: "Note",
    cell: (job) => {
      const progress = job.state === "running" ? job.progress : null;
      return (
        (progress !== null || job.note) && (
          <Note title={job.note ?? ""}>
            {progress !== null && (
              <span className="progress">
                <Meter value={progress} label={`Progress of job ${job.id}`} />
              </span>
            )}{" "}
            {job.note}
          </Note>
        )
      );
    },
  },
];

export function Jobs() {
  const [query, change] = useFilters();
  const may = useMay("operate");
  const [bulk, setBulk] = useState<"cancel" | "retry" | null>(null);
  const [adding, setAdding] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const word = (name: string) => found.get(name) ?? undefined;
    return { state: found.getAll("state"), queue: word("queue"), task: word("task"), tag: word("tag"), key: word("key"), run: found.get("run") ? Number(found.get("run")) : undefined };
  }, [text]);
  const pages = usePages<JobLine>("jobs", "/jobs", filter);
  const queues = useQuery({ queryKey: ["queues"], queryFn: () => get<List<Queue>>("/queues") });
  const act = useAction<{ verb: "cancel" | "retry"; ids: number[]; clear: () => void }, Done>({
    act: ({ verb, ids }) => post<Done>(`/jobs/${verb}`, { ids }),
    told: (result, { verb }) => told(verb === "retry" ? "Retry" : "Cancel")(result),
    then: (_, { clear }) => clear(),
  });
  return (
    <>
      <Head title="Jobs" under="Every job, the newest first: waiting, running and ended.">
        {may && (
          <>
            <Button onClick={() => setBulk("retry")}>Retry all that match …</Button>
            <Button onClick={() => setBulk("cancel")}>Cancel all that match …</Button>
            <Button kind="main" onClick={() => setAdding(true)}>
              Enqueue a job
            </Button>
          </>
        )}
      </Head>
      <div className="filters">
        <Chips label="State" options={STATES.map((value) => ({ value, tone: toneOf(value) }))} value={filter.state} onChange={(state) => change({ state })} />
        <Search label="Queue" value={filter.queue ?? ""} list={queues.data?.items.map((queue) => queue.name)} onChange={(queue) => change({ queue })} />
        <Search label="Task" value={filter.task ?? ""} onChange={(task) => change({ task })} />
        <Search label="Tag" value={filter.tag ?? ""} onChange={(tag) => change({ tag })} />
        <Search label="Key" value={filter.key ?? ""} onChange={(key) => change({ key })} />
        {filter.run !== undefined && (
          <Button kind="quiet" onClick={() => change({ run: null })}>
            of run r{filter.run} ✕
          </Button>
        )}
        <Views screen="/jobs" />
      </div>
      <Listing
        what="jobs"
        pages={pages}
        columns={COLUMNS}
        may={may}
        filtered={text !== ""}
        empty={
          <>
            Enqueue one from a program with <code>await app.enqueue(task, …)</code>, from a terminal with <code>tidemill enqueue</code>, or here.
          </>
        }
        actions={(ids, clear) => (
          <>
            <Button busy={act.isPending} onClick={() => act.mutate({ verb: "retry", ids, clear })}>
              Retry
            </Button>
            <Button kind="danger" busy={act.isPending} onClick={() => act.mutate({ verb: "cancel", ids, clear })}>
              Cancel
            </Button>
          </>
        )}
      />
      {bulk && (
        <BulkDialog<Done>
          verb={bulk}
          what="jobs"
          path={`/jobs/${bulk}`}
          filter={filter}
          filtered={inWords(filter)}
          told={told(bulk === "retry" ? "Retry" : "Cancel")}
          danger={bulk === "cancel"}
          note={<p className="soft">{bulk === "retry" ? "Failed jobs run again as new jobs; what runs or has succeeded is left alone." : "Waiting jobs end at once; running ones as soon as their task lets them."}</p>}
          onClose={() => setBulk(null)}
        />
      )}
      {adding && <Enqueue onClose={() => setAdding(false)} />}
    </>
  );
}
