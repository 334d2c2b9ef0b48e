/** Monitors: alerts with acknowledge and silence at hand, the story of each, and whom each monitor follows. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { Backtest } from "../monitors/backtest";
import { Entities } from "../monitors/entities";
import { type Alert, type Monitor, pathOf } from "../monitors/model";
import { Silences } from "../monitors/silences";
import { Story } from "../monitors/story";
import { Acts, Table } from "../parts/table";
import { Button, Chips, count, Empty, Head, Loading, Panel, State, Tag, Trouble } from "../parts/ui";
import { useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { List } from "../types";

/** How an alert stands, and what that is called. */
function standingOf(alert: Alert): { state: string; label?: string } {
  const isOnce = alert.kind === "momentary";
  if (alert.acked_at && (isOnce || !alert.resolved_at)) return { state: "acked", label: `seen by ${alert.acked_by ?? "somebody"}` };
  if (isOnce) return { state: "waiting", label: "happened" };
  return alert.resolved_at ? { state: "resolved" } : { state: "failed", label: "open" };
}

const toneOf = (severity: string) => (severity === "critical" ? "bad" : severity === "warning" ? "wait" : "off");

export function Monitors() {
  const may = useMay("operate");
  const [query, change] = useFilters();
  const monitor = query.get("monitor");
  const everything = query.get("alerts") === "all";
  const [story, setStory] = useState<number | null>(null);
  const [trying, setTrying] = useState<Monitor | null>(null);
  const monitors = useQuery({ queryKey: ["monitors"], queryFn: () => get<List<Monitor>>("/monitors"), refetchInterval: 15_000 });
  const alerts = useQuery({ queryKey: ["alerts", monitor, everything], queryFn: () => get<List<Alert>>("/alerts", { monitor, current: !everything }), refetchInterval: 15_000 });
  const ack = useAction<Alert, { ids: number[] }>({ act: (alert) => post<{ ids: number[] }>("/alerts/ack", { ids: [alert.id] }), told: (result, alert) => (result.ids.length ? `You have taken note of ${alert.trigger} of ${alert.entity}.` : "Somebody had acknowledged it before.") });
  const silence = useAction<Alert>({ act: (alert) => post(`${pathOf(alert.monitor)}/silences`, { matchers: { trigger: alert.trigger, entity: alert.entity }, lasts: "1h", comment: "from the console" }), told: (_, alert) => `Nobody is told of ${alert.trigger} of ${alert.entity} for an hour.` });
  const hold = useAction<Monitor>({ act: (each) => post(`${pathOf(each.name)}/${each.paused ? "resume" : "pause"}`), told: (_, each) => `${each.name} ${each.paused ? "goes on" : "is paused"}.` });
  const flip = useAction<{ monitor: string; trigger: string; on: boolean }>({ act: ({ monitor: name, trigger, on }) => post(`${pathOf(name)}/triggers/${encodeURIComponent(trigger)}/${on ? "on" : "off"}`), told: (_, { trigger, on }) => (on ? `${trigger} is on: everybody is looked at anew.` : `${trigger} is off: its open alerts are resolved.`) });
  const shown = alerts.data?.items ?? [];
  return (
    <>
      <Head title="Monitors" under="Whom they follow, and what needs somebody now.">
        <Chips label="Alerts" options={[{ value: "current", label: "needs somebody" }, { value: "all", label: "all alerts" }]} value={[everything ? "all" : "current"]} onChange={(next) => change({ alerts: next.at(-1) === "all" ? "all" : null })} />
      </Head>
      {monitors.error && <Trouble error={monitors.error} retry={() => void monitors.refetch()} />}
      {monitors.isPending && <Loading />}
      {monitors.data?.items.length === 0 ? (
        <Panel>
          <Empty title="No monitor yet">
            Declare one with <code>app.monitor(Monitor("machines", source=…, entity=…, fold=…, triggers=[…]))</code>: <code>tidemill up</code> follows it.
          </Empty>
        </Panel>
      ) : (
        <div className="columns">
          <div className="stack">
            <Panel title="Alerts" aside={<span className="faint">{everything ? count(shown.length) : `${count(shown.length)} open, not yet seen or just over`}</span>}>
              {shown.length === 0 ? (
                <Empty good title="Nothing needs you">Alerts appear here by themselves when a trigger says so.</Empty>
              ) : (
                <Table label="Alerts" heads={["Who", "What", "State", "Opened", "Lasts"]} acts>
                  {shown.map((alert) => (
                    <tr key={alert.id}>
                      <td>{alert.entity}</td>
                      <td className="nowrap">
                        {alert.trigger} <Tag tone={toneOf(alert.severity)}>{alert.severity}</Tag> {alert.silence !== null && <Tag>silenced</Tag>}
                      </td>
                      <td>
                        <State {...standingOf(alert)} />
                      </td>
                      <td className="nowrap"><Ago at={alert.opened_at} /></td>
                      <td className="nowrap">{alert.kind === "momentary" ? <span className="faint">a moment</span> : <Took from={alert.started_at ?? alert.opened_at} to={alert.resolved_at} />}</td>
                      <Acts>
                        <Button className="small" aria-label={`Story of ${alert.trigger} of ${alert.entity}`} onClick={() => setStory(alert.id)}>Story</Button>
                        {may && !alert.acked_at && <Button className="small" aria-label={`Ack ${alert.trigger} of ${alert.entity}`} onClick={() => ack.mutate(alert)}>Ack</Button>}
                        {may && !alert.resolved_at && alert.silence === null && <Button className="small" aria-label={`Silence ${alert.trigger} of ${alert.entity}`} onClick={() => silence.mutate(alert)}>Silence</Button>}
                      </Acts>
                    </tr>
                  ))}
                </Table>
              )}
            </Panel>
            {monitor && <Entities key={monitor} monitor={monitor} alerts={shown} may={may} />}
            <Silences may={may} />
          </div>
          <div className="stack">
            {monitors.data?.items.map((each) => (
              <Panel key={each.name} title={each.name} aside={each.paused ? <State state="paused" /> : each.members === 0 ? <State state="silent" label="nobody follows it" /> : <State state={healthOf(each)} />}>
                <dl className="facts">
                  <dt>Entities</dt>
                  <dd>
                    {count(each.entities)} {each.filling > 0 && <span className="faint">({count(each.filling)} read their past)</span>}
                  </dd>
                  <dt>Open alerts</dt>
                  <dd>{count(each.open)}</dd>
                  <dt>Events</dt>
                  <dd>
                    {count(each.events)} <span className="faint">{each.late > 0 && `${count(each.late)} came late`}</span>
                  </dd>
                  <dt>Newest event</dt>
                  <dd><Ago at={each.cursor_at} /></dd>
                  <dt>Last tick</dt>
                  <dd>
                    {count(each.tick)}, <Ago at={each.tick_at} />
                  </dd>
                </dl>
                {each.triggers.length > 0 && (
                  <div className="pad row">
                    <span className="faint">Triggers</span>
                    <Chips label={`Triggers of ${each.name}`} options={each.triggers.map((value) => ({ value, tone: (each.off ?? []).includes(value) ? "off" : "ok" }))} value={each.triggers.filter((name) => !(each.off ?? []).includes(name))} onChange={(next) => { if (!may) return; const changed = each.triggers.find((name) => next.includes(name) === (each.off ?? []).includes(name)); if (changed) flip.mutate({ monitor: each.name, trigger: changed, on: next.includes(changed) }); }} />
                  </div>
                )}
                {each.problems.length > 0 && <JsonView value={each.problems} label={`problems of ${each.name}`} />}
                <div className="card-foot">
                  <Button className="small" aria-pressed={monitor === each.name} onClick={() => change({ monitor: monitor === each.name ? null : each.name })}>
                    {monitor === each.name ? "Show all monitors" : "Whom it follows"}
                  </Button>
                  {may && each.triggers.length > 0 && <Button className="small" onClick={() => setTrying(each)}>Try on the past</Button>}
                  {may && <Button className="small" onClick={() => hold.mutate(each)}>{each.paused ? "Resume" : "Pause"}</Button>}
                </div>
              </Panel>
            ))}
          </div>
        </div>
      )}
      {story !== null && <Story id={story} may={may} onClose={() => setStory(null)} />}
      {trying && <Backtest monitor={trying} onClose={() => setTrying(null)} />}
    </>
  );
}

const healthOf = (monitor: Monitor): string => {
  const health = monitor.status?.health ?? monitor.status?.state;
  return typeof health === "string" ? health.toLowerCase() : "healthy";
};
