/** The live timeline of a run: bars for attempts, thin bars for waits; the items of a map are collapsed. */
import { Fragment, useState } from "react";
import { Empty, Loading } from "../../components/feedback";
import { count } from "../../components/format";
import { Panel } from "../../components/layout";
import { absolute, duration, useNow } from "../../components/times";
import type { Bar, Lane } from "./timeline-bars";

const MAX_INNER_LANES = 200;
const MAX_LANES = 200;

export function Timeline({ lanes, isLoading, from, to, chosen, onChoose }: { lanes: Lane[]; isLoading: boolean; from: number; to: number | null; chosen: string | null; onChoose: (name: string) => void }) {
  const now = useNow() / 1000;
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [most, setMost] = useState(MAX_LANES);
  const start = Math.min(from, ...lanes.flatMap((lane) => lane.bars.map((bar) => bar.from)));
  const last = Math.max(from + 0.001, ...lanes.flatMap((lane) => lane.bars.map((bar) => bar.to ?? now)));
  const end = to === null ? Math.max(now, last) : Math.max(to, last);
  const span = Math.max(0.001, end - start);
  const toggle = (name: string) => {
    const next = new Set(open);
    if (!next.delete(name)) next.add(name);
    setOpen(next);
  };
  return (
    <Panel
      title="Timeline"
      aside={
        <span className="legend">
          <span className="ok"><i />succeeded</span>
          <span className="run"><i />running</span>
          <span className="bad"><i />failed</span>
          <span className="wait"><i className="thin" />waiting</span>
        </span>
      }
    >
      {lanes.length === 0 && isLoading ? (
        <Loading lines={3} />
      ) : lanes.length === 0 ? (
        <Empty title="No step has started yet">The explanation above says what the run is waiting for.</Empty>
      ) : (
        <div className="timeline" tabIndex={0} role="group" aria-label="Timeline">
          <div className="scale" aria-hidden="true">
            <span />
            <span>
              {[0, 0.25, 0.5, 0.75, 1].map((part) => (
                <span key={part} title={absolute(start + part * span)}>{duration(part * span)}</span>
              ))}
            </span>
            <span />
          </div>
          {lanes.slice(0, most).map((lane) => (
            <Fragment key={lane.name}>
              <LaneView lane={lane} start={start} span={span} now={now} pressed={chosen === lane.name} onClick={() => { onChoose(lane.name); if (lane.inner?.length) toggle(lane.name); }} unfolded={lane.inner?.length ? open.has(lane.name) : undefined} />
              {open.has(lane.name) && lane.inner?.slice(0, MAX_INNER_LANES).map((each) => <LaneView key={each.name} lane={each} start={start} span={span} now={now} deep />)}
              {open.has(lane.name) && lane.inner && (lane.total ?? 0) > Math.min(lane.inner.length, MAX_INNER_LANES) && <p className="faint more-items">Showing {count(Math.min(lane.inner.length, MAX_INNER_LANES))} of {count(lane.total ?? 0)} items.</p>}
            </Fragment>
          ))}
          {lanes.length > most && (
            <p className="faint more-items">
              Showing {count(most)} of {count(lanes.length)} steps.{" "}
              <button type="button" className="link" onClick={() => setMost(most + MAX_LANES)}>
                Show more
              </button>
            </p>
          )}
        </div>
      )}
    </Panel>
  );
}

interface LaneProps {
  lane: Lane;
  start: number;
  span: number;
  now: number;
  pressed?: boolean;
  unfolded?: boolean;
  deep?: boolean;
  onClick?: () => void;
}

function LaneView({ lane, start, span, now, pressed, unfolded, deep = false, onClick }: LaneProps) {
  const first = lane.bars[0]?.from ?? start;
  const last = Math.max(...lane.bars.map((bar) => bar.to ?? now), first);
  const inside = (
    <>
      <span className={deep ? "name faint" : "name"} title={lane.label ? `${lane.name}: ${lane.label}` : lane.name}>
        {unfolded !== undefined && (unfolded ? "▾ " : "▸ ")}
        {deep ? "  " : ""}
        {lane.label ?? lane.name}
        {lane.inner?.length ? <span className="faint"> ×{count(lane.total ?? lane.inner.length)}</span> : null}
      </span>
      <span className="track">
        {lane.bars.map((bar, index) => (
          <i key={index} className={`${bar.tone} ${bar.thin ? "pause" : ""} ${bar.to === null ? "open" : ""}`} style={place(bar, start, span, now)} title={`${bar.label} (${duration((bar.to ?? now) - bar.from)})`} />
        ))}
      </span>
      <span className="took">{duration(last - first)}</span>
    </>
  );
  if (!onClick) return <div className="lane">{inside}</div>;
  return (
    <button type="button" className="lane" aria-pressed={pressed ?? false} aria-expanded={unfolded} onClick={onClick}>
      {inside}
    </button>
  );
}

function place(bar: Bar, start: number, span: number, now: number) {
  const left = Math.max(0, Math.min(1, (bar.from - start) / span));
  const right = Math.max(left, Math.min(1, ((bar.to ?? now) - start) / span));
  return { left: `${left * 100}%`, width: `${(right - left) * 100}%` };
}
