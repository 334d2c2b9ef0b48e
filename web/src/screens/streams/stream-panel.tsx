/** One stream: its dispatchers, sources and plans, with controls. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { JsonView, parseJson } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { Empty, ErrorMessage } from "../../components/feedback";
import { count, plural, rateText } from "../../components/format";
import { Panel } from "../../components/layout";
import { Count, num, RowActions, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { Duration } from "../../components/times";
import "./streams.css";
import type { Source, Stream, StreamControl } from "./types";

export function StreamPanel({ stream, may, onControl }: { stream: Stream; may: boolean; onControl: (control: StreamControl) => unknown }) {
  const [limited, setLimited] = useState<Source | null>(null);
  const [requesting, setRequesting] = useState(false);
  const draining = stream.dispatchers.some((each) => each.mode !== "run");
  return (
    <Panel
      title={stream.name}
      aside={
        <span className="row">
          {stream.dispatchers.length === 0 ? <State state="not_running" /> : <State state={draining ? "draining" : "running"} />}
          {stream.retries > 0 && <span className="soft">{count(stream.retries)} waiting for a retry</span>}
          {stream.dead > 0 && <Tag tone="bad">{plural(stream.dead, "dead letter")}</Tag>}
          {may && stream.dispatchers.length > 0 && (
            <Button className="small" onClick={() => setRequesting(true)}>
              Send live request …
            </Button>
          )}
          {may && stream.dispatchers.length > 0 && (
            <Button className="small" onClick={() => onControl({ stream: stream.name, mode: draining ? "run" : "drain" })}>
              {draining ? "Resume" : "Drain"}
            </Button>
          )}
        </span>
      }
    >
      {stream.dispatchers.length === 0 && (
        <Empty title="No dispatcher is running">
          Start one with <code>tidemill stream run app.py {stream.name}</code>, or all processes with <code>tidemill up app.py</code>.
        </Empty>
      )}
      {stream.dispatchers.map((dispatcher) => (
        <div key={`${dispatcher.host}:${dispatcher.pid}`}>
          <div className="pad soft">
            {dispatcher.host} (pid {dispatcher.pid}) · {count(dispatcher.in_flight)} of {count(dispatcher.max_concurrency)} in flight · {plural(dispatcher.engines, "engine")}
            {dispatcher.restarts > 0 && `, ${plural(dispatcher.restarts, "restart")}`}
            {(dispatcher.live.done > 0 || dispatcher.live.shed > 0) && ` · live requests: ${count(dispatcher.live.open)} open, ${count(dispatcher.live.done)} done, ${count(dispatcher.live.shed)} rejected`}
          </div>
          <Table label={`Sources of ${stream.name}`} heads={["Source", "State", num("Rate"), num("Lag", "Messages that wait at the source"), num("Waiting", "Messages that wait in the dispatcher"), num("In flight"), num("Done", "Since its dispatcher started, as the numbers to the right"), num("Retried", "Since its dispatcher started"), num("Dead", "Since its dispatcher started"), num("Expired", "Messages that were dropped because their deadline or max_age had passed"), num("Duplicates", "Messages whose id was done before, within dedup_window"), "Weight", "Limit"]} hasActions={may}>
            {dispatcher.sources.map((source) => (
              <tr key={source.name}>
                <td>{source.name}</td>
                <td>
                  {source.enabled ? <State state="enabled" /> : <State state="disabled" />}
                  {source.health === "failing" && <div className="connection-error" role="status">Cannot be read: {source.error}</div>}
                </td>
                <td className="num">{rateText(source.rate)}/s</td>
                <td className="num">{source.lag === null ? <span className="faint">–</span> : <Count value={source.lag} />}</td>
                <td className="num"><Count value={source.waiting} /></td>
                <td className="num"><Count value={source.in_flight} /></td>
                <td className="num"><Count value={source.done} /></td>
                <td className="num"><Count value={source.retried} /></td>
                <td className="num"><Count value={source.dead} /></td>
                <td className="num"><Count value={source.expired} /></td>
                <td className="num">
                  <Count value={source.duplicates} />
                  {source.known_ids != null && <div className="soft nowrap">{plural(source.known_ids, "id")} known</div>}
                  {!!source.forgotten_ids && (
                    <div className="soft nowrap" title="Forgotten here before dedup_window was over, because more came than are remembered; they are still found in the database">
                      {count(source.forgotten_ids)} forgotten
                    </div>
                  )}
                </td>
                <td>
                  <Weight source={source} may={may} onChange={(weight) => onControl({ stream: stream.name, source: source.name, weight })} />
                </td>
                <td className="nowrap">{limits(source) || <span className="faint">none</span>}</td>
                {may && (
                  <RowActions>
                    <Button className="small" aria-label={`Limit ${source.name}`} onClick={() => setLimited(source)}>
                      Limit …
                    </Button>
                    <Button className="small" aria-label={`${source.enabled ? "Disable" : "Enable"} ${source.name}`} onClick={() => onControl({ stream: stream.name, source: source.name, enabled: !source.enabled })}>
                      {source.enabled ? "Disable" : "Enable"}
                    </Button>
                  </RowActions>
                )}
              </tr>
            ))}
          </Table>
          {dispatcher.sinks && dispatcher.sinks.length > 0 && (
            <Table label={`Sinks of ${stream.name}`} heads={["Sink", "State", num("Waiting", "Items that wait to be sent"), num("Oldest", "How long the oldest item has waited"), num("Sent"), num("Retried", "Items that the sink refused, and that are sent again"), num("Dead")]} hasActions={may}>
              {dispatcher.sinks.map((sink) => (
                <tr key={sink.name}>
                  <td>{sink.name}</td>
                  <td>
                    {sink.enabled ? <State state="enabled" /> : <State state="disabled" />}
                    {sink.health === "standby" && <div className="soft">Another dispatcher sends</div>}
                    {sink.health === "failing" && <div className="connection-error" role="status">Cannot be reached: {sink.error}</div>}
                  </td>
                  <td className="num"><Count value={sink.waiting} /></td>
                  <td className="num"><Duration seconds={sink.oldest} /></td>
                  <td className="num"><Count value={sink.sent} /></td>
                  <td className="num"><Count value={sink.retried} /></td>
                  <td className="num"><Count value={sink.dead} /></td>
                  {may && (
                    <RowActions>
                      <Button className="small" aria-label={`${sink.enabled ? "Disable" : "Enable"} ${sink.name}`} onClick={() => onControl({ stream: stream.name, source: sink.name, enabled: !sink.enabled })}>
                        {sink.enabled ? "Disable" : "Enable"}
                      </Button>
                    </RowActions>
                  )}
                </tr>
              ))}
            </Table>
          )}
          {Object.keys(dispatcher.plans).length > 0 && (
            <Table label={`Plans of ${stream.name}`} heads={["Plan", num("Done"), num("Filtered"), num("Failed"), num("p50", "Median time for one message"), num("p99", "Time within which 99% of the messages are processed")]}>
              {Object.entries(dispatcher.plans).map(([name, plan]) => (
                <tr key={name}>
                  <td>{name}</td>
                  <td className="num"><Count value={plan.done} /></td>
                  <td className="num"><Count value={plan.filtered} /></td>
                  <td className="num"><Count value={plan.failed} /></td>
                  <td className="num"><Duration seconds={plan.p50} /></td>
                  <td className="num"><Duration seconds={plan.p99} /></td>
                </tr>
              ))}
            </Table>
          )}
        </div>
      ))}
      {limited && <LimitDialog source={limited} onClose={() => setLimited(null)} onLimit={(limit) => onControl({ stream: stream.name, source: limited.name, ...limit })} />}
      {requesting && <LiveRequestDialog stream={stream} onClose={() => setRequesting(false)} />}
    </Panel>
  );
}

/** The limits of a source, and the part of its rate that this dispatcher has. */
function limits(source: Source): string {
  const words: string[] = [];
  if (source.max_qps !== null) words.push(`${source.max_qps}/s`);
  if (source.max_qps !== null && source.burst) words.push(`burst ${source.burst}`);
  if (source.max_qps !== null && source.qps_part != null && source.qps_part !== source.max_qps) words.push(`here ${Math.round(source.qps_part * 10) / 10}/s`);
  if (source.max_concurrency) words.push(`${source.max_concurrency} at once`);
  return words.join(", ");
}

function LimitDialog({ source, onLimit, onClose }: { source: Source; onLimit: (limit: { max_qps: number; burst?: number }) => void; onClose: () => void }) {
  const [rate, setRate] = useState(source.max_qps === null ? "" : String(source.max_qps));
  const [burst, setBurst] = useState(source.burst == null ? "" : String(source.burst));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onLimit({ max_qps: Number(rate), ...(rate && burst ? { burst: Number(burst) } : {}) });
    onClose();
  };
  return (
    <Dialog title={`Limit source ${source.name}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Maximum messages per second</span>
          <input className="field" inputMode="decimal" value={rate} onChange={(event) => setRate(event.target.value)} placeholder="no limit" autoFocus />
          <small>The limit applies to all dispatchers together, and to retries and replays. To stop a source, disable it.</small>
        </label>
        <label>
          <span>Burst</span>
          <input className="field" inputMode="decimal" value={burst} onChange={(event) => setBurst(event.target.value)} placeholder="spread evenly" disabled={!rate} />
          <small>How many messages may pass at once after a quiet time.</small>
        </label>
        <Button kind="main" type="submit" disabled={rate === "" ? source.max_qps === null : !(Number(rate) > 0) || (burst !== "" && !(Number(burst) >= 1))}>
          {rate || source.max_qps === null ? "Set limit" : "Remove limit"}
        </Button>
      </form>
    </Dialog>
  );
}

/** Runs plans on one message, ahead of the backlog. */
function LiveRequestDialog({ stream, onClose }: { stream: Stream; onClose: () => void }) {
  const plans = [...new Set(stream.dispatchers.flatMap((each) => Object.keys(each.plans)))];
  const [eligibilities, setEligibilities] = useState("");
  const [payload, setPayload] = useState("{}");
  const read = parseJson(payload);
  const request = useAction<void, { result: unknown; failures: Record<string, string> }>({
    request: () => post<{ result: unknown; failures: Record<string, string> }>(`/streams/${encodeURIComponent(stream.name)}/live`, { eligibilities: eligibilities.split(/[\s,]+/).filter(Boolean), payload: read.value }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    request.mutate();
  };
  return (
    <Dialog title={`Live request to ${stream.name}`} onClose={onClose} wide>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Eligibilities</span>
          <input className="field" value={eligibilities} onChange={(event) => setEligibilities(event.target.value)} required autoFocus />
          <small>Plans with these eligibilities are run.{plans.length > 0 && ` Plans: ${plans.join(", ")}.`}</small>
        </label>
        <label>
          <span>Message</span>
          <textarea className="field" rows={5} value={payload} onChange={(event) => setPayload(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong && <small className="wrong">{read.wrong}</small>}
        </label>
        {request.error && <ErrorMessage error={request.error} />}
        {request.data && <JsonView value={Object.keys(request.data.failures).length ? request.data : request.data.result} label="result" />}
        <Button kind="main" type="submit" busy={request.isPending} disabled={read.wrong !== undefined}>
          Send
        </Button>
      </form>
    </Dialog>
  );
}

const STEPS = [0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 50, 100];

/** A slider over useful weights; the change is sent when it is released. */
function Weight({ source, may, onChange }: { source: Source; may: boolean; onChange: (weight: number) => void }) {
  const [dragged, setDragged] = useState<number | null>(null);
  const nearest = STEPS.reduce((best, step, index) => (Math.abs(step - source.weight) < Math.abs((STEPS[best] ?? 0) - source.weight) ? index : best), 0);
  const send = () => {
    if (dragged !== null && dragged !== nearest) onChange(STEPS[dragged] ?? 1);
    setDragged(null);
  };
  return (
    <span className="weight">
      {may && <input type="range" min={0} max={STEPS.length - 1} value={dragged ?? nearest} aria-label={`Weight of ${source.name}`} aria-valuetext={String(dragged === null ? source.weight : STEPS[dragged])} onChange={(event) => setDragged(Number(event.target.value))} onPointerUp={send} onBlur={send} onKeyUp={(event) => event.key === "Enter" && send()} />}
      {dragged === null ? source.weight : STEPS[dragged]}
    </span>
  );
}
