/** What a task, a queue, a host or a worker did over a day or a month: rate, failures, durations and waits, as charts. */
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useMemo, useState } from "react";
import { get } from "../api/client";
import type { List, Schemas } from "../api/types";
import { importOrReload } from "../app/lazy-import";
import { Empty, Loading, LoadStatus } from "./feedback";
import { count } from "./format";
import { Chips } from "./forms/filters";
import { Fact, Panel } from "./layout";
import { Duration, duration } from "./times";

const Chart = lazy(() => importOrReload(() => import("./chart")));

type Period = Schemas["WorkPeriod"];
type HistoryKind = "task" | "queue" | "host" | "worker";

export const SPANS = [
  { value: "1d", label: "1 day" },
  { value: "30d", label: "30 days" },
];

const SECONDS: Record<string, number> = { "1d": 86_400, "30d": 30 * 86_400 };

export function History({ kind, name }: { kind: HistoryKind; name: string }) {
  const [within, setWithin] = useState("1d");
  const found = useQuery({
    queryKey: ["history", kind, name, within],
    queryFn: () => get<List<Period>>(`/history/${kind}/${encodeURIComponent(name)}`, { within }),
    refetchInterval: 30_000,
    placeholderData: keepPreviousData,
  });
  const periods = found.data?.items;
  const charts = useMemo(() => chartsOf(periods ?? [], SECONDS[within] ?? 0), [periods, within]);
  return (
    <Panel title="History" aside={<Chips label="Period" options={SPANS} value={[within]} onChange={(next) => setWithin(next.at(-1) ?? within)} />}>
      {!periods ? (
        <LoadStatus query={found} lines={6} />
      ) : periods.length === 0 ? (
        <Empty title="Nothing was done in this period">Attempts are counted when they end, and kept for 31 days.</Empty>
      ) : (
        <>
          <Sums periods={periods} />
          <div className="history">
            {charts.map((chart) => (
              <section key={chart.title}>
                <h3>
                  {chart.title} <span className="faint">{chart.unit}</span>
                </h3>
                <Suspense fallback={<Loading lines={3} />}>
                  <Chart {...chart} />
                </Suspense>
              </section>
            ))}
          </div>
        </>
      )}
    </Panel>
  );
}

function Sums({ periods }: { periods: Period[] }) {
  const sum = (of: (period: Period) => number) => periods.reduce((total, each) => total + of(each), 0);
  const ended = sum((each) => each.ended);
  const failed = sum((each) => each.failed);
  return (
    <dl className="facts">
      <Fact name="Attempts">{count(ended)}</Fact>
      <Fact name="Failed">
        {count(failed)} {ended > 0 && <span className="faint">({((failed / ended) * 100).toFixed(1)}%)</span>}
      </Fact>
      <Fact name="Mean duration">
        <Duration seconds={ended ? sum((each) => each.seconds) / ended : null} />
      </Fact>
    </dl>
  );
}

function chartsOf(periods: Period[], seconds: number) {
  const last = periods.at(-1);
  const end = last ? Date.parse(last.at) / 1000 + last.lasts : 0;
  const shared = { times: periods.map((each) => Date.parse(each.at) / 1000), span: [end - seconds, end] as [number, number] };
  const line = (name: string, tone: string, of: (period: Period) => number | null) => ({ name, tone, values: periods.map(of) });
  const perMinute = (of: (period: Period) => number) => (period: Period) => (of(period) / period.lasts) * 60;
  return [
    { title: "Rate", unit: "per minute", ...shared, lines: [line("ended", "--run-fill", perMinute((each) => each.ended)), line("failed", "--bad-fill", perMinute((each) => each.failed))] },
    { title: "Duration", unit: "", format: duration, ...shared, lines: [line("p99", "--accent", (each) => each.p99 ?? null), line("p50", "--run-fill", (each) => each.p50 ?? null)] },
    { title: "Wait", unit: "", format: duration, ...shared, lines: [line("p99", "--accent", (each) => each.waited_p99 ?? null), line("p50", "--run-fill", (each) => each.waited_p50 ?? null)] },
  ];
}
