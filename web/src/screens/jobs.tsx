/** Jobs: all of them, unfinished and finished, with filters in the address and actions on many. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { BulkDialog, inWords, MoreRows, useChosen, usePages, useRowKeys } from "../parts/lists";
import { Button, Chips, count, Empty, Head, Loading, Meter, Panel, Search, State, Tag, toneOf, Trouble } from "../parts/ui";
import { go, Link, useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { Done, JobLine, List, Queue } from "../types";
import { Enqueue } from "./enqueue";

const STATES = ["ready", "gated", "unrouted", "running", "succeeded", "failed", "cancelled", "expired"];

export const told = (verb: string) => (result: Done) =>
  `${verb}: ${count(result.done)} done${result.asked ? `, ${count(result.asked)} ${verb === "Retry" ? "enqueued anew" : "asked to stop"}` : ""}${result.unchanged ? `, ${count(result.unchanged)} unchanged` : ""}.`;

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
  const ids = useMemo(() => pages.rows.map((job) => job.id), [pages.rows]);
  const chosen = useChosen(ids);
  const at = useRowKeys(ids, (id) => go(`/jobs/${id}`), chosen.toggle);
  const act = useAction<"cancel" | "retry", Done>({
    act: (verb) => post<Done>(`/jobs/${verb}`, { ids: chosen.ids }),
    told: (result, verb) => told(verb === "retry" ? "Retry" : "Cancel")(result),
    then: chosen.clear,
  });
  const isFiltered = text !== "";
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
      </div>
      {pages.error && <Trouble error={pages.error} retry={() => void pages.refetch()} />}
      <Panel>
        {pages.isPending ? (
          <Loading lines={10} />
        ) : pages.rows.length === 0 ? (
          isFiltered ? (
            <Empty title="No job matches">
              <Button kind="quiet" onClick={() => go("/jobs")}>
                Show all jobs
              </Button>
            </Empty>
          ) : (
            <Empty title="No jobs yet">
              Enqueue one from a program with <code>await app.enqueue(task, …)</code>, from a terminal with <code>tidemill enqueue</code>, or here.
            </Empty>
          )
        ) : (
          <div className="scroll" tabIndex={0} role="region" aria-label="Jobs">
            <table>
              <thead>
                <tr>
                  {may && (
                    <th>
                      <input type="checkbox" aria-label="Choose all" checked={chosen.all} onChange={chosen.toggleAll} />
                    </th>
                  )}
                  <th>Job</th>
                  <th>State</th>
                  <th>Task</th>
                  <th>Queue</th>
                  <th className="num">Attempt</th>
                  <th>Created</th>
                  <th>Took</th>
                  <th>Note</th>
                </tr>
              </thead>
              <tbody>
                {pages.rows.map((job) => (
                  <tr key={job.id} data-row={job.id} aria-selected={at === job.id || chosen.has(job.id)}>
                    {may && (
                      <td>
                        <input type="checkbox" aria-label={`Choose job ${job.id}`} checked={chosen.has(job.id)} onChange={() => chosen.toggle(job.id)} />
                      </td>
                    )}
                    <td>
                      <Link to={`/jobs/${job.id}`}>{job.id}</Link>
                    </td>
                    <td>
                      <State state={job.state} />
                    </td>
                    <td className="nowrap">
                      {job.task} {job.tags?.map((tag) => <Tag key={tag}>{tag}</Tag>)}
                    </td>
                    <td>{job.queue}</td>
                    <td className="num">{job.attempt || ""}</td>
                    <td className="nowrap">
                      <Ago at={job.created_at} />
                    </td>
                    <td className="nowrap">{job.state === "running" || job.finished_at ? <Took from={job.started_at} to={job.finished_at} /> : <span className="faint">–</span>}</td>
                    <td>
                      <div className="cut note" title={job.note ?? ""}>
                        {job.progress !== null && job.state === "running" && (
                          <span className="progress">
                            <Meter value={job.progress} label={`Progress of job ${job.id}`} />
                          </span>
                        )}{" "}
                        {job.note}
                      </div>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <MoreRows pages={pages} />
      </Panel>
      {chosen.ids.length > 0 && (
        <div className="bulk" role="toolbar" aria-label="Chosen jobs">
          <b>{count(chosen.ids.length)} chosen</b>
          <Button busy={act.isPending} onClick={() => act.mutate("retry")}>
            Retry
          </Button>
          <Button kind="danger" busy={act.isPending} onClick={() => act.mutate("cancel")}>
            Cancel
          </Button>
          <Button kind="quiet" onClick={chosen.clear}>
            Forget the choice
          </Button>
        </div>
      )}
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
