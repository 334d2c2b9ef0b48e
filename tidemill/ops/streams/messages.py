"""Explains one message of a stream: where it waits and why, how often it was tried, what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import doc
from tidemill.ops.streams.dead_letters import FailedAttemptLine, history_of
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams import streams as store
from tidemill.store.streams.find_message import (
    MessageAnswer,
    ask_dispatchers,
    find_attempt,
    find_dead,
    find_in_log,
    find_retry,
)
from tidemill.store.streams.handed_over import find_handed_over
from tidemill.store.streams.outbox import items_of_message
from tidemill.store.streams.seen import find_seen

#: What is handed over, by its kind.
HANDED_OVER = {
    "job": "job", "event": "event for a run", "state": "state of a pipeline", "log": "message of the log",
    "sink": "item for a sink", "sql": "statement",
}  # fmt: skip

LONGEST_WINDOW = 365 * 86_400.0


class EmittedItem(msgspec.Struct, frozen=True):
    """Something that a message handed over to a sink, which does not have it yet."""

    sink: str
    plan: str
    at: datetime
    attempts: Annotated[int, doc("How often the sink has refused it.")]
    due_at: datetime | None
    error: str | None


class HandedOverItem(msgspec.Struct, frozen=True):
    """Something that a message has handed over."""

    kind: Annotated[str, doc("job, event, state, log, sink or sql.")]
    name: Annotated[str | None, doc("The task, pipeline, topic, sink or statement.")]
    id: Annotated[str | None, doc("The id of the job or run, the path of the state.")]
    at: datetime
    state: Annotated[str | None, doc("The state of the job or run now.")]


class MessageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a message. One that succeeded and handed nothing over leaves no trace but its position."""

    stream: str | None
    source: str | None
    place: Annotated[str | None, doc("Where its source had it.")]
    message_id: str | None = None
    state: Annotated[str, doc("waiting, retrying, in_flight, done, dead or unknown.")]
    why: list[str]
    waits_for: Annotated[
        str | None,
        doc(
            "What it waits for: source (it is not read yet), limit, max_concurrency, slot, turn, key, retry, delay, "
            "quarantine, enabled (its source is off) or resume (the stream is paused)."
        ),
    ] = None
    ahead: Annotated[int | None, doc("How many messages of its source come before it in its dispatcher.")] = None
    behind: Annotated[str | None, doc("The message that holds its key.")] = None
    dispatcher: Annotated[str | None, doc("The dispatcher that has it.")] = None
    engine: Annotated[str | None, doc("The engine that runs it.")] = None
    seconds: Annotated[float | None, doc("How long it has run, or how much longer it waits.")] = None
    attempts: int | None = None
    losses: int | None = None
    plans: list[str] | None = None
    due_at: datetime | None = None
    error: str | None = None
    dead_letter: Annotated[int | None, doc("The id of its dead letter.")] = None
    refused: Annotated[list[int], doc("Dead letters of what it handed over to sinks that refused it.")] = []
    history: Annotated[list[FailedAttemptLine], doc("Its failed attempts, by plan.")] = []
    handed_over: Annotated[list[HandedOverItem], doc("What it has handed over, in the days that events are kept.")] = []
    emitted: Annotated[list[EmittedItem], doc("What it handed over to sinks that do not have it yet.")] = []


async def message_at(
    database: Database, declared: Declarations | None, stream: str, source: str, place: str
) -> MessageDetails | None:
    """The message at this place of a source; None if there is no such stream."""
    sources = await _sources(database, declared, stream)
    if sources is None:
        return None
    if source not in sources:
        known = ", ".join(sorted(sources))
        raise NotFoundError(
            f"stream {stream!r} has no source {source!r}; its sources are {known}{did_you_mean(source, sources)}"
        )
    found = await _stored(database, stream, source, place, None)
    if found is None or found.state == "done":
        here = await _asked(database, stream, source, place, None, sources[source])
        now = here or await _unstored(database, declared, stream, source, place, sources[source])
        found = now if found is None else _merged(now, found)
    elif found.state == "retrying":
        found = await _with_location(database, found, sources[source])
    return await _with_emitted(database, found)


async def message_with_id(
    database: Database, declared: Declarations | None, id: str, stream: str | None = None, source: str | None = None
) -> MessageDetails | None:
    """The message with this id, by its source's `message_id`; None if nothing is known of it."""
    found = await _stored(database, stream, source, None, id)
    if found is None:
        found = await _waiting_with_id(database, declared, id, stream, source)
    elif found.state == "retrying" and found.stream is not None:
        lines = await _sources(database, declared, found.stream) or {}
        found = await _with_location(database, found, lines.get(found.source or "", []))
    return None if found is None else await _with_emitted(database, found)


async def _with_location(database: Database, found: MessageDetails, lines: list[dict[str, Any]]) -> MessageDetails:
    """A message that is stored for its next attempt, with where it is now if a dispatcher has it."""
    here = await _asked(database, str(found.stream), found.source, found.place, None, lines)
    return found if here is None or here.dispatcher is None else _merged(here, found)


async def _waiting_with_id(
    database: Database, declared: Declarations | None, id: str, of_stream: str | None, of_source: str | None
) -> MessageDetails | None:
    """The message with this id in a dispatcher, or among those that have succeeded."""
    for stream in () if declared is None else declared.streams.declared.values():
        named = [each for each in stream.sources if each.message_id is not None and of_source in (None, each.name)]
        if not named or of_stream not in (None, stream.name):
            continue
        for source in named:
            ages = await find_seen(database, stream.name, source.name, [id], LONGEST_WINDOW)
            if id in ages:
                why = [f"Its work succeeded {ages[id]:,.0f} s ago; within the window it is not run again."]
                return MessageDetails(
                    stream=stream.name, source=source.name, place=None, message_id=id, state="done", why=why
                )
        lines = await _sources(database, declared, stream.name) or {}
        found = await _asked(database, stream.name, of_source, None, id, lines.get(named[0].name, []), lines)
        if found is not None:
            return found
    return None


async def _asked(
    database: Database,
    stream: str,
    source: str | None,
    place: str | None,
    id: str | None,
    lines: list[dict[str, Any]],
    sources: Mapping[str, list[dict[str, Any]]] | None = None,
) -> MessageDetails | None:
    """What a running dispatcher knows of the message."""
    answers = await ask_dispatchers(database, stream, source, place, id, dispatchers=len(lines))
    answer = next((each for each in answers if each.where), None)
    if answer is None:
        return None
    reported = lines if sources is None else sources.get(answer.source, [])
    line = next((each for each in reported if each.get("dispatcher") == answer.dispatcher), {})
    state = {"in_flight": "in_flight", "committing": "in_flight", "open": "in_flight", "retry": "retrying"}
    waits_for = {"unread": "source", "waiting": answer.waits_for}.get(answer.where, answer.where)
    is_here = answer.where not in ("unread", "open", "done")
    return MessageDetails(
        stream=stream,
        source=answer.source,
        place=answer.place,
        message_id=answer.id,
        state="done" if answer.where == "done" else state.get(answer.where, "waiting"),
        why=[*_whereabouts(answer, line), *(_obstacles(reported) if answer.where == "unread" else ())],
        waits_for=None if answer.where in ("in_flight", "committing", "open", "done") else waits_for,
        ahead=answer.ahead if answer.where == "waiting" else None,
        behind=answer.behind,
        dispatcher=line.get("process", answer.dispatcher) if is_here else None,
        engine=answer.engine,
        seconds=answer.seconds,
        attempts=answer.attempt,
    )


def _whereabouts(answer: MessageAnswer, line: Mapping[str, Any]) -> list[str]:
    """Where a dispatcher has the message, as sentences."""
    at = f" for {answer.seconds:,.1f} s" if answer.seconds is not None else ""
    before = f" {answer.ahead:,} messages of its source come before it." if answer.ahead else ""
    match answer.where:
        case "in_flight":
            return [f"Attempt {answer.attempt} runs in {answer.engine or 'an engine'}{at}."]
        case "committing":
            return ["Its work has ended, and the outcome is being stored."]
        case "quarantine":
            return ["Its engine died: it waits for the quarantine engine, which runs such messages by themselves."]
        case "retry":
            again = "" if answer.seconds is None else f" in {answer.seconds:,.1f} s"
            return [f"Attempt {answer.attempt - 1} failed: it keeps its key, and is tried again{again}."]
        case "key":
            return [f"It waits for its key, which message {answer.behind or 'before it'} holds."]
        case "unread":
            return ["It is still at its source: no dispatcher has read it."]
        case "open":
            return ["A dispatcher has read it, and it is not done."]
        case "done":
            return ["Its source has it as done: its work has ended, or the source was read from a later position."]
        case _:
            return [f"It was read, and waits for {_obstacle(answer.waits_for, line)}.{before}"]


def _obstacle(waits_for: str | None, line: Mapping[str, Any]) -> str:
    """What a message that was read waits for."""
    rate = line.get("max_qps")
    return {
        "limit": "the limit of its source" + (f", {rate:g} messages a second" if rate else ""),
        "max_concurrency": "others of its source: as many are in flight as its limit allows",
        "slot": "a slot: all of them are in use",
        "delay": "the delay of its source",
        "enabled": "its source, which is switched off",
        "resume": "the stream, which is paused or draining",
    }.get(waits_for or "", "its turn")


async def _with_emitted(database: Database, found: MessageDetails) -> MessageDetails:
    """The message with what it handed over to sinks that do not have it yet."""
    if found.stream is None or found.source is None or found.place is None:
        return found
    rows = await items_of_message(database, found.stream, found.source, found.place)
    if not rows:
        return found
    emitted = [EmittedItem(**{name: row[name] for name in EmittedItem.__struct_fields__}) for row in rows]
    sinks = ", ".join(dict.fromkeys(each.sink for each in emitted))
    why = [*found.why, f"What it handed over to {sinks} waits to be sent."]
    return msgspec.structs.replace(found, why=why, emitted=emitted)


async def _unstored(
    database: Database,
    declared: Declarations | None,
    stream: str,
    source: str,
    place: str,
    lines: list[dict[str, Any]],
) -> MessageDetails:
    """A message that is not stored here, and that no dispatcher has: what its source knows of it."""
    waits = _obstacles(lines)
    declared_source = _declared_source(declared, stream, source)
    if isinstance(declared_source, LogSource):
        return await _in_log(database, stream, declared_source, place, waits)
    why = ["It has neither failed nor been given up: it is done, in flight, or still at its source.", *waits]
    return MessageDetails(stream=stream, source=source, place=place, state="unknown", why=why)


async def _stored(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> MessageDetails | None:
    """What is stored of a message: its next attempt, its dead letter, and what sinks have refused of it."""
    dead = await find_dead(database, stream, source, place, id)
    letter = next((row for row in dead if row["sink"] is None), None)
    found = await _stored_attempt(database, stream, source, place, id)
    if found is None and letter is not None:
        why = [f"It was given up: `tidemill explain d{letter['id']}` shows why."]
        found = MessageDetails(
            stream=letter["stream"], source=letter["source"], place=letter["place"], message_id=id, state="dead",
            why=why,
        )  # fmt: skip
    rows = await find_handed_over(database, stream, source, place, id)
    handed = [*{tuple(row[name] for name in ("kind", "name", "id")): row for row in rows}.values()]
    if found is None and handed:
        found = MessageDetails(
            **{name: handed[-1][name] for name in ("stream", "source", "place")}, message_id=id, state="done",
            why=["Its work has ended."],
        )  # fmt: skip
    elif found is None and dead and place is not None:
        found = MessageDetails(stream=stream, source=source, place=place, state="done", why=["Its work has ended."])
    if found is None:
        return None
    refused = [row for row in dead if row["sink"] is not None]
    why = [*found.why, *(f"Sink {row['sink']} refused what it handed over: d{row['id']}." for row in refused)]
    if handed:
        counts = Counter(HANDED_OVER[row["kind"]] for row in handed)
        why.append(f"It has handed over: {', '.join(f'{number} × {what}' for what, number in counts.items())}.")
    if letter is not None and found.state != "dead":
        why.append(f"Other plans of it were given up: `tidemill explain d{letter['id']}` shows why.")
    return msgspec.structs.replace(
        found,
        why=why,
        dead_letter=None if letter is None else letter["id"],
        refused=[row["id"] for row in refused],
        handed_over=[HandedOverItem(row["kind"], row["name"], row["id"], row["at"], row["state"]) for row in handed],
    )


async def _stored_attempt(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> MessageDetails | None:
    """The message that waits for its next attempt, in the database or at its ordered source."""
    row = await find_retry(database, stream, source, place, id)
    if row is not None:
        why = [f"Attempt {row['attempts'] - 1} failed." if row["attempts"] > 1 else "It is replayed."]
        why.append("A dispatcher has claimed it." if row["is_claimed"] else "It is stored until its next attempt.")
        return _retrying(row["stream"], row["source"], row["place"], row, why, row["message_id"])
    if stream is None or source is None or place is None:
        return None
    noted = await find_attempt(database, stream, source, place)
    if noted is None:
        return None
    why = [f"Attempt {noted['attempts'] - 1} failed.", "It stays at its source: others of its key wait behind it."]
    return _retrying(stream, source, place, noted, why)


def _merged(now: MessageDetails, stored: MessageDetails) -> MessageDetails:
    """Where a message is now, with what is stored of it."""
    places = {name: getattr(now, name) for name in ("state", "waits_for", "ahead", "behind", "engine", "seconds")}
    return msgspec.structs.replace(stored, **places, dispatcher=now.dispatcher, why=[*now.why, *stored.why])


def _retrying(
    stream: str | None, source: str, place: str, row: Any, why: list[str], id: str | None = None
) -> MessageDetails:
    return MessageDetails(
        stream=stream,
        source=source,
        place=place,
        message_id=id,
        state="retrying",
        why=[*why, *([row["error"]] if row["error"] else [])],
        waits_for="retry",
        attempts=row["attempts"],
        losses=row["losses"],
        plans=None if row["plans"] is None else list(row["plans"]),
        due_at=row["due_at"],
        error=row["error"],
        history=history_of(row),
    )


async def _in_log(database: Database, stream: str, source: LogSource, place: str, waits: list[str]) -> MessageDetails:
    position = int(place.rpartition(":")[2])
    row = await find_in_log(database, source.topic, position, source.group or f"{stream}.{source.name}")
    if row is None:
        raise NotFoundError(
            f"topic {source.topic} of the log has no message {position}: it never existed, or is too old"
        )
    waits_for = "source"
    if row["group"] is None or not row["is_taken"]:
        state, why = "waiting", ["No dispatcher has taken it from the log yet.", *waits]
    elif row["owner"] is None or row["is_done"]:
        state, why, waits_for = "done", ["It was taken from the log, and its work has ended."], None
    elif row["is_leased"]:
        why = ["A dispatcher has taken it: it waits there for a slot, a limit or its key, or it runs."]
        state, why, waits_for = "in_flight", [*why, *waits], None
    else:
        state, why = "waiting", ["The dispatcher that had taken it has ended: the next one takes it over.", *waits]
    return MessageDetails(stream=stream, source=source.name, place=place, state=state, why=why, waits_for=waits_for)


def _obstacles(lines: list[dict[str, Any]]) -> list[str]:
    """What keeps messages of a source waiting, as the dispatchers report it."""
    why: list[str] = []
    if not lines:
        why.append("No dispatcher of the stream is running.")
    for line in lines:
        if not line["enabled"]:
            why.append("The source is switched off.")
        if line.get("health") == "failing":
            why.append(f"The source cannot be read: {line.get('error')}.")
        if waiting := line.get("waiting"):
            why.append(
                f"{waiting:,} messages of it wait in a dispatcher, {line.get('waiting_for_key', 0):,} for their key."
            )
            if line["max_qps"] is not None:
                why.append(f"At most {line['max_qps']:g} messages a second pass its limit.")
        if line.get("lag"):
            why.append(f"{line['lag']:,} messages wait at the source itself.")
    return list(dict.fromkeys(why))


async def _sources(
    database: Database, declared: Declarations | None, stream: str
) -> dict[str, list[dict[str, Any]]] | None:
    """The sources of a stream, each with what the running dispatchers report of it; None without such a stream."""
    rows = await store.read_status(database, stream)
    known = None if declared is None else declared.streams.declared.get(stream)
    if not rows and known is None:
        return None
    found: dict[str, list[dict[str, Any]]] = {} if known is None else {each.name: [] for each in known.sources}
    for row in rows:
        process = {"dispatcher": str(row["dispatcher"]), "process": f"{row['host']} (pid {row['pid']})"}
        for line in decode(row["status"])["sources"]:
            found.setdefault(line["name"], []).append({**line, **process})
    return found


def _declared_source(declared: Declarations | None, stream: str, source: str) -> Any:
    known = None if declared is None else declared.streams.declared.get(stream)
    return None if known is None else next((each for each in known.sources if each.name == source), None)
