/** What a monitor's triggers would have opened in a stored span, as a picture: a line per entity, a bar per alert. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { post } from "../api";
import { Button, Chips, count, Dialog, Empty, plural, Trouble } from "../parts/ui";
import { absolute, duration } from "../times";
import { type Backtested, type Monitor, pathOf } from "./model";
import "./monitors.css";

const TONES = ["bad", "run", "wait", "park", "ok", "off"];
const MOST_LANES = 100;

export function Backtest({ monitor, onClose }: { monitor: Monitor; onClose: () => void }) {
  const [last, setLast] = useState("1d");
  const [triggers, setTriggers] = useState(monitor.triggers);
  const trying = useMutation<Backtested, Error, void>({ mutationFn: () => post<Backtested>(`${pathOf(monitor.name)}/backtest`, { last, triggers }) });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    trying.mutate();
  };
  return (
    <Dialog title={`Try the triggers of ${monitor.name} on the past`} onClose={onClose} wide>
      <form className="form" onSubmit={submit}>
        <label>
          <span>How far back</span>
          <input className="field" value={last} onChange={(event) => setLast(event.target.value)} placeholder="6h, 1d, 7d" autoFocus />
        </label>
        <fieldset>
          <legend>Triggers</legend>
          <Chips label="Triggers" options={monitor.triggers.map((value) => ({ value }))} value={triggers} onChange={setTriggers} />
        </fieldset>
        {trying.error && <Trouble error={trying.error} />}
        <Button kind="main" type="submit" busy={trying.isPending} disabled={triggers.length === 0}>
          Try them
        </Button>
      </form>
      {trying.data && <Picture found={trying.data} />}
    </Dialog>
  );
}

function Picture({ found }: { found: Backtested }) {
  const since = Date.parse(found.since);
  const span = Math.max(1, Date.parse(found.until) - since);
  const triggers = Object.keys(found.counts);
  const tone = (trigger: string) => TONES[triggers.indexOf(trigger) % TONES.length] ?? "off";
  const lanes = new Map<string, Backtested["alerts"]>();
  for (const alert of found.alerts) lanes.set(alert.entity, [...(lanes.get(alert.entity) ?? []), alert]);
  const part = (at: string) => Math.max(0, Math.min(1, (Date.parse(at) - since) / span));
  return (
    <>
      <p>
        {plural(found.events, "event")} of {found.entities === 1 ? "1 entity" : `${count(found.entities)} entities`} would have opened {triggers.length === 0 ? "nothing" : ""}
        {triggers.map((trigger) => (
          <span key={trigger} className="legend">
            <span className={tone(trigger)}>
              <i />
              {trigger} {count(found.counts[trigger] ?? 0)}×
            </span>
          </span>
        ))}
      </p>
      {found.problems.length > 0 && <Trouble error={new Error(found.problems.join("; "))} />}
      {lanes.size === 0 ? (
        <Empty good title="No alert in this span">Choose a longer one, or other triggers.</Empty>
      ) : (
        <div className="backtest" tabIndex={0} role="img" aria-label={`Alerts of ${lanes.size} entities between ${absolute(found.since)} and ${absolute(found.until)}`}>
          {[...lanes].slice(0, MOST_LANES).map(([entity, alerts]) => (
            <div className="lane" key={entity}>
              <span className="name" title={entity}>{entity}</span>
              <span className="track">
                {alerts.map((alert, index) => {
                  const from = part(alert.started_at);
                  const to = part(alert.resolved_at ?? found.until);
                  const once = alert.kind === "momentary";
                  return (
                    <i
                      key={index}
                      className={`${tone(alert.trigger)} ${once ? "once" : ""}`}
                      style={once ? { left: `${from * 100}%` } : { left: `${from * 100}%`, width: `${(to - from) * 100}%` }}
                      title={`${alert.trigger}, ${absolute(alert.started_at)}${once ? "" : `, ${duration(((to - from) * span) / 1000)}`}`}
                    />
                  );
                })}
              </span>
              <span className="took">{count(alerts.length)}</span>
            </div>
          ))}
          {lanes.size > MOST_LANES && <p className="faint pad">and {count(lanes.size - MOST_LANES)} more</p>}
        </div>
      )}
    </>
  );
}
