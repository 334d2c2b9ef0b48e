/** All jobs, with filters in the URL and bulk actions. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../../api/client";
import type { Done, JobLine, List, Queue } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { argumentsText, plural } from "../../components/format";
import { Chips, completeArguments, Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { Meter, PageHeader } from "../../components/layout";
import { BulkDialog, describeFilter } from "../../components/lists/bulk-dialog";
import { type Column, ListPanel, Note } from "../../components/lists/list-panel";
import { usePages } from "../../components/lists/paging";
import { SavedFilters } from "../../components/lists/saved-filters";
import { State, Tag } from "../../components/state";
import { JOB_STATES, toneOf, WAITING_JOB_STATES } from "../../components/states";
import { Ago, Took, useNow } from "../../components/times";
import { EnqueueDialog } from "./enqueue-dialog";

/** The toast after cancelling or retrying jobs. */
export const resultMessage = (verb: "cancel" | "retry") => (result: Done) => {
  const parts = verb === "retry" ? [result.done && `${plural(result.done, "job")} made ready to run`, result.asked && `${plural(result.asked, "new job")} enqueued`] : [result.done && `${plural(result.done, "job")} cancelled`, result.asked && `${plural(result.asked, "running job")} asked to stop`];
  const text = [...parts, result.unchanged && `${plural(result.unchanged, "job")} unchanged`].filter(Boolean).join(", ");
  return text ? `${text[0]?.toUpperCase()}${text.slice(1)}.` : "No job was changed.";
};

/** The state of a job; a ready one that is not due yet says when it is. */
export function JobState({ job }: { job: JobLine }) {
  const isEarly = Date.parse(job.due_at) > useNow() + 1000 && WAITING_JOB_STATES.includes(job.state);
  return (
    <>
      <State state={job.state} about={isEarly ? "not due yet" : undefined} />{" "}
      {isEarly && <span className="faint nowrap">due <Ago at={job.due_at} /></span>}
    </>
  );
}

const COLUMNS: Column<JobLine>[] = [
  { name: "Job", cell: (job) => <Link to={`/jobs/${job.id}`}>{job.id}</Link> },
  { name: "State", cell: (job) => <JobState job={job} /> },
  {
    name: "Task",
    kind: "name",
    cell: (job) => (
      <div className="name-cell" title={job.task}>
        <span className="cut">{job.task}</span> {job.arguments && job.arguments !== "{}" && <span className="cut faint arguments" title={job.arguments}>{argumentsText(job.arguments)}</span>} {job.tags?.map((tag) => <Tag key={tag}>{tag}</Tag>)}
      </div>
    ),
  },
  { name: "Queue", cell: (job) => job.queue },
  { name: "Attempt", kind: "num", cell: (job) => job.attempt || "" },
  { name: "Created", kind: "nowrap", cell: (job) => <Ago at={job.created_at} /> },
  { name: "Duration", kind: "nowrap", cell: (job) => (job.state === "running" || job.finished_at ? <Took from={job.started_at} to={job.finished_at} /> : <span className="faint">–</span>) },
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
  const may = useMay("operator");
  const [bulk, setBulk] = useState<"cancel" | "retry" | null>(null);
  const [adding, setAdding] = useState(false);
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const word = (name: string) => found.get(name) ?? undefined;
    return { state: found.getAll("state"), queue: word("queue"), task: word("task"), tag: word("tag"), key: word("key"), run: found.get("run") ? Number(found.get("run")) : undefined, batch: found.get("batch") ? Number(found.get("batch")) : undefined, arg: completeArguments(found), error: word("error"), ...timeRange(found) };
  }, [text]);
  const pages = usePages<JobLine>("jobs", "/jobs", filter);
  const queues = useQuery({ queryKey: ["queues"], queryFn: () => get<List<Queue>>("/queues") });
  const act = useAction<{ verb: "cancel" | "retry"; ids: number[]; clear: () => void }, Done>({
    request: ({ verb, ids }) => post<Done>(`/jobs/${verb}`, { ids }),
    message: (result, { verb }) => resultMessage(verb)(result),
    onSuccess: (_, { clear }) => clear(),
  });
  return (
    <>
      <PageHeader title="Jobs" subtitle="All jobs, newest first: waiting, running and finished.">
        {may && (
          <>
            <Button onClick={() => setBulk("retry")}>Retry all matching …</Button>
            <Button onClick={() => setBulk("cancel")}>Cancel all matching …</Button>
            <Button kind="main" onClick={() => setAdding(true)}>
              Enqueue a job
            </Button>
          </>
        )}
      </PageHeader>
      <div className="filters">
        <Chips label="State" options={JOB_STATES.map((value) => ({ value, tone: toneOf(value) }))} value={filter.state} onChange={(state) => change({ state })} />
        <SavedFilters screen="/jobs" />
      </div>
      <div className="filters">
        <Search label="Queue" value={filter.queue ?? ""} list={queues.data?.items.map((queue) => queue.name)} onChange={(queue) => change({ queue })} />
        <Search label="Task" value={filter.task ?? ""} onChange={(task) => change({ task })} />
        <Search label="Tag" value={filter.tag ?? ""} onChange={(tag) => change({ tag })} />
        <Search label="Key" value={filter.key ?? ""} onChange={(key) => change({ key })} />
        <Search label="Argument: order_id=7" value={query.get("arg") ?? ""} onChange={(arg) => change({ arg })} />
        <Search label="Error text" value={filter.error ?? ""} onChange={(error) => change({ error })} />
        <TimeFilter query={query} onChange={change} />
        {filter.run !== undefined && (
          <Button kind="quiet" onClick={() => change({ run: null })}>
            Run r{filter.run} ✕
          </Button>
        )}
        {filter.batch !== undefined && (
          <Button kind="quiet" onClick={() => change({ batch: null })}>
            Batch b{filter.batch} ✕
          </Button>
        )}
      </div>
      <ListPanel
        what="jobs"
        pages={pages}
        columns={COLUMNS}
        may={may}
        filtered={text !== ""}
        empty={
          <>
            Enqueue a job in Python with <code>await app.enqueue(…)</code>, on the command line with <code>tidemill enqueue</code>, or with the button above.
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
          filtered={describeFilter(filter)}
          message={resultMessage(bulk)}
          danger={bulk === "cancel"}
          note={<p className="soft">{bulk === "retry" ? "Failed jobs are enqueued again as new jobs. Running and succeeded jobs are not changed." : "Waiting jobs are cancelled at once. Running jobs are asked to stop."}</p>}
          onClose={() => setBulk(null)}
        />
      )}
      {adding && <EnqueueDialog onClose={() => setAdding(false)} />}
    </>
  );
}
