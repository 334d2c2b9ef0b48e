"""Dead letters: messages that were given up, and their replay."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import asyncpg
import msgspec
from msgspec import Meta

from tidemill.store.database import Database, Executor
from tidemill.store.jobs.pages import Word
from tidemill.store.streams.sealing import seal_message
from tidemill.store.transaction import Transaction

#: Why a message was given up.
Why = Literal["failed", "undecodable", "lost", "undelivered"]

#: Stores messages as dead letters.
ADD_DEAD_LETTERS = """
INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, message_id, key, headers, plans, kind,
                                  error, payload, history)
SELECT $1, source, place, why, attempts, to_timestamp(at), message_id, key, headers::json,
       string_to_array(plans, ','), kind, error, payload, history::json
FROM unnest($2::text[], $3::text[], $4::text[], $5::int[], $6::float8[], $7::text[], $8::bytea[], $9::text[],
            $10::text[], $11::text[], $12::text[], $13::bytea[], $14::text[])
     AS new (source, place, why, attempts, at, message_id, key, headers, plans, kind, error, payload, history)
"""

#: The conditions of a `DeadFilter`.
_DEAD_FILTER = """
($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR source = $2) AND ($3::text IS NULL OR $3 = ANY(plans))
AND ($4::text IS NULL OR why = $4) AND ($5::text IS NULL OR strpos(lower(error), lower($5)) > 0)
AND ($6::tstzrange IS NULL OR buried_at <@ $6) AND ($7::bigint[] IS NULL OR id = ANY($7))
AND ($8::bigint IS NULL OR id <= $8) AND ($9::text IS NULL OR sink = $9)
"""

#: Dead letters, each with the first `$12` bytes of its payload, or all of them.
LIST_DEAD = f"""
SELECT id, buried_at, stream, source, sink, place, why, attempts, at, message_id, key, headers, plans, kind, error,
       history, octet_length(payload) AS payload_bytes,
       CASE WHEN substring(payload FOR 8) <> '$sealed:' THEN substring(payload FOR coalesce($12::int, 1 << 30))
            WHEN octet_length(payload) > $12::int THEN '' ELSE payload END AS payload
FROM tidemill.dead_letter WHERE {_DEAD_FILTER} AND ($11::bigint IS NULL OR id < $11) ORDER BY id DESC LIMIT $10
"""

COUNT_DEAD = f"SELECT count(*) AS n FROM tidemill.dead_letter WHERE {_DEAD_FILTER}"
MATCH_DEAD = f"SELECT id FROM tidemill.dead_letter WHERE {_DEAD_FILTER} ORDER BY id LIMIT $10"

#: Turns dead letters back into messages, and those of sinks into items to send.
REPLAY = f"""
WITH chosen AS (
    DELETE FROM tidemill.dead_letter WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.dead_letter WHERE {_DEAD_FILTER} ORDER BY id LIMIT $10 FOR UPDATE SKIP LOCKED))
    RETURNING *),
again AS (
    INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, at, message_id, key, headers, plans,
                                       error, payload, history)
    SELECT stream, source, place,
           now() + make_interval(secs => coalesce((row_number() OVER (ORDER BY id) - 1) / $11::float8, 0)),
           1, at, message_id, key, headers, plans, error, coalesce($12::bytea, payload), history
    FROM chosen WHERE sink IS NULL ORDER BY id
    RETURNING stream),
sent_again AS (
    INSERT INTO tidemill.stream_outbox (stream, sink, item, source, place, plan, key, headers, payload, at, due_at)
    SELECT stream, sink, message_id, source, place, plans[1], convert_from(key, 'UTF8'), headers,
           coalesce($12::bytea, payload), at,
           now() + make_interval(secs => (row_number() OVER (ORDER BY id) - 1) / $11::float8)
    FROM chosen WHERE sink IS NOT NULL ORDER BY id
    RETURNING stream, sink),
topics AS (
    SELECT DISTINCT stream || '/settings' AS topic FROM again
    UNION SELECT DISTINCT 'outbox ' || stream || '/' || sink FROM sent_again),
news AS (SELECT pg_notify('tidemill_streams', topic) FROM topics)
SELECT (SELECT count(*) FROM again) + (SELECT count(*) FROM sent_again) AS n, (SELECT count(*) FROM news)
"""


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that dead letters match; none given means all."""

    source: Annotated[Word | None, Meta(description="Only of this source.")] = None
    sink: Annotated[Word | None, Meta(description="Only those that this sink refused.")] = None
    plan: Annotated[Word | None, Meta(description="Only those that this plan failed for, or has handed over.")] = None
    why: Annotated[
        Why | None,
        Meta(description="Only those that failed, could not be decoded, were lost, or were refused by a sink."),
    ] = None
    error: Annotated[Word | None, Meta(description="Only those whose error contains this text.")] = None
    since: Annotated[datetime | None, Meta(description="Only those given up at this moment or later.")] = None
    until: Annotated[datetime | None, Meta(description="Only those given up before this moment.")] = None


class DeadFilter(DeadLetterFilter, frozen=True, kw_only=True):
    """The same for some streams and ids; `up_to` is the newest id."""

    stream: str | None = None
    ids: tuple[int, ...] | None = None
    up_to: int | None = None

    def arguments(self) -> tuple[Any, ...]:
        ids = None if self.ids is None else list(self.ids)
        times = None if self.since is self.until is None else asyncpg.Range(self.since, self.until)
        return self.stream, self.source, self.plan, self.why, self.error, times, ids, self.up_to, self.sink


async def add_dead_letters(
    database: Database, connection: Executor, stream: str, columns: Sequence[Sequence[Any]]
) -> None:
    """Store messages as dead letters; the columns are those of the statement."""
    *rest, error, payload, history = columns
    sealed = seal_message(database, error, payload, history)
    await connection.execute(database.sql(ADD_DEAD_LETTERS), stream, *rest, *sealed)


async def list_dead(
    database: Database, which: DeadFilter, *, before: int | None = None, limit: int = 50, shown: int | None = None
) -> list[asyncpg.Record]:
    """Dead letters, newest first, starting below an id; with `shown`, this many bytes of each payload."""
    return await database.fetch(LIST_DEAD, *which.arguments(), limit, before, shown)


async def count_dead(database: Database, which: DeadFilter) -> int:
    """How many dead letters match."""
    return (await database.fetch(COUNT_DEAD, *which.arguments()))[0]["n"]


async def match_dead(database: Database, which: DeadFilter, *, limit: int) -> list[int]:
    """The ids of dead letters that match, oldest first."""
    return [row["id"] for row in await database.fetch(MATCH_DEAD, *which.arguments(), limit)]


async def replay_dead(
    tx: Transaction,
    which: DeadFilter,
    *,
    limit: int = 100_000,
    rate: float | None = None,
    payload: bytes | None = None,
) -> int:
    """Make dead letters messages again, all at once or at a rate; returns how many.

    A `payload` takes the place of their own.
    """
    given = {name: value for name, value in msgspec.structs.asdict(which).items() if value is not None}
    count: int = await tx.fetchval(REPLAY, *which.arguments(), limit, rate, tx.database.seal_bytes(payload)) or 0
    if rate is not None:
        given["rate"] = rate
    if payload is not None:
        given["edited"] = True
    await tx.audit("stream.replay", which.stream or "*", after={"count": count, **given})
    return count
