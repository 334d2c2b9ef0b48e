/** Workers and hosts: state and usage; pause, drain, stop and resume. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../../api/client";
import type { Host, List, Worker } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { HostUsage } from "../../components/details/host-usage";
import { Confirm } from "../../components/dialog";
import { Empty, LoadStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { PageHeader, Panel } from "../../components/layout";
import { num, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { controlText } from "../../components/states";
import { Ago, duration } from "../../components/times";

interface ControlRequest {
  mode: "run" | "pause" | "drain" | "stop";
  host: string;
}

const EFFECTS = {
  run: "take jobs again",
  pause: "take no new jobs until resumed",
  drain: "finish running jobs and take no new ones",
  stop: "return their jobs to the queue and take no new ones",
};

export function Workers() {
  const may = useMay("operator");
  const [past, setPast] = useState(false);
  const [stopping, setStopping] = useState<string | null>(null);
  const workers = useQuery({ queryKey: ["workers"], queryFn: () => get<List<Worker>>("/workers"), refetchInterval: 5000 });
  const hosts = useQuery({ queryKey: ["hosts"], queryFn: () => get<List<Host>>("/hosts") });
  const act = useAction<ControlRequest, { workers: number }>({
    request: ({ mode, host }) => post<{ workers: number }>("/workers/control", { mode, host, queue: "*" }),
    message: (result, { mode, host }) => `${plural(result.workers, "worker")} on ${host} will ${EFFECTS[mode]}.`,
  });
  const living = workers.data?.items.filter((worker) => worker.ended_at === null) ?? [];
  const gone = workers.data?.items.filter((worker) => worker.ended_at !== null) ?? [];
  const lost = gone.filter((worker) => worker.status === "lost").length;
  const names = [...new Set(living.map((worker) => worker.host))];
  return (
    <>
      <PageHeader title="Workers and hosts" subtitle="A worker is alive while it renews its lease. The jobs of a lost worker go to other workers." />
      <div className="stack">
        <Panel title="Hosts">
          <LoadStatus query={hosts} />
          {hosts.data?.items.length === 0 ? (
            <Empty title="No hosts">A host appears with its first worker.</Empty>
          ) : (
            <ul className="hosts">
              {hosts.data?.items.map((host) => (
                <HostUsage key={host.name} host={host} />
              ))}
            </ul>
          )}
        </Panel>
          <LoadStatus query={workers} />
          {workers.data && living.length === 0 && (
            <Panel>
              <Empty title="No workers are running">
                Start all processes with <code>tidemill up app.py</code>, or only a worker with <code>tidemill worker app.py</code>.
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
                      <Button key={mode} className="small" kind={mode === "stop" ? "danger" : "plain"} aria-label={`${mode === "run" ? "Resume" : `${mode[0]?.toUpperCase()}${mode.slice(1)}`} workers on ${name}`} title={`Workers on ${name} ${EFFECTS[mode]}`} onClick={() => (mode === "stop" ? setStopping(name) : act.mutateAsync({ mode, host: name }))}>
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
                  {count(gone.length)} ended in the last hour {lost > 0 && <Tag tone="bad">{count(lost)} lost, {lost === 1 ? "its" : "their"} jobs went to other workers</Tag>}
                </span>
              }
              aside={
                <Button kind="quiet" aria-expanded={past} onClick={() => setPast(!past)}>
                  {past ? "Hide" : "Show"}
                </Button>
              }
            >
              {past && <WorkerTable workers={gone} ended />}
            </Panel>
          )}
      </div>
      {stopping !== null && (
        <Confirm title={`Stop the workers on ${stopping}?`} verb="Stop" act={() => act.mutateAsync({ mode: "stop", host: stopping })} onClose={() => setStopping(null)}>
          They {EFFECTS.stop}, until they are resumed. To let running jobs finish, drain them instead.
        </Confirm>
      )}
    </>
  );
}

/** A worker as the command line and the log call it: its host, its process and its id. */
export const nameOf = (worker: Worker): string => `${worker.host}:${worker.pid}#${worker.id}`;

/** How long the lease of a worker holds. */
export function leftOfLease(worker: Worker): string {
  const left = (Date.parse(worker.lease_until) - Date.now()) / 1000;
  return left > 0 ? `holds for ${duration(left)}` : "has lapsed: other workers take its jobs";
}

export function stateOf(worker: Worker): string {
  if (worker.ended_at) return worker.status === "lost" ? "lost" : "ended";
  if (worker.flagged_at || Date.parse(worker.lease_until) < Date.now()) return "silent";
  return worker.status;
}

/** One row for each worker process. */
export function WorkerTable({ workers, ended = false }: { workers: Worker[]; ended?: boolean }) {
  return (
    <Table label="Workers" heads={["Worker", "State", num("Running"), "Queues", ended ? "Reason" : "Last heartbeat", "Started"]}>
      {workers.map((worker) => (
        <tr key={worker.id}>
          <td className="nowrap">
            <Link to={`/workers/${encodeURIComponent(worker.host)}/${worker.id}`}>{nameOf(worker)}</Link>
          </td>
          <td>
            <State state={stateOf(worker)} /> {worker.trouble && !worker.ended_at && <Tag tone="bad">{worker.trouble}</Tag>} {worker.control.map((mode) => <Tag key={mode} tone="wait">{controlText(mode)}</Tag>)}
          </td>
          <td className="num">
            {worker.max_concurrency > 0 ? <>{worker.running} <span className="faint">of {worker.max_concurrency}</span></> : <span className="faint">–</span>}
          </td>
          <td>
            <div className="clamp" title={worker.queues.join(", ")}>
              {worker.queues.join(", ") || <span className="faint">drives runs</span>}
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
