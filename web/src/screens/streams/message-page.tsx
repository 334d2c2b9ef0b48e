/** One message of a stream, or its dead letter: where it waits, each failed attempt, and what it handed over. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import { useAction } from "../../api/use-action";
import { go, Link } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Explanation } from "../../components/details/explanation";
import { type Explained, explain, FollowedTable } from "../../components/details/followed";
import { JsonView } from "../../components/details/json";
import { Dialog } from "../../components/dialog";
import { ErrorMessage, PageStatus } from "../../components/feedback";
import { count, plural } from "../../components/format";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { num, Table } from "../../components/lists/table";
import { State } from "../../components/state";
import { Ago, Duration, millis } from "../../components/times";
import { FailedAttempts } from "./failed-attempts";
import type { DeadLetter, Message } from "./types";

const UNSETTLED = ["waiting", "retrying", "in_flight", "unknown"];
const WAITS_FOR: Record<string, string> = {
  source: "a dispatcher to read it",
  limit: "the limit of its source",
  max_concurrency: "others of its source",
  slot: "a free slot",
  turn: "its turn",
  key: "its key",
  retry: "its next attempt",
  delay: "the delay of its source",
  quarantine: "the quarantine engine",
  enabled: "its source to be enabled",
  resume: "the stream to be resumed",
};

/** The address of the page of a message or a dead letter. */
export const messageUrl = (id: string) => `/streams/${id.split("/").map(encodeURIComponent).join("/")}`;

export function MessagePage({ id }: { id: string }) {
  const found = useQuery({
    queryKey: ["message", id],
    queryFn: () => explain(id.split("/").map(encodeURIComponent).join("/"), true),
    refetchInterval: (query) => (UNSETTLED.includes(query.state.data?.state ?? "") ? 2000 : false),
  });
  const explained = found.data;
  if (!explained) return <PageStatus title={`Message ${id}`} query={found} lines={8} />;
  const { message = null, dead_letter: letter = null } = explained;
  const attempts = letter?.history ?? message?.history ?? [];
  return (
    <>
      <PageHeader title={title(explained)} subtitle={<Subtitle explained={explained} />}>
        {letter && <Replay letter={letter} />}
      </PageHeader>
      <div className="run-grid">
        <div className="stack">
          <Panel title="Explanation">
            <Explanation lines={explained.why} />
          </Panel>
          {attempts.length > 0 && (
            <Panel title={attempts.length === 1 ? "Failed attempt" : `${attempts.length} failed attempts`}>
              <FailedAttempts attempts={attempts} />
            </Panel>
          )}
          {message && <HandedOver message={message} followed={explained.followed} />}
          {letter && <Content letter={letter} />}
        </div>
        <div className="stack">
          <Panel title="Details">
            <dl className="facts">
              {message && <MessageFacts message={message} />}
              {letter && <LetterFacts letter={letter} />}
            </dl>
          </Panel>
        </div>
      </div>
    </>
  );
}

function title(explained: Explained): string {
  const { message, dead_letter: letter } = explained;
  if (letter?.sink) return `Item d${letter.id} for sink ${letter.sink}`;
  return `Message ${letter?.place ?? message?.place ?? message?.message_id ?? explained.id}`;
}

function Subtitle({ explained }: { explained: Explained }) {
  const { message, dead_letter: letter } = explained;
  const stream = letter?.stream ?? message?.stream;
  return (
    <span className="row">
      <State state={letter ? "dead" : explained.state} />
      {letter && <>dead letter d{letter.id}</>} of source {letter?.source ?? message?.source ?? "–"} in <Link to="/streams">stream {stream ?? "–"}</Link>
    </span>
  );
}

function Replay({ letter }: { letter: DeadLetter }) {
  const may = useMay("operator");
  const [editing, setEditing] = useState(false);
  const replay = useReplay(letter);
  return may ? (
    <>
      <Button busy={replay.isPending} onClick={() => replay.mutate(null)}>
        Replay
      </Button>
      {!letter.truncated && <Button onClick={() => setEditing(true)}>Edit and replay</Button>}
      {editing && <EditDialog letter={letter} onClose={() => setEditing(false)} />}
    </>
  ) : null;
}

/** Tries a dead letter again, with another payload or its own. */
function useReplay(letter: DeadLetter) {
  return useAction<string | null, { count: number }>({
    request: (payload) => post<{ count: number }>("/dead-letters/replay", { stream: letter.stream, ids: [letter.id], payload }),
    message: (result) => `Replayed ${plural(result.count, "dead letter")}.`,
    onSuccess: () => go(letter.sink ? "/streams" : messageUrl(`${letter.stream}/${letter.source}:${letter.place}`)),
  });
}

function EditDialog({ letter, onClose }: { letter: DeadLetter; onClose: () => void }) {
  const [text, setText] = useState(letter.payload);
  const replay = useReplay(letter);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    replay.mutate(text);
  };
  return (
    <Dialog title={`Edit and replay d${letter.id}`} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Payload</span>
          <textarea className="field mono" rows={8} value={text} onChange={(event) => setText(event.target.value)} autoFocus />
          <small>It replaces the payload; key, headers and plans stay.</small>
        </label>
        {replay.error && <ErrorMessage error={replay.error} />}
        <Button kind="main" type="submit" busy={replay.isPending}>
          Replay
        </Button>
      </form>
    </Dialog>
  );
}

/** What the message has handed over, what its sinks do not have yet, and what they have refused. */
function HandedOver({ message, followed }: { message: Message; followed: Explained["followed"] }) {
  const emitted = message.emitted ?? [];
  const refused = message.refused ?? [];
  if (emitted.length + refused.length + (followed?.length ?? 0) === 0) return null;
  return (
    <Panel title="Handed over">
      {followed && followed.length > 0 && <FollowedTable label="Handed over" followed={followed} />}
      {emitted.length > 0 && (
        <Table label="Items that wait to be sent" heads={["Sink", "Plan", "Since", num("Refused", "How often the sink has refused it"), "Next attempt", "Error"]}>
          {emitted.map((item, index) => (
            <tr key={index}>
              <td>{item.sink}</td>
              <td>{item.plan}</td>
              <td className="nowrap"><Ago at={item.at} /></td>
              <td className="num">{count(item.attempts)}</td>
              <td className="nowrap"><Ago at={item.due_at} /></td>
              <td>{item.error}</td>
            </tr>
          ))}
        </Table>
      )}
      {refused.length > 0 && (
        <p className="pad">
          Refused for good: {refused.map((each) => <span key={each}><Link to={messageUrl(`d${each}`)}>d{each}</Link> </span>)}
        </p>
      )}
    </Panel>
  );
}

function Content({ letter }: { letter: DeadLetter }) {
  return (
    <>
      {letter.headers !== null && (
        <Panel title="Headers">
          <JsonView value={letter.headers} label="headers" />
        </Panel>
      )}
      <Panel title="Payload" aside={letter.whole && <a href={letter.whole}>All {count(letter.payload_bytes ?? 0)} bytes</a>}>
        <pre className="trace pad" tabIndex={0} aria-label="Payload">{letter.payload}</pre>
      </Panel>
    </>
  );
}

function MessageFacts({ message }: { message: Message }) {
  return (
    <>
      {message.place && <Fact name="Position">{message.place}</Fact>}
      {message.message_id && <Fact name="Message id">{message.message_id}</Fact>}
      {message.waits_for && <Fact name="Waits for">{WAITS_FOR[message.waits_for] ?? message.waits_for}</Fact>}
      {message.ahead != null && <Fact name="Before it">{plural(message.ahead, "message")}</Fact>}
      {message.behind && (
        <Fact name="Key held by">
          <Link to={messageUrl(`${message.stream}/${message.source}:${message.behind}`)}>{message.behind}</Link>
        </Fact>
      )}
      {message.dispatcher && <Fact name="Dispatcher">{message.dispatcher}</Fact>}
      {message.engine && <Fact name="Engine">{message.engine}</Fact>}
      {message.seconds != null && (
        <Fact name={message.state === "in_flight" ? "Running for" : "Wait"}>
          <Duration seconds={message.seconds} />
        </Fact>
      )}
      {message.attempts != null && (
        <Fact name="Attempt">
          {message.attempts} {message.losses ? <span className="faint">(its engine died {plural(message.losses, "time")})</span> : null}
        </Fact>
      )}
      {message.plans && <Fact name="Plans left">{message.plans.join(", ")}</Fact>}
      {message.due_at && (
        <Fact name="Next attempt">
          <Ago at={message.due_at} />
        </Fact>
      )}
    </>
  );
}

function LetterFacts({ letter }: { letter: DeadLetter }) {
  return (
    <>
      <Fact name="Reason">{letter.why}</Fact>
      <Fact name="Attempts">{letter.attempts}</Fact>
      {millis(letter.at) > 0 && <Fact name="Sent"><Ago at={letter.at} /></Fact>}
      <Fact name="Given up"><Ago at={letter.buried_at} /></Fact>
      {letter.plans && <Fact name="Plans">{letter.plans.join(", ")}</Fact>}
      {letter.key && <Fact name="Key">{letter.key}</Fact>}
      {letter.message_id && <Fact name="Message id">{letter.message_id}</Fact>}
      {letter.sink && (
        <Fact name="Message">
          <Link to={messageUrl(`${letter.stream}/${letter.source}:${letter.place}`)}>{letter.place}</Link>
        </Fact>
      )}
    </>
  );
}
