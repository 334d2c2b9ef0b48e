"""Explains one message of a stream: where it waits and why, how often it was tried, what became of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import NotFoundError
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import doc
from tidemill.ops.streams.dead_letters import FailedAttemptLine, history_of
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams import streams as store
from tidemill.store.streams.find_message import find_attempt, find_dead, find_in_log, find_retry
from tidemill.store.streams.outbox import items_of_message
from tidemill.store.streams.seen import find_seen

LONGEST_WINDOW = 365 * 86_400.0


class EmittedItem(msgspec.Struct, frozen=True):
    """Something that a message handed over to a sink, which does not have it yet."""

    sink: str
    plan: str
    at: datetime
    attempts: Annotated[int, doc("How often the sink has refused it.")]
    due_at: datetime | None
    error: str | None


class MessageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a message. A message that simply succeeded leaves no trace but the position of its source."""

    stream: str | None
    source: str | None
    place: Annotated[str | None, doc("Where its source had it.")]
    message_id: str | None = None
    state: Annotated[str, doc("waiting, retrying, in_flight, done, dead or unknown.")]
    why: list[str]
    attempts: int | None = None
    losses: int | None = None
    plans: list[str] | None = None
    due_at: datetime | None = None
    error: str | None = None
    dead_letter: Annotated[int | None, doc("The id of its dead letter.")] = None
    history: Annotated[list[FailedAttemptLine], doc("Its failed attempts, by plan.")] = []
    emitted: Annotated[list[EmittedItem], doc("What it handed over to sinks that do not have it yet.")] = []


async def message_at(
    database: Database, declared: Declarations | None, stream: str, source: str, place: str
) -> MessageDetails | None:
    """The message at this place of a source; None if there is no such stream."""
    found = await _find_at(database, declared, stream, source, place)
    rows = [] if found is None else await items_of_message(database, stream, source, place)
    if found is None or not rows:
        return found
    emitted = [EmittedItem(**{name: row[name] for name in EmittedItem.__struct_fields__}) for row in rows]
    sinks = ", ".join(dict.fromkeys(each.sink for each in emitted))
    why = [*found.why, f"What it handed over to {sinks} waits to be sent."]
    return msgspec.structs.replace(found, why=why, emitted=emitted)


async def _find_at(
    database: Database, declared: Declarations | None, stream: str, source: str, place: str
) -> MessageDetails | None:
    sources = await _sources(database, declared, stream)
    if sources is None:
        return None
    if source not in sources:
        known = ", ".join(sorted(sources))
        raise NotFoundError(f"stream {stream!r} has no source {source!r}; its sources are {known}")
    found = await _stored(database, stream, source, place, None)
    if found is not None:
        return found
    noted = await find_attempt(database, stream, source, place)
    if noted is not None:
        why = [f"Attempt {noted['attempts'] - 1} failed.", "It stays at its source: others of its key wait behind it."]
        return _retrying(stream, source, place, noted, why)
    waits = _obstacles(sources[source])
    declared_source = _declared_source(declared, stream, source)
    if isinstance(declared_source, LogSource):
        return await _in_log(database, stream, declared_source, place, waits)
    why = ["It has neither failed nor been given up: it is done, in flight, or still at its source.", *waits]
    return MessageDetails(stream=stream, source=source, place=place, state="unknown", why=why)


async def message_with_id(database: Database, declared: Declarations | None, id: str) -> MessageDetails | None:
    """The message with this id, as its source's `message_id` tells it; None if nothing is known of it."""
    found = await _stored(database, None, None, None, id)
    if found is not None or declared is None:
        return found
    for stream in declared.streams.declared.values():
        for source in stream.sources:
            if source.message_id is None:
                continue
            ages = await find_seen(database, stream.name, source.name, [id], LONGEST_WINDOW)
            if id in ages:
                why = [f"Its work succeeded {ages[id]:,.0f} s ago; within the window it is not run again."]
                return MessageDetails(
                    stream=stream.name, source=source.name, place=None, message_id=id, state="done", why=why
                )
    return None


async def _stored(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> MessageDetails | None:
    row = await find_retry(database, stream, source, place, id)
    if row is not None:
        why = [f"Attempt {row['attempts'] - 1} failed." if row["attempts"] > 1 else "It is replayed."]
        why.append("A dispatcher has claimed it." if row["is_claimed"] else "It is stored until its next attempt.")
        return _retrying(stream, row["source"], row["place"], row, why, row["message_id"])
    dead = await find_dead(database, stream, source, place, id)
    if dead is None:
        return None
    why = [f"It was given up: `tidemill explain d{dead}` shows why."]
    return MessageDetails(
        stream=stream, source=source, place=place, message_id=id, state="dead", why=why, dead_letter=dead
    )


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
            f"topic {source.topic} of the log has no message {position}: it never had, or the message is too old"
        )
    if row["group"] is None or not row["is_taken"]:
        state, why = "waiting", ["No dispatcher has taken it from the log yet.", *waits]
    elif row["owner"] is None or row["is_done"]:
        state, why = "done", ["It was taken from the log, and its work has ended."]
    elif row["is_leased"]:
        why = [f"Dispatcher {row['owner']} has taken it: it waits there for a slot, a limit or its key, or it runs."]
        state, why = "in_flight", [*why, *waits]
    else:
        state, why = "waiting", ["The dispatcher that had taken it has ended: the next one takes it over.", *waits]
    return MessageDetails(stream=stream, source=source.name, place=place, state=state, why=why)


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
        for line in decode(row["status"])["sources"]:
            found.setdefault(line["name"], []).append(line)
    return found


def _declared_source(declared: Declarations | None, stream: str, source: str) -> Any:
    known = None if declared is None else declared.streams.declared.get(stream)
    return None if known is None else next((each for each in known.sources if each.name == source), None)
