/** Streams: sources with rate, lag, weight and limit, changed while they run; dead letters with replay. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../api";
import { useAction } from "../parts/acting";
import { JsonView, parseJson } from "../parts/json";
import { Acts, num, Table } from "../parts/table";
import { Button, count, Dialog, Empty, Head, Loading, Panel, plural, State, Tag, Trouble } from "../parts/ui";
import { useMay } from "../session";
import { Ago, Within } from "../times";
import type { List } from "../types";

interface Source {
  name: string;
  weight: number;
  max_qps: number | null;
  enabled: boolean;
  rate: number;
  lag: number | null;
  waiting: number;
  in_flight: number;
  done: number;
  retried: number;
  dead: number;
}

interface Dispatcher {
  host: string;
  pid: number;
  mode: string;
  in_flight: number;
  max_in_flight: number;
  engines: number;
  restarts: number;
  sources: Source[];
  plans: Record<string, { done: number; filtered: number; failed: number; p50: number | null; p99: number | null }>;
}

interface Stream {
  name: string;
  dispatchers: Dispatcher[];
  retries: number;
  dead: number;
}

interface DeadLetter {
  id: number;
  stream: string;
  source: string;
  plans: string[] | null;
  why: string;
  error: string | null;
  attempts: number;
  buried_at: string;
  payload: string;
}

interface Wish {
  stream: string;
  source?: string;
  mode?: "run" | "drain";
  weight?: number;
  max_qps?: number;
  enabled?: boolean;
}

export function Streams() {
  const may = useMay("operate");
  const found = useQuery({ queryKey: ["streams"], queryFn: () => get<List<Stream>>("/streams"), refetchInterval: 15_000 });
  const change = useAction<Wish>({
    act: ({ stream, ...wish }) => post(`/streams/${encodeURIComponent(stream)}/control`, wish),
    told: (_, wish) => `${wish.stream}${wish.source ? `/${wish.source}` : ""}: ${Object.entries(wish).filter(([name]) => name !== "stream" && name !== "source").map(([name, value]) => `${name} ${String(value)}`).join(", ")}.`,
  });
  return (
    <>
      <Head title="Streams" under="What flows in from each source, how much is behind, and what was given up." />
      {found.error && <Trouble error={found.error} retry={() => void found.refetch()} />}
      {found.isPending && <Loading />}
      {found.data?.items.length === 0 && (
        <Panel>
          <Empty title="No stream yet">
            Declare one with <code>app.stream(Stream("posts", sources=[…], plans=[…]))</code>: <code>tidemill up</code> runs it.
          </Empty>
        </Panel>
      )}
      <div className="stack">
        {found.data?.items.map((stream) => (
          <StreamPanel key={stream.name} stream={stream} may={may} onWish={change.mutate} />
        ))}
        {found.data && found.data.items.length > 0 && <DeadLetters may={may} />}
      </div>
    </>
  );
}

function StreamPanel({ stream, may, onWish }: { stream: Stream; may: boolean; onWish: (wish: Wish) => void }) {
  const [limited, setLimited] = useState<Source | null>(null);
  const [asking, setAsking] = useState(false);
  const draining = stream.dispatchers.some((each) => each.mode !== "run");
  return (
    <Panel
      title={stream.name}
      aside={
        <span className="row">
          {stream.dispatchers.length === 0 ? <State state="silent" label="nobody runs it" /> : <State state={draining ? "draining" : "run"} label={draining ? "draining" : "running"} />}
          {stream.retries > 0 && <span className="soft">{count(stream.retries)} to be tried again</span>}
          {stream.dead > 0 && <Tag tone="bad">{plural(stream.dead, "dead letter")}</Tag>}
          {may && stream.dispatchers.length > 0 && (
            <Button className="small" onClick={() => setAsking(true)}>
              Ask live
            </Button>
          )}
          {may && stream.dispatchers.length > 0 && (
            <Button className="small" onClick={() => onWish({ stream: stream.name, mode: draining ? "run" : "drain" })}>
              {draining ? "Resume" : "Drain"}
            </Button>
          )}
        </span>
      }
    >
      {stream.dispatchers.length === 0 && (
        <Empty title="No dispatcher is alive">
          Start one with <code>tidemill stream run app.py {stream.name}</code>, or everything with <code>tidemill up app.py</code>.
        </Empty>
      )}
      {stream.dispatchers.map((dispatcher) => (
        <div key={`${dispatcher.host}:${dispatcher.pid}`}>
          <div className="pad soft">
            {dispatcher.host} (pid {dispatcher.pid}) · {count(dispatcher.in_flight)} of {count(dispatcher.max_in_flight)} in flight · {plural(dispatcher.engines, "engine")}
            {dispatcher.restarts > 0 && `, ${plural(dispatcher.restarts, "restart")}`}
          </div>
          <Table label={`Sources of ${stream.name}`} heads={["Source", "State", num("Rate"), num("Lag"), num("In flight"), num("Done"), num("Retried"), num("Dead"), "Weight", "Limit"]} acts={may}>
            {dispatcher.sources.map((source) => (
              <tr key={source.name}>
                <td>{source.name}</td>
                <td>{source.enabled ? <State state="run" label="on" /> : <State state="paused" label="off" />}</td>
                <td className="num">{count(Math.round(source.rate))}/s</td>
                <td className="num">{source.lag === null ? <span className="faint">–</span> : count(source.lag)}</td>
                <td className="num">{count(source.in_flight)}</td>
                <td className="num">{count(source.done)}</td>
                <td className="num">{count(source.retried)}</td>
                <td className="num">{count(source.dead)}</td>
                <td>
                  <Weight source={source} may={may} onChange={(weight) => onWish({ stream: stream.name, source: source.name, weight })} />
                </td>
                <td className="nowrap">{source.max_qps === null ? <span className="faint">none</span> : `${source.max_qps}/s`}</td>
                {may && (
                  <Acts>
                    <Button className="small" aria-label={`Limit ${source.name}`} onClick={() => setLimited(source)}>
                      Limit
                    </Button>
                    <Button className="small" aria-label={`Switch ${source.enabled ? "off" : "on"} ${source.name}`} onClick={() => onWish({ stream: stream.name, source: source.name, enabled: !source.enabled })}>
                      Switch {source.enabled ? "off" : "on"}
                    </Button>
                  </Acts>
                )}
              </tr>
            ))}
          </Table>
          {Object.keys(dispatcher.plans).length > 0 && (
            <Table label={`Plans of ${stream.name}`} heads={["Plan", num("Done"), num("Filtered"), num("Failed"), num("Half within"), num("99% within")]}>
              {Object.entries(dispatcher.plans).map(([name, plan]) => (
                <tr key={name}>
                  <td>{name}</td>
                  <td className="num">{count(plan.done)}</td>
                  <td className="num">{count(plan.filtered)}</td>
                  <td className="num">{count(plan.failed)}</td>
                  <td className="num"><Within seconds={plan.p50} /></td>
                  <td className="num"><Within seconds={plan.p99} /></td>
                </tr>
              ))}
            </Table>
          )}
        </div>
      ))}
      {limited && <LimitDialog source={limited} onClose={() => setLimited(null)} onLimit={(max_qps) => onWish({ stream: stream.name, source: limited.name, max_qps })} />}
      {asking && <AskDialog stream={stream} onClose={() => setAsking(false)} />}
    </Panel>
  );
}

function LimitDialog({ source, onLimit, onClose }: { source: Source; onLimit: (most: number) => void; onClose: () => void }) {
  const [text, setText] = useState(source.max_qps === null ? "" : String(source.max_qps));
  const most = Number(text);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onLimit(most);
    onClose();
  };
  return (
    <Dialog title={`Limit source ${source.name}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Messages a second that it may begin</span>
          <input className="field" inputMode="decimal" value={text} onChange={(event) => setText(event.target.value)} placeholder="such as 50" autoFocus />
          <small>Each dispatcher keeps to it by itself. To stop a source, switch it off.</small>
        </label>
        <Button kind="main" type="submit" disabled={!(most > 0)}>
          Set the limit
        </Button>
      </form>
    </Dialog>
  );
}

/** Runs plans on a message of one's own, ahead of the backlog. */
function AskDialog({ stream, onClose }: { stream: Stream; onClose: () => void }) {
  const plans = [...new Set(stream.dispatchers.flatMap((each) => Object.keys(each.plans)))];
  const [eligibilities, setEligibilities] = useState("");
  const [payload, setPayload] = useState("{}");
  const read = parseJson(payload);
  const asking = useAction<void, { result: unknown; failures: Record<string, string> }>({
    act: () => post<{ result: unknown; failures: Record<string, string> }>(`/streams/${encodeURIComponent(stream.name)}/live`, { eligibilities: eligibilities.split(/[\s,]+/).filter(Boolean), payload: read.value }),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    asking.mutate();
  };
  return (
    <Dialog title={`Ask ${stream.name} live`} onClose={onClose} wide>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Eligibilities</span>
          <input className="field" value={eligibilities} onChange={(event) => setEligibilities(event.target.value)} required autoFocus />
          <small>Which plans to run, by what they are for.{plans.length > 0 && ` Plans: ${plans.join(", ")}.`}</small>
        </label>
        <label>
          <span>Message</span>
          <textarea className="field" rows={5} value={payload} onChange={(event) => setPayload(event.target.value)} aria-invalid={read.wrong !== undefined} />
          {read.wrong && <small className="wrong">{read.wrong}</small>}
        </label>
        {asking.error && <Trouble error={asking.error} />}
        {asking.data && <JsonView value={Object.keys(asking.data.failures).length ? asking.data : asking.data.result} label="what the plans found" />}
        <Button kind="main" type="submit" busy={asking.isPending} disabled={read.wrong !== undefined}>
          Ask
        </Button>
      </form>
    </Dialog>
  );
}

const STEPS = [0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 50, 100];

/** A slider over useful weights; told when it is let go. */
function Weight({ source, may, onChange }: { source: Source; may: boolean; onChange: (weight: number) => void }) {
  const [held, setHeld] = useState<number | null>(null);
  const nearest = STEPS.reduce((best, step, index) => (Math.abs(step - source.weight) < Math.abs((STEPS[best] ?? 0) - source.weight) ? index : best), 0);
  const tell = () => {
    if (held !== null && held !== nearest) onChange(STEPS[held] ?? 1);
    setHeld(null);
  };
  return (
    <span className="weight">
      {may && <input type="range" min={0} max={STEPS.length - 1} value={held ?? nearest} aria-label={`Weight of ${source.name}`} aria-valuetext={String(held === null ? source.weight : STEPS[held])} onChange={(event) => setHeld(Number(event.target.value))} onPointerUp={tell} onBlur={tell} onKeyUp={(event) => event.key === "Enter" && tell()} />}
      {held === null ? source.weight : STEPS[held]}
    </span>
  );
}

function DeadLetters({ may }: { may: boolean }) {
  const found = useQuery({ queryKey: ["dead"], queryFn: () => get<{ items: DeadLetter[]; total: number }>("/dead-letters"), refetchInterval: 15_000 });
  const replay = useAction<{ stream: string; ids?: number[] }, { count: number }>({
    act: (which) => post<{ count: number }>("/dead-letters/replay", which),
    told: (result) => `${plural(result.count, "dead letter")} became ${result.count === 1 ? "a message" : "messages"} again.`,
  });
  const letters = found.data?.items ?? [];
  const streams = [...new Set(letters.map((letter) => letter.stream))];
  return (
    <Panel
      title={found.data?.total ? plural(found.data.total, "dead letter") : "Dead letters"}
      aside={may && streams.map((stream) => (
        <Button key={stream} className="small" busy={replay.isPending} onClick={() => replay.mutate({ stream })}>
          Replay all of {stream}
        </Button>
      ))}
    >
      {letters.length === 0 ? (
        <Empty good title="No dead letters">A message that fails at every attempt is kept here, and can be replayed.</Empty>
      ) : (
        <Table label="Dead letters" heads={["Letter", "From", "Why", num("Attempts"), "Given up", "Message"]} acts={may}>
          {letters.map((letter) => (
            <tr key={letter.id}>
              <td>{letter.id}</td>
              <td className="nowrap">{letter.stream}/{letter.source}</td>
              <td>
                <div className="cut" title={letter.error ?? ""}>
                  <Tag tone="bad">{letter.why}</Tag> {letter.error}
                </div>
              </td>
              <td className="num">{letter.attempts}</td>
              <td className="nowrap"><Ago at={letter.buried_at} /></td>
              <td><div className="cut mono" title={letter.payload}>{letter.payload}</div></td>
              {may && (
                <Acts>
                  <Button className="small" aria-label={`Replay ${letter.id}`} onClick={() => replay.mutate({ stream: letter.stream, ids: [letter.id] })}>
                    Replay
                  </Button>
                </Acts>
              )}
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  );
}
