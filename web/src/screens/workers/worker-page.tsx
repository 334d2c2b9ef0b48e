/** One worker process: what it holds, its lease, its history, and the processes that ended before it. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import type { Schemas } from "../../api/types";
import { Link } from "../../app/router";
import { Empty, LoadStatus } from "../../components/feedback";
import { count } from "../../components/format";
import { History } from "../../components/history";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { num, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { controlText } from "../../components/states";
import { Ago, Took } from "../../components/times";
import { leftOfLease, nameOf, stateOf } from "./workers";

type Details = Schemas["WorkerDetails"];

export function WorkerPage({ host, number }: { host: string; number: string }) {
  const found = useQuery({ queryKey: ["workers", number], queryFn: () => get<Details>(`/workers/${encodeURIComponent(number)}`), refetchInterval: 5000 });
  const details = found.data;
  const worker = details?.worker;
  return (
    <>
      <PageHeader title={worker ? nameOf(worker) : `Worker ${number}`} subtitle={worker && <><State state={stateOf(worker)} /> {worker.trouble && !worker.ended_at && <Tag tone="bad">{worker.trouble}</Tag>} {worker.control.map((mode) => <Tag key={mode} tone="wait">{controlText(mode)}</Tag>)}</>}>
        <Link className="button" to={`/workers/${encodeURIComponent(host)}`}>Host {host}</Link>
      </PageHeader>
      {!details || !worker ? (
        <Panel><LoadStatus query={found} lines={8} /></Panel>
      ) : (
        <div className="stack">
          <Panel title="Now">
            <dl className="facts">
              <Fact name="Lease">{worker.ended_at ? <>ended <Ago at={worker.ended_at} />{worker.end_reason && `: ${worker.end_reason}`}</> : <>{leftOfLease(worker)}, renewed <Ago at={worker.seen_at} /></>}</Fact>
              <Fact name="Started"><Ago at={worker.started_at} /></Fact>
              <Fact name="Running">{worker.max_concurrency > 0 ? `${count(worker.running)} of at most ${count(worker.max_concurrency)}` : count(details.runs.length)}</Fact>
              <Fact name="Queues" wide>{worker.queues.join(", ") || "none: it drives runs"}</Fact>
              <Fact name="Tasks" wide>{details.tasks.join(", ") || "none"}</Fact>
              <Fact name="Models in memory">{worker.models?.join(", ") || "none"}</Fact>
              {(worker.lost_threads ?? 0) > 0 && <Fact name="Hanging threads">{count(worker.lost_threads ?? 0)}</Fact>}
            </dl>
          </Panel>
          <Held details={details} />
          <History kind="worker" name={`${worker.host}:${worker.pid}`} />
          <Ended details={details} />
        </div>
      )}
    </>
  );
}

function Held({ details }: { details: Details }) {
  const { jobs, runs } = details;
  return (
    <Panel title="Jobs and runs that it holds">
      {jobs.length + runs.length === 0 ? (
        <Empty title="It holds nothing now">A job appears here while it runs, a run while this worker drives it.</Empty>
      ) : (
        <Table label="Jobs and runs" heads={["Id", { name: "Name", kind: "name" }, "Queue", num("Attempt"), "Started"]}>
          {jobs.map((job) => (
            <tr key={job.id}>
              <td><Link to={`/jobs/${job.id}`}>{job.id}</Link></td>
              <td className="name"><div className="name-cell" title={job.task}><span className="cut">{job.task}</span></div></td>
              <td className="nowrap">{job.queue}</td>
              <td className="num">{job.attempt}</td>
              <td className="nowrap"><Ago at={job.started_at} /></td>
            </tr>
          ))}
          {runs.map((run) => (
            <tr key={`r${run.id}`}>
              <td><Link to={`/runs/${run.id}`}>r{run.id}</Link></td>
              <td className="name"><div className="name-cell" title={run.workflow}><span className="cut">{run.workflow}</span></div></td>
              <td className="faint">run</td>
              <td />
              <td className="nowrap"><Ago at={run.created_at} /></td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}

function Ended({ details: { ended, worker } }: { details: Details }) {
  return (
    <Panel title="Processes that ended">
      {ended.length === 0 ? (
        <Empty good title="No process ended in the last day">A process of the same queues on {worker.host} appears here when it stops, or when its lease lapses.</Empty>
      ) : (
        <Table label="Processes that ended" heads={["Process", "State", "Ended", num("Was up"), "Reason"]}>
          {ended.map((each) => (
            <tr key={each.id}>
              <td className="nowrap"><Link to={`/workers/${encodeURIComponent(worker.host)}/${each.id}`}>pid {each.pid}</Link></td>
              <td><State state={each.status} /></td>
              <td className="nowrap"><Ago at={each.ended_at} /></td>
              <td className="num nowrap"><Took from={each.started_at} to={each.ended_at} /></td>
              <td>{each.end_reason}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
