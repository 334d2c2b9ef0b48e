/** Home: what is broken now, what waits and since when, how much is done, on which machines. Every figure is a link. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useEffect, useMemo, useState } from "react";
import { get } from "../api";
import { Broken, brokenNow } from "../home/broken";
import { fresh } from "../parts/fresh";
import { bytes, Chips, count, Empty, Head, Loading, Meter, Panel, Trouble } from "../parts/ui";
import { Link } from "../router";
import { useSession } from "../session";
import { duration } from "../times";
import type { Host, List, Overview, Queue } from "../types";

const Chart = lazy(() => fresh(() => import("../parts/chart")));

interface Reading {
  at: number;
  done: number;
  failed: number;
  tasks: Map<string, number>;
}

/** Readings of the totals while the console is open: two of them give a rate. */
const readings: Reading[] = [];
const KEPT = 120;

function read(overview: Overview): void {
  const at = Date.parse(overview.at) / 1000;
  const last = readings.at(-1);
  if (last && at - last.at < 0.9) return;
  const tasks = new Map<string, number>();
  let done = 0;
  let failed = 0;
  for (const each of overview.done) {
    done += each.total;
    if (each.outcome !== "succeeded") failed += each.total;
    tasks.set(each.task, (tasks.get(each.task) ?? 0) + each.total);
  }
  if (last && done < last.done) readings.length = 0;
  readings.push({ at, done, failed, tasks });
  if (readings.length > KEPT) readings.shift();
}

function rate(of: (reading: Reading) => number, seconds = 60): number | null {
  const last = readings.at(-1);
  const first = readings.find((each) => last && last.at - each.at <= seconds);
  if (!first || !last || first === last) return null;
  return (of(last) - of(first)) / (last.at - first.at);
}

function rates(): number[] {
  const found: number[] = [];
  for (let index = 1; index < readings.length; index += 1) {
    const [before, after] = [readings[index - 1], readings[index]];
    if (before && after) found.push((after.done - before.done) / (after.at - before.at));
  }
  return found;
}

export function Home() {
  const session = useSession();
  const overview = useQuery({ queryKey: ["overview"], queryFn: () => get<Overview>("/overview"), refetchInterval: 5000 });
  const queues = useQuery({ queryKey: ["queues"], queryFn: () => get<List<Queue>>("/queues") });
  const hosts = useQuery({ queryKey: ["hosts"], queryFn: () => get<List<Host>>("/hosts") });
  const monitors = useQuery({ queryKey: ["monitors"], queryFn: () => get<List<{ open: number }>>("/monitors"), refetchInterval: 5000 });
  const [, setRead] = useState(0);
  useEffect(() => {
    if (overview.data) {
      read(overview.data);
      setRead(readings.length + Date.parse(overview.data.at));
    }
  }, [overview.data]);
  return (
    <>
      <Head title={session.application ?? "Home"} under={overview.data && <>As it is now; changes arrive by themselves.</>} />
      {overview.error && <Trouble error={overview.error} retry={() => void overview.refetch()} />}
      {overview.isPending ? <Loading lines={5} /> : overview.data && <Figures overview={overview.data} monitors={monitors.data?.items ?? []} />}
      <div className="columns">
        <div className="stack">
          {overview.data && <Broken overview={overview.data} />}
          <Pace />
        </div>
        <div className="stack">
          <QueueBars queues={queues.data?.items} />
          <Busiest />
          <HostBars hosts={hosts.data?.items} />
        </div>
      </div>
    </>
  );
}

function Figures({ overview, monitors }: { overview: Overview; monitors: { open: number }[] }) {
  const alerts = monitors.reduce((sum, each) => sum + each.open, 0);
  const counts = overview.counts;
  const broken = brokenNow(overview);
  const backlog = counts.jobs_waiting + counts.jobs_held;
  const perSecond = rate((reading) => reading.done);
  const oldest = counts.oldest_waiting;
  return (
    <div className="tiles">
      <Tile to={broken.count ? "#broken" : "/jobs?state=failed"} name="Broken now" value={`${count(broken.count)}${broken.more ? "+" : ""}`} tone={broken.count ? "bad" : "ok"} under={broken.what} />
      <Tile to="/jobs?state=ready&state=gated&state=unrouted" name="Backlog" value={count(backlog)} under={`${count(counts.jobs_running)} running, ${count(counts.jobs_delayed)} later`} />
      <Tile to="/jobs?state=ready" name="Oldest waiting" value={oldest === null ? "none" : duration(oldest)} tone={oldest !== null && oldest > 60 ? "wait" : undefined} under={oldest === null ? "nothing is due" : "since it was due"} />
      <Tile to="/jobs?state=succeeded" name="Throughput" value={perSecond === null ? "…" : <>{perSecond >= 10 ? Math.round(perSecond) : perSecond.toFixed(1)} <small>/s</small></>} under="attempts, this minute">
        <Spark values={rates()} />
      </Tile>
      <Tile to="/runs?state=running" name="Runs under way" value={count(counts.runs_live)} under={counts.runs_parked ? `${count(counts.runs_parked)} parked` : "flows and dags"} />
      <Tile to="/inputs" name="Waiting for people" value={count(counts.inputs_open)} tone={counts.inputs_open ? "wait" : undefined} under="open questions" />
      <Tile to="/workers" name="Workers" value={count(counts.workers_alive)} tone={counts.workers_alive ? undefined : "bad"} under={counts.workers_silent ? `${counts.workers_silent} silent` : "alive"} />
      {monitors.length > 0 ? (
        <Tile to="/monitors" name="Alerts" value={count(alerts)} tone={alerts ? "bad" : "ok"} under="open now" />
      ) : (
        <Tile to="/schedules" name="Schedules" value={count(counts.schedules)} under={counts.schedules_paused ? `${counts.schedules_paused} paused` : "all on"} />
      )}
    </div>
  );
}

function Tile({ to, name, value, under, tone = "", children }: { to: string; name: string; value: ReactNode; under: string; tone?: string; children?: ReactNode }) {
  return (
    <Link to={to} className={`tile ${tone}`} onClick={(event) => { if (to.startsWith("#")) { event.preventDefault(); document.querySelector(to)?.scrollIntoView({ behavior: "smooth" }); } }}>
      {children}
      <span className="name">{name}</span>
      <span className="value">{value}</span>
      <span className="under">{under}</span>
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

const SPANS = [
  { value: "900", label: "15 minutes" },
  { value: "3600", label: "an hour" },
  { value: "86400", label: "a day" },
];

/** How much was done over time, also while nobody looked. */
function Pace() {
  const [within, setWithin] = useState("3600");
  const found = useQuery({ queryKey: ["pace", within], queryFn: () => get<List<{ at: string; done: number; failed: number }>>("/pace", { within, every: Math.max(10, Number(within) / 240) }), refetchInterval: 10_000, placeholderData: keepPreviousData });
  const items = found.data?.items;
  const drawn = useMemo(() => {
    const times = (items ?? []).map((each) => Date.parse(each.at) / 1000);
    const lines = [
      { name: "ended", tone: "--run-fill", values: (items ?? []).map((each) => each.done) },
      { name: "not succeeded", tone: "--bad-fill", values: (items ?? []).map((each) => each.failed) },
    ];
    return { times, lines };
  }, [items]);
  return (
    <Panel title="Throughput" aside={<Chips label="How far back" options={SPANS} value={[within]} onChange={(next) => setWithin(next.at(-1) ?? within)} />}>
      {found.error ? (
        <Trouble error={found.error} />
      ) : items && items.length < 2 ? (
        <Empty title="Measuring …">The server notes every ten seconds how much was done, and keeps it for a day.</Empty>
      ) : (
        <Suspense fallback={<Loading lines={3} />}>
          <Chart title="Throughput" unit="/s" times={drawn.times} lines={drawn.lines} />
        </Suspense>
      )}
    </Panel>
  );
}

function Busiest() {
  const last = readings.at(-1);
  const found = [...(last?.tasks.keys() ?? [])]
    .map((task) => ({ task, rate: rate((reading) => reading.tasks.get(task) ?? 0) ?? 0 }))
    .filter((each) => each.rate > 0)
    .sort((a, b) => b.rate - a.rate)
    .slice(0, 8);
  const most = found[0]?.rate ?? 1;
  return (
    <Panel title="Busiest tasks" aside={<span className="faint">a second, this minute</span>}>
      {found.length === 0 ? (
        <Empty title={readings.length < 2 ? "Measuring …" : "No task has ended this minute"}>{readings.length < 2 ? undefined : <>Enqueue something, or look at the <Link to="/schedules">schedules</Link>.</>}</Empty>
      ) : (
        <ul className="bars">
          {found.map((each) => (
            <li key={each.task}>
              <Link className="cut" to={`/jobs?task=${encodeURIComponent(each.task)}`}>
                {each.task}
              </Link>
              <Meter value={each.rate / most} label={`${each.task}: part of the busiest`} />
              <span className="soft right">{each.rate >= 10 ? Math.round(each.rate) : each.rate.toFixed(1)}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function QueueBars({ queues }: { queues: Queue[] | undefined }) {
  if (!queues) return null;
  const busy = [...queues].sort((a, b) => b.waiting + b.running - a.waiting - a.running).slice(0, 8);
  const most = Math.max(1, ...busy.map((queue) => queue.waiting + queue.running));
  return (
    <Panel title="Queues" aside={<Link to="/queues">all queues</Link>}>
      {busy.length === 0 ? (
        <Empty title="No queue yet">A queue appears with its first worker or job.</Empty>
      ) : (
        <ul className="bars">
          {busy.map((queue) => (
            <li key={queue.name}>
              <Link className="cut" to={`/jobs?queue=${encodeURIComponent(queue.name)}`}>
                {queue.name}
              </Link>
              <Meter value={(queue.waiting + queue.running) / most} tone={queue.workers ? "run" : "bad"} label={`${queue.name}: part of the deepest`} />
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

function HostBars({ hosts }: { hosts: Host[] | undefined }) {
  if (!hosts) return null;
  return (
    <Panel title="Hosts" aside={<Link to="/workers">workers and hosts</Link>}>
      {hosts.length === 0 ? (
        <Empty title="No host has been heard of">
          Start workers with <code>tidemill up app.py</code>.
        </Empty>
      ) : (
        <ul className="hosts">
          {hosts.slice(0, 6).map((host) => (
            <HostUse key={host.name} host={host} />
          ))}
        </ul>
      )}
    </Panel>
  );
}

/** What a host uses now, as bars. */
export function HostUse({ host }: { host: Host }) {
  const sample = host.sample;
  const tone = (part: number) => (part > 0.9 ? "bad" : part > 0.75 ? "wait" : "run");
  const cpu = sample.cpu / Math.max(1, sample.cores);
  const memory = sample.memory / Math.max(1, sample.memory_total);
  return (
    <li>
      <Link to={`/workers/${encodeURIComponent(host.name)}`}>{host.name}</Link>
      <span className="use">
        CPU <Meter value={cpu} tone={tone(cpu)} label={`CPU of ${host.name}`} /> <span className="right">{sample.cpu.toFixed(1)} <span className="faint">of {sample.cores}</span></span>
      </span>
      <span className="use">
        RAM <Meter value={memory} tone={tone(memory)} label={`Memory of ${host.name}`} /> <span className="right">{bytes(sample.memory)} <span className="faint">of {bytes(sample.memory_total)}</span></span>
      </span>
      {(sample.gpus ?? []).map((gpu, index) => (
        <span className="use" key={gpu.index ?? index}>
          GPU {gpu.index ?? index} <Meter value={gpu.busy ?? 0} tone={tone(gpu.busy ?? 0)} label={`GPU ${index} of ${host.name}`} />
          <span className="right">{gpu.memory ? bytes(gpu.memory) : ""}</span>
        </span>
      ))}
    </li>
  );
}
