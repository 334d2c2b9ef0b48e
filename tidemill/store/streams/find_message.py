"""What is known of one message of a stream, by its place at its source or by its id."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

import asyncpg
import msgspec

from tidemill.store.database import Database

#: Stored messages that wait for another attempt; the newest first.
FIND_RETRY = """
SELECT stream, source, place, message_id, attempts, losses, plans, error, history, due_at,
       claimed_until > now() AS is_claimed
FROM tidemill.stream_retry WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR source = $2)
  AND (place = $3 OR message_id = $4) ORDER BY id DESC LIMIT 1
"""

#: Messages that wait at their ordered source for another attempt.
FIND_ATTEMPT = """
SELECT source, place, attempts, losses, plans, error, history, due_at FROM tidemill.stream_attempt
WHERE stream = $1 AND source = $2 AND place = $3
"""

#: Its dead letter, if there is one, before those of what it handed over to sinks.
FIND_DEAD = """
SELECT id, stream, source, sink, place, error FROM tidemill.dead_letter
WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR source = $2)
  AND (place = $3 OR (message_id = $4 AND sink IS NULL)) ORDER BY sink IS NOT NULL, id DESC LIMIT 20
"""

#: The row of the log that has this position, and how far the groups of its topic are.
FIND_IN_LOG = """
SELECT e.topic, e.at, g.name AS group, (e.xid, e.id) <= (g.xid, g.id) AS is_taken, r.owner::text AS owner,
       r.lease_until > now() AS is_leased, r.done @> ARRAY[$2::bigint] AS is_done
FROM tidemill.event_log AS e
LEFT JOIN tidemill.log_group AS g ON g.topic = e.topic AND g.name = $3
LEFT JOIN tidemill.log_range AS r ON r.topic = e.topic AND r.name = g.name
    AND (e.xid, e.id) > (r.from_xid, r.from_id) AND (e.xid, e.id) <= (r.to_xid, r.to_id)
WHERE e.topic = $1 AND e.id = $2::bigint / 1024 AND e.messages > $2::bigint % 1024
"""


async def find_retry(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> asyncpg.Record | None:
    """The stored message that waits for another attempt."""
    return await database.fetchrow(FIND_RETRY, stream, source, place, id)


async def find_attempt(database: Database, stream: str, source: str, place: str) -> asyncpg.Record | None:
    """The message of an ordered source that waits there for another attempt."""
    return await database.fetchrow(FIND_ATTEMPT, stream, source, place)


async def find_dead(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> list[asyncpg.Record]:
    """The message's dead letter, and those of what it handed over to sinks."""
    return await database.fetch(FIND_DEAD, stream, source, place, id)


async def find_in_log(database: Database, topic: str, position: int, group: str) -> asyncpg.Record | None:
    """The message of the log with this position, and what a group has done with it."""
    return await database.fetchrow(FIND_IN_LOG, topic, position, group)


# -- asking the dispatchers -------------------------------------------------------------------------

ASK = "SELECT pg_notify('tidemill_streams', $1)"
QUESTION, ANSWER = "where ", "there "  # how a notification begins
MOST_BYTES = 7900  # A notification has at most 8000.
ANSWER_WITHIN = 1.0


class MessageQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which message the dispatchers of a stream are asked for: by its place at its source, or by its id."""

    number: str
    stream: str
    source: str | None = None
    place: str | None = None
    id: str | None = None


class MessageAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a dispatcher has the message; an empty `where` if it knows nothing of it."""

    number: str
    dispatcher: str
    where: str = ""
    """in_flight, committing, quarantine, retry, key or waiting; or what its source says: unread, open or done."""
    source: str = ""
    place: str = ""
    id: str | None = None
    waits_for: str | None = None
    """For one that waits here: limit, max_concurrency, slot, delay, enabled, resume or turn."""
    ahead: int = 0
    """How many messages of its source come before it."""
    behind: str | None = None
    """The message that holds its key."""
    seconds: float | None = None
    """How long it has run, or how much longer it waits."""
    engine: str | None = None
    attempt: int = 1


async def ask_dispatchers(
    database: Database, stream: str, source: str | None, place: str | None, id: str | None, *, dispatchers: int
) -> list[MessageAnswer]:
    """Ask the running dispatchers of a stream for a message; returns what those have said that answered in time."""
    question = MessageQuestion(uuid4().hex, stream, source, place, id)
    asked = QUESTION + msgspec.json.encode(question).decode()
    if not dispatchers or len(asked.encode()) > MOST_BYTES:
        return []
    answers: list[MessageAnswer] = []
    heard_all = asyncio.Event()

    def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        if not str(payload).startswith(ANSWER) or question.number not in str(payload):
            return
        answers.append(msgspec.json.decode(str(payload)[len(ANSWER) :], type=MessageAnswer))
        if answers[-1].where or len(answers) >= dispatchers:
            heard_all.set()

    connection = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN):
                connection = await database.connect_to_listen()
                await connection.add_listener(database.channel("streams"), hear)
                await connection.execute(database.sql(ASK), asked)
                await heard_all.wait()
    finally:
        if connection is not None:
            connection.terminate()
    return answers


def read_question(payload: str) -> MessageQuestion | None:
    """The question of a notification; None if it is none."""
    if not payload.startswith(QUESTION):
        return None
    return msgspec.json.decode(payload[len(QUESTION) :], type=MessageQuestion)


async def answer_question(database: Database, answer: MessageAnswer) -> None:
    """Tell the process that has asked."""
    payload = ANSWER + msgspec.json.encode(answer).decode()
    if len(payload.encode()) <= MOST_BYTES:
        await database.fetch(ASK, payload, patience=1.0)
