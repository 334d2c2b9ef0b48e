/** Monitors: alerts with acknowledge and silence at hand, the story of each, and whom each monitor follows. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView } from "../parts/json";
import { Button, Chips, count, Dialog, Empty, Head, Loading, Panel, plural, State, Tag, Trouble } from "../parts/ui";
import { useFilters } from "../router";
import { useMay } from "../session";
import { Ago, Took } from "../times";
import type { List } from "../types";

interface Monitor {
  name: string;
  version: string;
  tick: number;
  tick_at: string | null;
  cursor_at: string | null;
  events: number;
  late: number;
  paused: boolean;
  status: Record<string, unknown> | null;
  seen_at: string | null;
  entities: number;
  filling: number;
  open: number;
  members: number;
  problems: Record<string, unknown>[];
}

interface Alert {
  id: number;
  monitor: string;
  trigger: string;
  entity: string;
  kind: string;
  severity: string;
  started_at: string | null;
  opened_at: string;
  resolved_at: string | null;
  resolution: string | null;
  acked_at: string | null;
  acked_by: string | null;
  owner: string | null;
  note: string | null;
  silence: number | null;
}

interface Entity {
  entity: string;
  last_at: string | null;
  count: number;
  state: unknown;
  labels: unknown;
}

const stateOf = (alert: Alert) => (alert.resolved_at && alert.kind !== "momentary" ? "resolved" : alert.acked_at ? "acked" : "failed");
const toneOf = (severity: string) => (severity === "critical" ? "bad" : severity === "warning" ? "wait" : "off");

export function Monitors() {
  const may = useMay("operate");
  const [query, change] = useFilters();
  const monitor = query.get("monitor");
  const everything = query.get("alerts") === "all";
  const [story, setStory] = useState<number | null>(null);
  const monitors = useQuery({ queryKey: ["monitors"], queryFn: () => get<List<Monitor>>("/monitors"), refetchInterval: 3000 });
  const alerts = useQuery({ queryKey: ["alerts", monitor, everything], queryFn: () => get<List<Alert>>("/alerts", { monitor, current: !everything }), refetchInterval: 3000 });
  const ack = useAction<Alert, { ids: number[] }>({ act: (alert) => post<{ ids: number[] }>("/alerts/ack", { ids: [alert.id] }), told: (result, alert) => (result.ids.length ? `You have taken note of ${alert.trigger} of ${alert.entity}.` : "Somebody had acknowledged it before.") });
  const silence = useAction<Alert>({ act: (alert) => post(`/monitors/${encodeURIComponent(alert.monitor)}/silences`, { matchers: { trigger: alert.trigger, entity: alert.entity }, lasts: "1h", comment: "from the console" }), told: (_, alert) => `Nobody is told of ${alert.trigger} of ${alert.entity} for an hour.` });
  const hold = useAction<Monitor>({ act: (each) => post(`/monitors/${encodeURIComponent(each.name)}/${each.paused ? "resume" : "pause"}`), told: (_, each) => `${each.name} ${each.paused ? "goes on" : "is paused"}.` });
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
            <Panel title="Alerts" aside={<span className="faint">{count(shown.length)}</span>}>
              {shown.length === 0 ? (
                <Empty good title="Nothing needs you">Alerts appear here by themselves when a trigger says so.</Empty>
              ) : (
                <div className="scroll" tabIndex={0} role="region" aria-label="Alerts">
                  <table>
                    <thead>
                      <tr>
                        <th>Who</th>
                        <th>What</th>
                        <th>State</th>
                        <th>Opened</th>
                        <th>Lasts</th>
                        <th />
                      </tr>
                    </thead>
                    <tbody>
                      {shown.map((alert) => (
                        <tr key={alert.id}>
                          <td>{alert.entity}</td>
                          <td className="nowrap">
                            {alert.trigger} <Tag tone={toneOf(alert.severity)}>{alert.severity}</Tag> {alert.silence !== null && <Tag>silenced</Tag>}
                          </td>
                          <td>
                            <State state={stateOf(alert)} label={alert.acked_at && !alert.resolved_at ? `seen by ${alert.acked_by ?? "somebody"}` : stateOf(alert) === "failed" ? "open" : undefined} />
                          </td>
                          <td className="nowrap"><Ago at={alert.opened_at} /></td>
                          <td className="nowrap">{alert.kind === "momentary" ? <span className="faint">a moment</span> : <Took from={alert.started_at ?? alert.opened_at} to={alert.resolved_at} />}</td>
                          <td className="right nowrap">
                            <Button className="small" aria-label={`Story of ${alert.trigger} of ${alert.entity}`} onClick={() => setStory(alert.id)}>Story</Button>{" "}
                            {may && !alert.acked_at && <Button className="small" aria-label={`Ack ${alert.trigger} of ${alert.entity}`} onClick={() => ack.mutate(alert)}>Ack</Button>}{" "}
                            {may && !alert.resolved_at && alert.silence === null && <Button className="small" aria-label={`Silence ${alert.trigger} of ${alert.entity}`} onClick={() => silence.mutate(alert)}>Silence</Button>}
                          </td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              )}
            </Panel>
            {monitor && <Entities monitor={monitor} alerts={shown} />}
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
                {each.problems.length > 0 && <JsonView value={each.problems} label={`problems of ${each.name}`} />}
                <div className="card-foot">
                  <Button className="small" aria-pressed={monitor === each.name} onClick={() => change({ monitor: monitor === each.name ? null : each.name })}>
                    {monitor === each.name ? "Show all monitors" : "Whom it follows"}
                  </Button>
                  {may && <Button className="small" onClick={() => hold.mutate(each)}>{each.paused ? "Resume" : "Pause"}</Button>}
                </div>
              </Panel>
            ))}
          </div>
        </div>
      )}
      {story !== null && <Story id={story} onClose={() => setStory(null)} />}
    </>
  );
}

const healthOf = (monitor: Monitor): string => {
  const health = monitor.status?.health ?? monitor.status?.state;
  return typeof health === "string" ? health.toLowerCase() : "healthy";
};

function Entities({ monitor, alerts }: { monitor: string; alerts: Alert[] }) {
  const found = useQuery({ queryKey: ["entities", monitor], queryFn: () => get<List<Entity>>(`/monitors/${encodeURIComponent(monitor)}/entities`), refetchInterval: 5000 });
  const [open, setOpen] = useState<string | null>(null);
  const troubled = new Set(alerts.filter((alert) => !alert.resolved_at).map((alert) => alert.entity));
  return (
    <Panel title={`Whom ${monitor} follows`} aside={<span className="faint">{count(found.data?.items.length ?? 0)}</span>}>
      {found.data?.items.length === 0 && <Empty title="Nobody yet">Entities come with their first event, or with <code>tidemill monitor roster add NAME</code>.</Empty>}
      <ul className="entities">
        {found.data?.items.map((each) => (
          <li key={each.entity}>
            <button type="button" aria-expanded={open === each.entity} onClick={() => setOpen(open === each.entity ? null : each.entity)}>
              <State state={troubled.has(each.entity) ? "failed" : "alive"} label={each.entity} />
              <span className="faint">{plural(each.count, "event")}, the last <Ago at={each.last_at} /></span>
            </button>
            {open === each.entity && <JsonView value={{ state: each.state, labels: each.labels }} label={`state of ${each.entity}`} />}
          </li>
        ))}
      </ul>
    </Panel>
  );
}

interface StoryData {
  alert: Alert;
  explain: unknown;
  history: { at: string; action: string; who: string | null; detail: unknown }[];
}

/** Why an alert opened, and who did what since. */
function Story({ id, onClose }: { id: number; onClose: () => void }) {
  const found = useQuery({ queryKey: ["alerts", "story", id], queryFn: () => get<StoryData>(`/alerts/${id}`) });
  return (
    <Dialog title={found.data ? `${found.data.alert.trigger} of ${found.data.alert.entity}` : "Alert"} onClose={onClose} wide>
      {found.error && <Trouble error={found.error} />}
      {found.isPending && <Loading />}
      {found.data && (
        <>
          <h3>Why it opened</h3>
          <JsonView value={found.data.explain} label="why it opened" />
          <h3>What happened since</h3>
          <ul className="why">
            {found.data.history.map((each, index) => (
              <li key={index}>
                <b>{each.action}</b> {each.who && `by ${each.who}`} <span className="faint"><Ago at={each.at} /></span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Dialog>
  );
}
