/** Runs a monitor's triggers over stored events and draws the alerts: a line for each entity, a bar for each alert. */
import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { Button } from "../../components/button";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage, Loading } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import type { Tone } from "../../components/states";
import { absolute, duration } from "../../components/times";
import "./monitors.css";
import { type BacktestResult, type Monitor, monitorApi } from "./types";

const TONES: Tone[] = ["bad", "run", "wait", "attention", "ok", "off"];
const MAX_LANES = 100;

export function Backtest({ monitor, onClose }: { monitor: Monitor; onClose: () => void }) {
  const [last, setLast] = useState("1d");
  const [triggers, setTriggers] = useState(monitor.triggers);
  const backtest = useMutation<BacktestResult, Error, void>({ mutationFn: () => post<BacktestResult>(`${monitorApi(monitor.name)}/backtest`, { last, triggers }) });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    backtest.mutate();
  };
  return (
    <Dialog title={`Backtest ${monitor.name}`} onClose={onClose} wide>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Period</span>
          <input className="field" value={last} onChange={(event) => setLast(event.target.value)} placeholder="6h, 1d, 7d" autoFocus />
        </label>
        <fieldset>
          <legend>Triggers</legend>
          <Chips label="Triggers" options={monitor.triggers.map((value) => ({ value }))} value={triggers} onChange={setTriggers} />
        </fieldset>
        {backtest.error && <ErrorMessage error={backtest.error} />}
        <Button kind="main" type="submit" busy={backtest.isPending} disabled={triggers.length === 0}>
          Run backtest
        </Button>
      </form>
      {backtest.isPending && <Loading lines={3} />}
      {backtest.data && <BacktestChart found={backtest.data} />}
    </Dialog>
  );
}

function BacktestChart({ found }: { found: BacktestResult }) {
  const since = Date.parse(found.since);
  const span = Math.max(1, Date.parse(found.until) - since);
  const triggers = Object.keys(found.counts);
  const total = Object.values(found.counts).reduce((sum, each) => sum + each, 0);
  const tone = (trigger: string) => TONES[triggers.indexOf(trigger) % TONES.length] ?? "off";
  const lanes = new Map<string, BacktestResult["alerts"]>();
  for (const alert of found.alerts) lanes.set(alert.entity, [...(lanes.get(alert.entity) ?? []), alert]);
  const part = (at: string) => Math.max(0, Math.min(1, (Date.parse(at) - since) / span));
  return (
    <>
      <p>
        Checked {plural(found.events, "event")} of {found.entities === 1 ? "1 entity" : `${count(found.entities)} entities`}. {plural(total, "alert")} would have opened{triggers.length === 0 ? "." : ": "}
        {triggers.map((trigger) => (
          <span key={trigger} className="legend">
            <span className={tone(trigger)}>
              <i />
              {trigger} {count(found.counts[trigger] ?? 0)}
            </span>
          </span>
        ))}
      </p>
      {total > found.alerts.length && <p className="faint">The chart shows the first {count(found.alerts.length)} alerts.</p>}
      {found.problems.length > 0 && <ErrorMessage error={new Error(found.problems.join("; "))} />}
      {lanes.size === 0 ? (
        <Empty title="No alerts in this period">Select a longer period or other triggers.</Empty>
      ) : (
        <div className="backtest" tabIndex={0} role="img" aria-label={`Alerts of ${lanes.size} entities between ${absolute(found.since)} and ${absolute(found.until)}`}>
          <div className="lane faint">
            <span />
            <span className="ends">
              <span>{absolute(found.since)}</span>
              <span>{absolute(found.until)}</span>
            </span>
            <span className="took">alerts</span>
          </div>
          {[...lanes].slice(0, MAX_LANES).map(([entity, alerts]) => (
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
          {lanes.size > MAX_LANES && <p className="faint pad">and {count(lanes.size - MAX_LANES)} more</p>}
        </div>
      )}
    </>
  );
}
