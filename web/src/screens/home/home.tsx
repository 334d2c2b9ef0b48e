/** Home: what is failing, the backlog, throughput and hosts. Every figure is a link. */
import { keepPreviousData, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useEffect, useMemo, useState } from "react";
import { get } from "../../api/client";
import type { Host, List, Overview, Queue } from "../../api/types";
import { importOrReload } from "../../app/lazy-import";
import { Link } from "../../app/router";
import { useSession } from "../../app/session";
import { HostUsage } from "../../components/details/host-usage";
import { Empty, Loading, LoadStatus } from "../../components/feedback";
import { count, rateText } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import { Meter, PageHeader, Panel } from "../../components/layout";
import { WAITING_JOB_STATES } from "../../components/states";
import { duration } from "../../components/times";
import { FailingNow, summarizeFailures } from "./failing-now";
import "./home.css";

const Chart = lazy(() => importOrReload(() => import("../../components/chart")));

interface Sample {
  at: number;
  done: number;
  failed: number;
  tasks: Map<string, number>;
}

/** Samples of the totals while the console is open; two of them give a rate. */
const samples: Sample[] = [];
const MAX_SAMPLES = 120;
/** Workers report their totals every few seconds, so a shorter period gives a wrong rate. */
const MIN_PERIOD_SECONDS = 10;

function addSample(overview: Overview): void {
  const at = Date.parse(overview.at) / 1000;
  const last = samples.at(-1);
  if (last && at - last.at < 0.9) return;
  const tasks = new Map<string, number>();
  let done = 0;
  let failed = 0;
  for (const each of overview.done) {
    done += each.total;
    if (each.outcome !== "succeeded") failed += each.total;
    tasks.set(each.task, (tasks.get(each.task) ?? 0) + each.total);
  }
  if (last && done < last.done) samples.length = 0;
  samples.push({ at, done, failed, tasks });
  if (samples.length > MAX_SAMPLES) samples.shift();
}

function rate(of: (sample: Sample) => number, seconds = 60): number | null {
  const last = samples.at(-1);
  const first = samples.find((each) => last && last.at - each.at <= seconds);
  if (!first || !last || last.at - first.at < MIN_PERIOD_SECONDS) return null;
  return (of(last) - of(first)) / (last.at - first.at);
}

/** Throughput over time, from samples that the server stores. */
function useThroughput(within: string) {
  return useQuery({ queryKey: ["throughput", within], queryFn: () => get<List<{ at: string; done: number; failed: number }>>("/throughput", { within, every: Math.max(10, Number(within) / 240) }), refetchInterval: 10_000, placeholderData: keepPreviousData });
}

export function Home() {
  const session = useSession();
  const overview = useQuery({ queryKey: ["overview"], queryFn: () => get<Overview>("/overview"), refetchInterval: 5000 });
  const queues = useQuery({ queryKey: ["queues"], queryFn: () => get<List<Queue>>("/queues") });
  const hosts = useQuery({ queryKey: ["hosts"], queryFn: () => get<List<Host>>("/hosts") });
  const monitors = useQuery({ queryKey: ["monitors"], queryFn: () => get<List<{ open: number }>>("/monitors"), refetchInterval: 5000 });
  const [, rerender] = useState(0);
  useEffect(() => {
    if (overview.data) {
      addSample(overview.data);
      rerender(samples.length + Date.parse(overview.data.at));
    }
  }, [overview.data]);
  return (
    <>
      <PageHeader title={session.application ?? "Home"} subtitle={overview.data && "Live overview of this application."} />
      <LoadStatus query={overview} lines={5} />
      {overview.data && <Figures overview={overview.data} monitors={monitors.data?.items} monitorsFailed={monitors.error !== null} />}
      <div className="columns">
        <div className="stack">
          {overview.data && <FailingNow overview={overview.data} />}
          <Throughput />
        </div>
        <div className="stack">
          <QueueBars query={queues} />
          <BusiestTasks query={overview} />
          <HostBars query={hosts} />
        </div>
      </div>
    </>
  );
}

function Figures({ overview, monitors, monitorsFailed }: { overview: Overview; monitors: { open: number }[] | undefined; monitorsFailed: boolean }) {
  const alerts = monitors?.reduce((sum, each) => sum + each.open, 0) ?? 0;
  const counts = overview.counts;
  const failing = summarizeFailures(overview);
  const backlog = counts.jobs_waiting + counts.jobs_throttled + counts.jobs_no_worker;
  const recent = useThroughput(HOUR).data?.items ?? [];
  const minute = recent.filter((each) => Date.parse(each.at) > Date.parse(overview.at) - 75_000);
  const perSecond = minute.length ? minute.reduce((sum, each) => sum + each.done, 0) / minute.length : null;
  const oldest = counts.oldest_waiting;
  return (
    <div className="tiles">
      <Tile to={failing.count ? "#failing" : "/jobs?state=failed"} name="Failing now" value={`${count(failing.count)}${failing.more ? "+" : ""}`} tone={failing.count ? "bad" : "ok"} note={failing.what} />
      <Tile to={`/jobs?${WAITING_JOB_STATES.map((state) => `state=${state}`).join("&")}`} name="Backlog" value={count(backlog)} note={`${count(counts.jobs_running)} running, ${count(counts.jobs_scheduled)} scheduled`} />
      <Tile to="/jobs?state=ready" name="Oldest waiting" value={oldest === null ? "none" : duration(oldest)} tone={oldest !== null && oldest > 60 ? "wait" : undefined} note={oldest === null ? "no job is due" : "after its due time"} />
      <Tile to="/jobs?state=succeeded" name="Throughput" value={perSecond === null ? "…" : <>{rateText(perSecond)} <small>/s</small></>} note={perSecond === null ? "measuring" : "job attempts, last minute"}>
        <Spark values={recent.slice(-60).map((each) => each.done)} />
      </Tile>
      <Tile to="/runs?state=running" name="Active runs" value={count(counts.runs_live)} note={counts.runs_needing_attention ? `${count(counts.runs_needing_attention)} need attention` : "flows and dags"} />
      <Tile to="/input" name="Human input" value={count(counts.inputs_open)} tone={counts.inputs_open ? "wait" : undefined} note="open questions" />
      <Tile to="/workers" name="Workers" value={count(counts.workers_alive)} tone={counts.workers_alive ? undefined : "bad"} note={counts.workers_silent ? `${counts.workers_silent} silent` : "alive"} />
      {monitors === undefined ? (
        <Tile to="/monitors" name="Alerts" value={monitorsFailed ? "?" : "…"} note={monitorsFailed ? "could not be loaded" : "loading"} />
      ) : monitors.length > 0 ? (
        <Tile to="/monitors" name="Alerts" value={count(alerts)} tone={alerts ? "bad" : "ok"} note="open" />
      ) : (
        <Tile to="/schedules" name="Schedules" value={count(counts.schedules)} note={counts.schedules_paused ? `${counts.schedules_paused} paused` : "none paused"} />
      )}
    </div>
  );
}

function Tile({ to, name, value, note, tone = "", children }: { to: string; name: string; value: ReactNode; note: string; tone?: string; children?: ReactNode }) {
  return (
    <Link to={to} className={`tile ${tone}`} onClick={(event) => { if (to.startsWith("#")) { event.preventDefault(); document.querySelector(to)?.scrollIntoView({ behavior: "smooth" }); } }}>
      {children}
      <span className="name">{name}</span>
      <span className="value">{value}</span>
      <span className="under" title={note}>{note}</span>
    </Link>
  );
}

function Spark({ values }: { values: number[] }) {
  if (values.length < 3) return null;
  const most = Math.max(...values, 0.001);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * 100).toFixed(1)} ${(34 - (value / most) * 26).toFixed(1)}`);
  return (
    <svg className="spark" viewBox="0 0 100 36" preserveAspectRatio="none" aria-hidden="true">
      <path className="area" d={`M0 36L${points.join("L")}L100 36Z`} />
      <path d={`M${points.join("L")}`} />
    </svg>
  );
}

const HOUR = "3600";
const SPANS = [
  { value: "900", label: "15 minutes" },
  { value: HOUR, label: "1 hour" },
  { value: "86400", label: "1 day" },
];

function Throughput() {
  const [within, setWithin] = useState(HOUR);
  const found = useThroughput(within);
  const items = found.data?.items;
  const drawn = useMemo(() => {
    const times = (items ?? []).map((each) => Date.parse(each.at) / 1000);
    const lines = [
      { name: "finished", tone: "--run-fill", values: (items ?? []).map((each) => each.done) },
      { name: "not succeeded", tone: "--bad-fill", values: (items ?? []).map((each) => each.failed) },
    ];
    return { times, lines };
  }, [items]);
  return (
    <Panel title="Throughput" aside={<Chips label="Period" options={SPANS} value={[within]} onChange={(next) => setWithin(next.at(-1) ?? within)} />}>
      {!items ? (
        <LoadStatus query={found} lines={3} />
      ) : items.length < 2 ? (
        <Empty title="Measuring …">The server takes a sample every ten seconds and stores it for a day.</Empty>
      ) : (
        <Suspense fallback={<Loading lines={3} />}>
          <Chart title="Throughput" unit="/s" times={drawn.times} lines={drawn.lines} />
        </Suspense>
      )}
    </Panel>
  );
}

function BusiestTasks({ query }: { query: UseQueryResult<Overview> }) {
  const last = samples.at(-1);
  const isMeasuring = rate((sample) => sample.done) === null;
  const found = [...(last?.tasks.keys() ?? [])]
    .map((task) => ({ task, rate: rate((sample) => sample.tasks.get(task) ?? 0) ?? 0 }))
    .filter((each) => each.rate > 0)
    .sort((a, b) => b.rate - a.rate)
    .slice(0, 8);
  const most = found[0]?.rate ?? 1;
  return (
    <Panel title="Busiest tasks" aside={<span className="row"><span className="faint">per second, last minute</span> <Link to="/tasks">All tasks</Link></span>}>
      {!query.data ? (
        <LoadStatus query={query} lines={3} />
      ) : found.length === 0 ? (
        <Empty title={isMeasuring ? "Measuring …" : "No task finished in the last minute"}>{isMeasuring ? undefined : <>Enqueue a job, or see the <Link to="/schedules">schedules</Link>.</>}</Empty>
      ) : (
        <ul className="bars">
          {found.map((each) => (
            <li key={each.task}>
              <Link className="cut" title={each.task} to={`/tasks/${encodeURIComponent(each.task)}`}>
                {each.task}
              </Link>
              <Meter value={each.rate / most} label={`${each.task}: share of the busiest task`} />
              <span className="soft right">{rateText(each.rate)}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function QueueBars({ query }: { query: UseQueryResult<List<Queue>> }) {
  const queues = query.data?.items;
  if (!queues) return <Panel title="Queues"><LoadStatus query={query} lines={3} /></Panel>;
  // In the order of their names, so that lines do not change places with every job.
  const busy = [...queues].sort((a, b) => b.waiting + b.running - a.waiting - a.running).slice(0, 8).sort((a, b) => a.name.localeCompare(b.name));
  const most = Math.max(1, ...busy.map((queue) => queue.waiting + queue.running));
  return (
    <Panel title="Queues" aside={<Link to="/queues">All queues</Link>}>
      {busy.length === 0 ? (
        <Empty title="No queues yet">A queue appears with its first worker or job.</Empty>
      ) : (
        <ul className="bars">
          {busy.map((queue) => (
            <li key={queue.name}>
              <Link className="cut" title={queue.name} to={`/queues/${encodeURIComponent(queue.name)}`}>
                {queue.name}
              </Link>
              <Meter value={(queue.waiting + queue.running) / most} tone={queue.workers ? "run" : "bad"} label={`${queue.name}: share of the longest queue`} />
              <span className="soft right nowrap">
                {count(queue.waiting)} <span className="faint">waiting,</span> {count(queue.running)} <span className="faint">running</span>
              </span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function HostBars({ query }: { query: UseQueryResult<List<Host>> }) {
  const hosts = query.data?.items;
  if (!hosts) return <Panel title="Hosts"><LoadStatus query={query} lines={3} /></Panel>;
  return (
    <Panel title="Hosts" aside={<Link to="/workers">Workers and hosts</Link>}>
      {hosts.length === 0 ? (
        <Empty title="No hosts yet">
          Start workers with <code>tidemill up app.py</code>.
        </Empty>
      ) : (
        <ul className="hosts">
          {hosts.slice(0, 6).map((host) => (
            <HostUsage key={host.name} host={host} />
          ))}
        </ul>
      )}
    </Panel>
  );
}
