/** One host: its usage over time and its workers. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useMemo, useState } from "react";
import { get } from "../../api/client";
import type { HostSample, List, Worker } from "../../api/types";
import { importOrReload } from "../../app/lazy-import";
import { Empty, Loading, LoadStatus } from "../../components/feedback";
import { bytes } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import { History } from "../../components/history";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { WorkerTable } from "./workers";

const Chart = lazy(() => importOrReload(() => import("../../components/chart")));

interface Sample {
  at: string;
  sample: HostSample;
}

const SPANS = [
  { value: "900", label: "15 minutes" },
  { value: "3600", label: "1 hour" },
  { value: "21600", label: "6 hours" },
  { value: "86400", label: "1 day" },
];

export function HostPage({ id }: { id: string }) {
  const [within, setWithin] = useState("900");
  const samples = useQuery({
    queryKey: ["hosts", id, within],
    queryFn: () => get<{ items: Sample[] }>(`/hosts/${encodeURIComponent(id)}/samples`, { within, every: Math.max(1, Number(within) / 400) }),
    refetchInterval: 10_000,
  });
  const workers = useQuery({ queryKey: ["workers"], queryFn: () => get<List<Worker>>("/workers") });
  const mine = workers.data?.items.filter((worker) => worker.host === id) ?? [];
  const living = mine.filter((worker) => worker.ended_at === null);
  const ended = mine.filter((worker) => worker.ended_at !== null);
  const items = samples.data?.items;
  const last = items?.at(-1)?.sample;
  const series = useMemo(() => charts(items ?? []), [items]);
  return (
    <>
      <PageHeader title={id} subtitle={last && `${last.cores} cores, ${bytes(last.memory_total)} of memory, ${bytes(last.disk_total - last.disk)} of disk free`}>
        <Chips label="Period" options={SPANS} value={[within]} onChange={(next) => setWithin(next.at(-1) ?? within)} />
      </PageHeader>
      <LoadStatus query={samples} lines={8} />
      {items?.length === 0 && (
        <Panel>
          <Empty title="No samples in this period">Samples are stored for a day. Select a longer period, or check that workers run on {id}.</Empty>
        </Panel>
      )}
      {items && items.length > 0 && (
        <div className="charts">
          {series.map((chart) => (
            <Panel key={chart.title} title={chart.title} aside={<span className="faint">{chart.unit}</span>}>
              <Suspense fallback={<Loading lines={3} />}>
                <Chart {...chart} />
              </Suspense>
            </Panel>
          ))}
          {last && (
            <Panel title="Now">
              <dl className="facts">
                <Fact name="Load average">{last.load}</Fact>
                <Fact name="Tidemill">
                  {last.ours.cpu.toFixed(2)} cores, {bytes(last.ours.memory)}
                </Fact>
                <Fact name="Disk">
                  {bytes(last.disk)} of {bytes(last.disk_total)} used
                </Fact>
                {last.gpus?.map((gpu, index) => (
                  <Fact key={gpu.index ?? index} name={`GPU ${gpu.index ?? index}`}>
                    {gpu.name}
                  </Fact>
                ))}
              </dl>
            </Panel>
          )}
        </div>
      )}
      <div className="below"><History kind="host" name={id} /></div>
      <Panel title="Workers on this host" className="below"><LoadStatus query={workers} />{workers.data && (living.length === 0 ? <Empty title="No workers on this host" /> : <WorkerTable workers={living} />)}</Panel>
      {ended.length > 0 && <Panel title="Ended in the last hour" className="below"><WorkerTable workers={ended} ended /></Panel>}
    </>
  );
}

interface ChartData {
  title: string;
  unit: string;
  most?: number;
  times: number[];
  lines: { name: string; tone: string; values: (number | null)[] }[];
}

function charts(items: Sample[]): ChartData[] {
  const times = items.map((each) => Date.parse(each.at) / 1000);
  const of = (read: (sample: HostSample) => number | null | undefined) => items.map((each) => read(each.sample) ?? null);
  const last = items.at(-1)?.sample;
  const giga = 1e9;
  const found: ChartData[] = [
    {
      title: "CPU", unit: "cores", most: last?.cores, times,
      lines: [{ name: "total", tone: "--run-fill", values: of((s) => s.cpu) }, { name: "Tidemill", tone: "--accent", values: of((s) => s.ours.cpu) }],
    },
    {
      title: "Memory", unit: "GB", most: last ? last.memory_total / giga : undefined, times,
      lines: [{ name: "total", tone: "--run-fill", values: of((s) => s.memory / giga) }, { name: "Tidemill", tone: "--accent", values: of((s) => s.ours.memory / giga) }],
    },
  ];
  (last?.gpus ?? []).forEach((gpu, index) => {
    found.push({
      title: `GPU ${gpu.index ?? index}${gpu.name ? `, ${gpu.name}` : ""}`, unit: "%", most: 100, times,
      lines: [
        { name: "busy", tone: "--run-fill", values: of((s) => (s.gpus?.[index]?.busy ?? 0) * 100) },
        { name: "memory", tone: "--accent", values: of((s) => { const g = s.gpus?.[index]; return g?.memory && g.memory_total ? (g.memory / g.memory_total) * 100 : null; }) },
      ],
    });
  });
  return found;
}
