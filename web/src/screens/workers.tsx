/** Workers and hosts: who is there and what they use; pause, drain, stop and resume. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { num, Table } from "../parts/table";
import { Button, count, Empty, Head, Loading, Panel, plural, State, Tag, Trouble } from "../parts/ui";
import { Link } from "../router";
import { useMay } from "../session";
import { Ago } from "../times";
import type { Host, List, Worker } from "../types";
import { HostUse } from "./home";

interface Wish {
  mode: "run" | "pause" | "drain" | "stop";
  host: string;
}

const SAID = { run: "work again", pause: "take no more jobs", drain: "finish what has started and take no more", stop: "give everything back" };

export function Workers() {
  const may = useMay("operate");
  const [past, setPast] = useState(false);
  const workers = useQuery({ queryKey: ["workers"], queryFn: () => get<List<Worker>>("/workers"), refetchInterval: 5000 });
  const hosts = useQuery({ queryKey: ["hosts"], queryFn: () => get<List<Host>>("/hosts") });
  const act = useAction<Wish, { workers: number }>({
    act: (wish) => post<{ workers: number }>("/workers/control", { mode: wish.mode, host: wish.host, queue: "*" }),
    told: (result, wish) => `${plural(result.workers, "worker")} on ${wish.host} ${result.workers === 1 ? "is" : "are"} told to ${SAID[wish.mode]}.`,
  });
  const living = workers.data?.items.filter((worker) => worker.ended_at === null) ?? [];
  const gone = workers.data?.items.filter((worker) => worker.ended_at !== null) ?? [];
  const lost = gone.filter((worker) => worker.status === "lost").length;
  const names = [...new Set(living.map((worker) => worker.host))];
  return (
    <>
      <Head title="Workers and hosts" under="A worker is alive as long as it renews its lease; whoever does not is replaced by others." />
      {workers.error && <Trouble error={workers.error} retry={() => void workers.refetch()} />}
      <div className="stack">
        <Panel title="Hosts">
          {hosts.data?.items.length === 0 ? (
            <Empty title="No host has been heard of lately">A host appears with the first worker on it.</Empty>
          ) : (
            <ul className="hosts">
              {hosts.data?.items.map((host) => (
                <HostUse key={host.name} host={host} />
              ))}
            </ul>
          )}
        </Panel>
          {workers.isPending && <Loading />}
          {workers.data && living.length === 0 && (
            <Panel>
              <Empty title="No worker is alive">
                Start everything with <code>tidemill up app.py</code>, or one worker with <code>tidemill worker app.py --queue default</code>.
              </Empty>
            </Panel>
          )}
          {names.map((name) => (
            <Panel
              key={name}
              title={<Link to={`/workers/${encodeURIComponent(name)}`}>{name}</Link>}
              aside={
                may && (
                  <span className="row">
                    {(["pause", "drain", "stop", "run"] as const).map((mode) => (
                      <Button key={mode} className="small" kind={mode === "stop" ? "danger" : "plain"} title={`Workers on ${name} ${SAID[mode]}`} onClick={() => act.mutate({ mode, host: name })}>
                        {mode === "run" ? "Resume" : `${mode[0]?.toUpperCase()}${mode.slice(1)}`}
                      </Button>
                    ))}
                  </span>
                )
              }
            >
              <WorkerTable workers={living.filter((worker) => worker.host === name)} />
            </Panel>
          ))}
          {gone.length > 0 && (
            <Panel
              title={
                <span className="row">
                  {count(gone.length)} ended in the last hour {lost > 0 && <Tag tone="bad">{count(lost)} lost: {lost === 1 ? "its" : "their"} jobs went to others</Tag>}
                </span>
              }
              aside={
                <Button kind="quiet" aria-expanded={past} onClick={() => setPast(!past)}>
                  {past ? "fold away" : "show"}
                </Button>
              }
            >
              {past && <WorkerTable workers={gone} />}
            </Panel>
          )}
      </div>
    </>
  );
}

function stateOf(worker: Worker): string {
  if (worker.ended_at) return worker.status === "lost" ? "lost" : "ended";
  if (worker.flagged_at || Date.parse(worker.lease_until) < Date.now()) return "silent";
  return worker.status;
}

/** Worker processes, one a row. */
export function WorkerTable({ workers }: { workers: Worker[] }) {
  return (
    <Table label="Workers" heads={["Worker", "State", num("Running"), "Queues", "Heard of", "Since"]}>
      {workers.map((worker) => (
        <tr key={worker.id}>
          <td className="nowrap">
            {worker.id} <span className="faint">pid {worker.pid}</span>
          </td>
          <td>
            <State state={stateOf(worker)} /> {worker.control.map((wish) => <Tag key={wish} tone="wait">{wish}</Tag>)}
          </td>
          <td className="num">
            {worker.concurrency > 0 ? <>{worker.running} <span className="faint">of {worker.concurrency}</span></> : <span className="faint">–</span>}
          </td>
          <td>
            <div className="cut" title={worker.queues.join(", ")}>
              {worker.queues.join(", ") || <span className="faint">keeps runs</span>}
            </div>
          </td>
          <td className="nowrap">{worker.ended_at ? worker.end_reason : <Ago at={worker.seen_at} />}</td>
          <td className="nowrap">
            <Ago at={worker.started_at} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
