/** Monitors: alerts with their actions and history, and the entities of each monitor. */
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { get, post } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { useFilters } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { count } from "../../components/format";
import { Chips, Search, TimeFilter, timeRange } from "../../components/forms/filters";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { MoreRows, usePages } from "../../components/lists/paging";
import { RowActions, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { Ago, Took } from "../../components/times";
import { AlertHistory } from "./alert-history";
import { Backtest } from "./backtest";
import { Entities } from "./entities";
import { SilenceDialog } from "./silence-dialog";
import { Silences } from "./silences";
import { type Alert, type Monitor, monitorApi } from "./types";

const stateLabel = (alert: Alert) => (alert.state === "acknowledged" && alert.acked_by ? `acknowledged by ${alert.acked_by}` : undefined);

const severityTone = (severity: string) => (severity === "critical" ? "bad" : severity === "warning" ? "wait" : "off");

export function Monitors() {
  const may = useMay("operator");
  const [query, change] = useFilters();
  const monitor = query.get("monitor");
  const showAll = query.get("alerts") === "all";
  const [history, setHistory] = useState<number | null>(null);
  const [backtesting, setBacktesting] = useState<Monitor | null>(null);
  const monitors = useQuery({ queryKey: ["monitors"], queryFn: () => get<List<Monitor>>("/monitors"), refetchInterval: 15_000 });
  const text = query.toString();
  const filter = useMemo(() => {
    const found = new URLSearchParams(text);
    const word = (name: string) => found.get(name) ?? undefined;
    return { monitor: word("monitor"), entity: word("entity"), trigger: word("trigger"), current: found.get("alerts") !== "all", ...timeRange(found) };
  }, [text]);
  const alerts = usePages<Alert>("alerts", "/alerts", filter, 15_000);
  const isFiltered = filter.entity !== undefined || filter.trigger !== undefined || filter.since !== undefined || filter.until !== undefined;
  const ack = useAction<Alert, { ids: number[] }>({ request: (alert) => post<{ ids: number[] }>("/alerts/ack", { ids: [alert.id] }), message: (result, alert) => (result.ids.length ? `Acknowledged ${alert.trigger} of ${alert.entity}.` : "This alert was already acknowledged.") });
  const [silencing, setSilencing] = useState<Alert | null>(null);
  const pause = useAction<Monitor>({ request: (each) => post(`${monitorApi(each.name)}/${each.paused ? "resume" : "pause"}`), message: (_, each) => `${each.paused ? "Resumed" : "Paused"} monitor ${each.name}.` });
  const switchTrigger = useAction<{ monitor: string; trigger: string; on: boolean }>({ request: ({ monitor: name, trigger, on }) => post(`${monitorApi(name)}/triggers/${encodeURIComponent(trigger)}/${on ? "on" : "off"}`), message: (_, { trigger, on }) => (on ? `Enabled trigger ${trigger}. All entities are evaluated again.` : `Disabled trigger ${trigger}. Its open alerts are resolved.`) });
  const shown = alerts.rows;
  return (
    <>
      <PageHeader title="Monitors" subtitle="Alerts, and the entities and triggers of each monitor.">
        <Chips label="Alerts" options={[{ value: "current", label: "current alerts" }, { value: "all", label: "all alerts" }]} value={[showAll ? "all" : "current"]} onChange={(next) => change({ alerts: next.at(-1) === "all" ? "all" : null })} />
      </PageHeader>
      <LoadStatus query={monitors} />
      {monitors.data?.items.length === 0 ? (
        <Panel>
          <Empty title="No monitors yet">
            Declare one with <code>app.monitor(Monitor("machines", source=…, entity=…, fold=…, triggers=[…]))</code> and start it with <code>tidemill up</code>.
          </Empty>
        </Panel>
      ) : (
        <div className="columns slim">
          <div className="stack">
            <Panel title="Alerts" aside={alerts.data && <span className="faint" title={showAll ? undefined : "Open, not acknowledged, or resolved a short time ago"}>{count(shown.length)}{alerts.hasNextPage ? " or more" : ""}{showAll ? "" : " current"}</span>}>
              {(isFiltered || shown.length > 0) && (
                <div className="filters inside">
                  <Search label="Entity" value={filter.entity ?? ""} onChange={(entity) => change({ entity })} />
                  <Search label="Trigger" value={filter.trigger ?? ""} list={[...new Set(monitors.data?.items.flatMap((each) => each.triggers))]} onChange={(trigger) => change({ trigger })} />
                  <TimeFilter what="Opened" query={query} onChange={change} />
                </div>
              )}
              {!alerts.data ? (
                <LoadStatus query={alerts} />
              ) : shown.length === 0 ? (
                isFiltered ? <Empty title="No alerts match these filters" /> : <Empty good title={showAll ? "No alerts" : "No current alerts"}>An alert appears here when a trigger fires.</Empty>
              ) : (
                <Table label="Alerts" heads={["Entity", "Trigger", "State", "Opened", "Duration"]} hasActions>
                  {shown.map((alert) => (
                    <tr key={alert.id}>
                      <td>{alert.entity}</td>
                      <td className="nowrap">
                        {alert.trigger} <Tag tone={severityTone(alert.severity)}>{alert.severity}</Tag> {alert.silence !== null && <Tag>silenced</Tag>}
                      </td>
                      <td>
                        <State state={alert.state} label={stateLabel(alert)} />
                      </td>
                      <td className="nowrap"><Ago at={alert.opened_at} /></td>
                      <td className="nowrap">{alert.kind === "momentary" ? <span className="faint">–</span> : <Took from={alert.started_at ?? alert.opened_at} to={alert.resolved_at} />}</td>
                      <RowActions>
                        <Button className="small" aria-label={`History of ${alert.trigger} of ${alert.entity}`} onClick={() => setHistory(alert.id)}>History</Button>
                        {may && !alert.acked_at && alert.state !== "history" && <Button className="small" aria-label={`Acknowledge ${alert.trigger} of ${alert.entity}`} onClick={() => ack.mutateAsync(alert)}>Acknowledge</Button>}
                        {may && !alert.resolved_at && alert.silence === null && <Button className="small" aria-label={`Silence ${alert.trigger} of ${alert.entity}`} title="Send no notifications for a time" onClick={() => setSilencing(alert)}>Silence …</Button>}
                      </RowActions>
                    </tr>
                  ))}
                </Table>
              )}
              <MoreRows pages={alerts} />
            </Panel>
            {monitor && <Entities key={monitor} monitor={monitor} alerts={shown} triggers={monitors.data?.items.find((each) => each.name === monitor)?.triggers ?? []} may={may} />}
            <Silences may={may} />
          </div>
          <div className="stack">
            {monitors.data?.items.map((each) => (
              <Panel key={each.name} title={each.name} aside={<State state={each.health} />}>
                <dl className="facts">
                  <Fact name="Entities">
                    {count(each.entities)} {each.filling > 0 && <span className="faint">({count(each.filling)} reading past events)</span>}
                  </Fact>
                  <Fact name="Open alerts">{count(each.open)}</Fact>
                  <Fact name="Events">
                    {count(each.events)} <span className="faint">{eventNotes(each)}</span>
                  </Fact>
                  {reading(each) && (
                    <Fact name="Reads again">
                      <span title="What polls of about a minute read that was known before: the cost of late events for the source">{reading(each)}</span>
                    </Fact>
                  )}
                  <Fact name="Newest event"><Ago at={each.cursor_at} /></Fact>
                  <Fact name="Last tick">
                    {each.tick ? <>{count(each.tick)}, <Ago at={each.tick_at} /></> : "none yet"}
                  </Fact>
                </dl>
                {each.triggers.length > 0 && (
                  <div className="pad row">
                    <span className="faint">Triggers</span>
                    <Chips label={`Triggers of ${each.name}`} options={each.triggers.map((value) => ({ value, tone: (each.off ?? []).includes(value) ? "off" : "ok" }))} value={each.triggers.filter((name) => !(each.off ?? []).includes(name))} onChange={(next) => { if (!may) return; const changed = each.triggers.find((name) => next.includes(name) === (each.off ?? []).includes(name)); if (changed) switchTrigger.mutate({ monitor: each.name, trigger: changed, on: next.includes(changed) }); }} />
                  </div>
                )}
                {each.problems.length > 0 && <Problems of={each} />}
                <div className="card-foot start">
                  <Button className="small" aria-pressed={monitor === each.name} onClick={() => change({ monitor: monitor === each.name ? null : each.name })}>
                    {monitor === each.name ? "Show all monitors" : "Entities"}
                  </Button>
                  {may && each.triggers.length > 0 && <Button className="small" onClick={() => setBacktesting(each)}>Backtest …</Button>}
                  {may && <Button className="small" onClick={() => pause.mutateAsync(each)}>{each.paused ? "Resume" : "Pause"}</Button>}
                </div>
              </Panel>
            ))}
          </div>
        </div>
      )}
      {history !== null && <AlertHistory id={history} may={may} onClose={() => setHistory(null)} />}
      {silencing && <SilenceDialog alert={silencing} onClose={() => setSilencing(null)} />}
      {backtesting && <Backtest monitor={backtesting} onClose={() => setBacktesting(null)} />}
    </>
  );
}

/** What was special about a monitor's events: late ones, duplicates, those of entities that are not followed. */
function eventNotes({ late, duplicates, ignored }: Monitor): string {
  const notes = { late, duplicates, ignored };
  return Object.entries(notes).filter(([, value]) => value > 0).map(([name, value]) => `${count(value)} ${name}`).join(", ");
}

/** How far back polls read, and what that costs the source. */
function reading(monitor: Monitor): string | null {
  const status = monitor.status as { overlap?: number; overlap_most?: number; reading?: { records: number; read_again: number; pages: number } } | null;
  if (!status?.overlap_most) return null;
  const costs = status.reading?.pages ? `, ${count(status.reading.read_again)} of ${count(status.reading.records)} records` : "";
  return `${Math.round((status.overlap ?? 0) * 10) / 10} s${costs}`;
}

/** The errors of a monitor's code: where, for which entity, what, how often and when last. */
function Problems({ of }: { of: Monitor }) {
  return (
    <ul className="why" aria-label={`Problems of ${of.name}`}>
      {of.problems.map((each) => (
        <li key={`${each.place}/${each.entity}`}>
          <b>{each.place}</b>
          {each.entity && ` of ${each.entity}`}: {each.error} <span className="faint">{each.count}×, last <Ago at={each.last_at} /></span>
        </li>
      ))}
    </ul>
  );
}
