/** Queues: waiting jobs, wait times, limits and workers. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post, put } from "../../api/client";
import type { List, Queue } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link, useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage, LoadStatus } from "../../components/feedback";
import { count } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import { PageHeader, Panel } from "../../components/layout";
import { Count, num, RowActions, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { controlText, NO_WORKER } from "../../components/states";
import { Duration } from "../../components/times";

const isPaused = (queue: Queue) => queue.control.some((mode) => mode.startsWith("*=") && mode !== "*=run");

export function Queues() {
  const may = useMay("operator");
  const [query, change] = useFilters();
  const internal = query.get("internal") === "yes";
  const found = useQuery({ queryKey: ["queues", internal], queryFn: () => get<List<Queue>>("/queues", { internal: internal || null }), refetchInterval: 5000, placeholderData: keepPreviousData });
  return (
    <>
      <PageHeader title="Queues" subtitle="Jobs in each queue, its workers and its rate limit.">
        <Chips label="Queues" options={[{ value: "internal", label: "Show internal queues" }]} value={internal ? ["internal"] : []} onChange={(next) => change({ internal: next.length ? "yes" : null })} />
      </PageHeader>
      <LoadStatus query={found} />
      {found.data && <Panel>
        {found.data.items.length === 0 ? (
          <Empty title="No queues yet">
            A queue appears when a task uses it: <code>@app.task(queue="mail")</code>. Start workers with <code>tidemill up app.py</code>.
          </Empty>
        ) : (
          <Table label="Queues" heads={["Queue", "State", num("Waiting"), num("Running"), num("Scheduled", "Jobs that are not due yet"), num("Throttled", "Jobs that wait for a limit"), num("No worker", "Jobs whose task no running worker knows"), num("Oldest", "Time since the oldest waiting job was due"), num("Wait p50", "Median wait, from due to started, of jobs started in the last five minutes"), num("Wait p99", "The same for 99% of the jobs"), num("Workers"), "Limit"]} hasActions={may}>
            {found.data?.items.map((queue) => (
              <tr key={queue.name}>
                <td>
                  <Link to={`/queues/${encodeURIComponent(queue.name)}`}>{queue.name}</Link>
                </td>
                <td><QueueState queue={queue} /></td>
                <td className="num"><Count value={queue.waiting} to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=ready`} /></td>
                <td className="num"><Count value={queue.running} to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=running`} /></td>
                <td className="num"><Count value={queue.scheduled} /></td>
                <td className="num"><Count value={queue.throttled} to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=throttled`} /></td>
                <td className="num"><Count value={queue.no_worker} to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=no_worker`} /></td>
                <td className="num"><Duration seconds={queue.oldest} /></td>
                <td className="num nowrap"><Duration seconds={queue.waited_p50} atMost /></td>
                <td className="num nowrap"><Duration seconds={queue.waited_p99} atMost /></td>
                <td className="num">
                  <Link to="/workers">{count(queue.workers)}</Link>
                </td>
                <td>
                  {queue.rate === null ? <span className="faint">none</span> : perTime(queue.rate)}
                  {queue.key_rate !== null && <>, {perTime(queue.key_rate)} per rate key</>} {queue.limited_by && <span className="faint">set by {queue.limited_by}</span>}
                </td>
                {may && (
                  <RowActions>
                    <QueueActions queue={queue} className="small" />
                  </RowActions>
                )}
              </tr>
            ))}
          </Table>
        )}
      </Panel>}
    </>
  );
}

/** What an operator does to a queue: limit, pause and resume it. */
export function QueueActions({ queue, className }: { queue: Queue; className?: string }) {
  const [limiting, setLimiting] = useState(false);
  const verb = isPaused(queue) ? "resume" : "pause";
  const act = useAction<"pause" | "resume">({
    request: (wanted) => post(`/queues/${encodeURIComponent(queue.name)}/${wanted}`),
    message: (_, wanted) => (wanted === "pause" ? `Paused queue ${queue.name}. Running jobs finish; no new job starts.` : `Resumed queue ${queue.name}.`),
  });
  return (
    <>
      <Button className={className} aria-label={`Limit ${queue.name}`} onClick={() => setLimiting(true)}>
        Limit …
      </Button>
      <Button className={className} busy={act.isPending} aria-label={`${verb === "resume" ? "Resume" : "Pause"} ${queue.name}`} onClick={() => act.mutate(verb)}>
        {verb === "resume" ? "Resume" : "Pause"}
      </Button>
      {limiting && <LimitDialog queue={queue} onClose={() => setLimiting(false)} />}
    </>
  );
}

/** Whether workers take jobs of a queue, and what operators have set for some hosts. */
export function QueueState({ queue }: { queue: Queue }) {
  return (
    <>
      {isPaused(queue) ? <State state="paused" /> : queue.workers === 0 ? <State state={NO_WORKER} label="no worker" /> : <State state="active" />}{" "}
      {queue.control.filter((mode) => !mode.startsWith("*=")).map((mode) => <Tag key={mode} tone="wait">{controlText(mode)}</Tag>)}
    </>
  );
}

export const perTime = (rate: number) => (rate >= 1 ? `${Number(rate.toFixed(2))}/s` : `${Number((rate * 60).toFixed(2))}/m`);

function LimitDialog({ queue, onClose }: { queue: Queue; onClose: () => void }) {
  const [rate, setRate] = useState(queue.rate === null ? "" : perTime(queue.rate));
  const action = useAction<string | null>({
    request: (wanted) => put(`/queues/${encodeURIComponent(queue.name)}/limit`, { rate: wanted }),
    message: (_, wanted) => (wanted === null ? `Removed the limit of queue ${queue.name}.` : `Queue ${queue.name} starts at most ${wanted} jobs.`),
    onSuccess: onClose,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate(rate.trim() || null);
  };
  return (
    <Dialog title={`Limit queue ${queue.name}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Maximum start rate, over all workers</span>
          <input className="field" value={rate} onChange={(event) => setRate(event.target.value)} placeholder="100/s or 30/m; empty for no limit" autoFocus />
        </label>
        {action.error && <ErrorMessage error={action.error} />}
        <Button kind="main" type="submit" busy={action.isPending}>
          Set limit
        </Button>
      </form>
    </Dialog>
  );
}
