/** Queues: how much waits and for how long, how fast jobs may start, and whether anybody takes them. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post, put } from "../api";
import { useAction } from "../parts/acting";
import { Acts, num, Table } from "../parts/table";
import { Button, Chips, count, Dialog, Empty, Head, Loading, Panel, State, Tag, Trouble } from "../parts/ui";
import { Link, useFilters } from "../router";
import { useMay } from "../session";
import { Within } from "../times";
import type { List, Queue } from "../types";

const paused = (queue: Queue) => queue.control.some((wish) => wish.startsWith("*=") && wish !== "*=run");

export function Queues() {
  const may = useMay("operate");
  const [limited, setLimited] = useState<Queue | null>(null);
  const [query, change] = useFilters();
  const internal = query.get("internal") === "yes";
  const found = useQuery({ queryKey: ["queues", internal], queryFn: () => get<List<Queue>>("/queues", { internal: internal || null }), refetchInterval: 5000, placeholderData: keepPreviousData });
  const hold = useAction<{ name: string; verb: "pause" | "resume" }>({
    act: ({ name, verb }) => post(`/queues/${encodeURIComponent(name)}/${verb}`),
    told: (_, { name, verb }) => (verb === "pause" ? `Queue ${name} is paused: running jobs finish, no new ones start.` : `Queue ${name} goes on.`),
  });
  return (
    <>
      <Head title="Queues" under="What is in each queue now, who serves it, and how fast its jobs may start.">
        <Chips label="Which queues" options={[{ value: "internal", label: "Tidemill's own too" }]} value={internal ? ["internal"] : []} onChange={(next) => change({ internal: next.length ? "yes" : null })} />
      </Head>
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      <Panel>
        {found.isPending ? (
          <Loading />
        ) : found.data?.items.length === 0 ? (
          <Empty title="No queue yet">
            A queue exists as soon as a task names it: <code>@app.task(queue="mail")</code>. Start workers with <code>tidemill up app.py</code>.
          </Empty>
        ) : (
          <Table label="Queues" heads={["Queue", "State", num("Waiting"), num("Running"), num("Later"), num("Held"), num("Oldest"), num("Half waited", "How long jobs that started in the last five minutes had waited since they were due"), num("99% waited", "The same for 99 in 100"), num("Workers"), "Limit"]} acts={may}>
            {found.data?.items.map((queue) => (
              <tr key={queue.name}>
                <td>
                  <Link to={`/jobs?queue=${encodeURIComponent(queue.name)}`}>{queue.name}</Link>
                </td>
                <td>
                  {paused(queue) ? <State state="paused" /> : queue.workers === 0 ? <State state="unrouted" label="nobody serves it" /> : <State state="run" label="served" />}{" "}
                  {queue.control.filter((wish) => !wish.startsWith("*=")).map((wish) => <Tag key={wish} tone="wait">{wish}</Tag>)}
                </td>
                <td className="num">
                  <Link to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=ready`}>{count(queue.waiting)}</Link>
                </td>
                <td className="num">
                  <Link to={`/jobs?queue=${encodeURIComponent(queue.name)}&state=running`}>{count(queue.running)}</Link>
                </td>
                <td className="num">{count(queue.delayed)}</td>
                <td className="num">{count(queue.held)}</td>
                <td className="num"><Within seconds={queue.oldest} /></td>
                <td className="num nowrap"><Within seconds={queue.half_within} most /></td>
                <td className="num nowrap"><Within seconds={queue.most_within} most /></td>
                <td className="num">
                  <Link to="/workers">{count(queue.workers)}</Link>
                </td>
                <td className="nowrap">
                  {queue.rate === null ? <span className="faint">none</span> : perTime(queue.rate)} {queue.limited_by && <span className="faint">by {queue.limited_by}</span>}
                </td>
                {may && (
                  <Acts>
                    <Button className="small" onClick={() => setLimited(queue)}>
                      Limit
                    </Button>
                    <Button className="small" busy={hold.isPending} onClick={() => hold.mutate({ name: queue.name, verb: paused(queue) ? "resume" : "pause" })} aria-label={`${paused(queue) ? "Resume" : "Pause"} ${queue.name}`}>
                      {paused(queue) ? "Resume" : "Pause"}
                    </Button>
                  </Acts>
                )}
              </tr>
            ))}
          </Table>
        )}
      </Panel>
      {limited && <LimitDialog queue={limited} onClose={() => setLimited(null)} />}
    </>
  );
}

const perTime = (rate: number) => (rate >= 1 ? `${Number(rate.toFixed(2))}/s` : `${Number((rate * 60).toFixed(2))}/m`);

function LimitDialog({ queue, onClose }: { queue: Queue; onClose: () => void }) {
  const [rate, setRate] = useState(queue.rate === null ? "" : perTime(queue.rate));
  const doing = useAction<string | null>({
    act: (wanted) => put(`/queues/${encodeURIComponent(queue.name)}/limit`, { rate: wanted }),
    told: (_, wanted) => (wanted === null ? `Queue ${queue.name} has no limit now.` : `Queue ${queue.name} starts no more than ${wanted}.`),
    then: onClose,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    doing.mutate(rate.trim() || null);
  };
  return (
    <Dialog title={`Limit queue ${queue.name}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>How fast jobs may start, over all workers together</span>
          <input className="field" value={rate} onChange={(event) => setRate(event.target.value)} placeholder="100/s, 30/m; empty for no limit" autoFocus />
        </label>
        {doing.error && <Trouble error={doing.error} />}
        <Button kind="main" type="submit" busy={doing.isPending}>
          Set the limit
        </Button>
      </form>
    </Dialog>
  );
}
