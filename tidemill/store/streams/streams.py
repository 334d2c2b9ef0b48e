"""The tables of streams besides the log: cursors, stored messages that wait for a retry, attempts of messages that stay
at their source, operators' controls, and the status of dispatchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tidemill.core.codec import encode
from tidemill.store.database import Database, Executor
from tidemill.store.streams.sealing import seal_message
from tidemill.store.transaction import Transaction

#: Takes over a partition's cursor; with a lease only if no other process holds one. Returns where to begin.
OWN_CURSOR = """
INSERT INTO tidemill.source_cursor AS c (stream, source, part, owner, held_until)
VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5::float8))
ON CONFLICT (stream, source, part) DO UPDATE SET owner = excluded.owner, held_until = excluded.held_until
WHERE $5::float8 IS NULL OR c.held_until IS NULL OR c.held_until < now() OR c.owner = excluded.owner
RETURNING position, note, done
"""

#: Renews the lease of a cursor, if it is still ours; ends it, and tells those that wait for it.
RENEW_CURSOR = """
UPDATE tidemill.source_cursor SET held_until = now() + make_interval(secs => $5)
WHERE stream = $1 AND source = $2 AND part = $3 AND owner = $4 RETURNING owner
"""
RELEASE_CURSOR = """
WITH released AS (
    UPDATE tidemill.source_cursor SET held_until = NULL
    WHERE stream = $1 AND source = $2 AND part = $3 AND owner = $4 RETURNING owner)
SELECT pg_notify('tidemill_streams', $5) FROM released
"""

#: Ends the leases of a dispatcher that has died, and tells those that wait for them.
END_LEASES = """
WITH ended AS (
    UPDATE tidemill.source_cursor AS c SET held_until = NULL FROM tidemill.stream_status AS s
    WHERE c.owner = s.dispatcher AND s.host = $1 AND s.pid = $2 AND c.held_until IS NOT NULL
    RETURNING c.stream, c.source)
SELECT pg_notify('tidemill_streams', 'cursor ' || stream || '/' || source) FROM ended
"""

#: Moves a cursor, if it is still ours.
MOVE_CURSOR = """
UPDATE tidemill.source_cursor SET position = $5, note = $6, done = $7, moved_at = now()
WHERE stream = $1 AND source = $2 AND part = $3 AND owner = $4 RETURNING position
"""

#: Stores messages for a retry.
ADD_RETRIES = """
INSERT INTO tidemill.stream_retry (stream, source, place, due_at, attempts, losses, at, deadline, message_id, key,
                                   headers, plans, error, payload, history)
SELECT $1, source, place, now() + make_interval(secs => delay), attempts, losses, to_timestamp(at),
       to_timestamp(deadline), message_id, key, headers::json, string_to_array(plans, ','), error, payload,
       history::json
FROM unnest($2::text[], $3::text[], $4::float8[], $5::int[], $6::int[], $7::float8[], $8::float8[], $9::text[],
            $10::bytea[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::text[])
     AS new (source, place, delay, attempts, losses, at, deadline, message_id, key, headers, plans, error, payload,
             history)
"""

#: Claims due retries for one dispatcher, up to a number of each source and of bytes; those of a silent dispatcher are
#: due again.
CLAIM_RETRIES = """
UPDATE tidemill.stream_retry SET claimed_by = $3, claimed_until = now() + make_interval(secs => $6)
WHERE id = ANY (ARRAY(SELECT id FROM (
    SELECT id, sum(size) OVER (ORDER BY due_at, id ROWS UNBOUNDED PRECEDING) - size AS before
    FROM unnest($2::text[], $4::int[]) AS wanted (source, most) CROSS JOIN LATERAL (
        SELECT r.id, r.due_at, octet_length(r.payload) AS size FROM tidemill.stream_retry AS r
        WHERE r.stream = $1 AND r.source = wanted.source AND r.due_at <= now()
          AND (r.claimed_until IS NULL OR r.claimed_until < now())
        ORDER BY r.due_at LIMIT wanted.most FOR UPDATE SKIP LOCKED) AS due) AS counted
    WHERE before < $5))
RETURNING id, source, place, attempts, losses, extract(epoch FROM at)::float8 AS at,
          extract(epoch FROM deadline)::float8 AS deadline, message_id, key, headers, plans, payload,
          history
"""

#: Seconds until the next retry of these sources is due, of those that are not claimed.
NEXT_RETRY = """
SELECT extract(epoch FROM min(due.due_at) - now())::float8 AS wait
FROM unnest($2::text[]) AS wanted (source) CROSS JOIN LATERAL (
    SELECT r.due_at FROM tidemill.stream_retry AS r
    WHERE r.stream = $1 AND r.source = wanted.source AND r.claimed_until IS NULL ORDER BY r.due_at LIMIT 1) AS due
"""

#: Stored messages of sources that the stream no longer has.
COUNT_STRANDED = """
SELECT source, count(*) AS messages FROM tidemill.stream_retry WHERE stream = $1 AND source <> ALL ($2)
GROUP BY source ORDER BY source
"""

#: Renews only claims that their owner knows of: one whose response was lost is claimed again.
RENEW_RETRIES = """
UPDATE tidemill.stream_retry SET claimed_until = now() + make_interval(secs => $2)
WHERE claimed_by = $1 AND id = ANY ($3::bigint[]) RETURNING id
"""

#: Deletes retries whose attempt has ended.
DROP_RETRIES = "DELETE FROM tidemill.stream_retry WHERE id = ANY($1::bigint[]) RETURNING id"

#: Releases claimed retries.
RELEASE_RETRIES = """
UPDATE tidemill.stream_retry SET claimed_by = NULL, claimed_until = NULL WHERE id = ANY($1::bigint[]) RETURNING id
"""

#: Stores the attempts of messages that stay at their source.
NOTE_ATTEMPTS = """
INSERT INTO tidemill.stream_attempt (stream, source, place, due_at, attempts, losses, plans, error, history)
SELECT $1, source, place, now() + make_interval(secs => delay), attempts, losses, string_to_array(plans, ','), error,
       history::json
FROM unnest($2::text[], $3::text[], $4::float8[], $5::int[], $6::int[], $7::text[], $8::text[], $9::text[])
     AS new (source, place, delay, attempts, losses, plans, error, history)
ON CONFLICT (stream, source, place) DO UPDATE SET due_at = excluded.due_at, attempts = excluded.attempts,
    losses = excluded.losses, plans = excluded.plans, error = excluded.error, history = excluded.history
"""

#: The attempts of all messages of a source.
RECALL_ATTEMPTS = """
SELECT place, attempts, losses, plans, history, extract(epoch FROM due_at)::float8 AS due
FROM tidemill.stream_attempt WHERE stream = $1 AND source = $2
"""

FORGET_ATTEMPTS = """
DELETE FROM tidemill.stream_attempt AS a USING unnest($2::text[], $3::text[]) AS over (source, place)
WHERE a.stream = $1 AND a.source = over.source AND a.place = over.place
"""

#: Deletes attempts of messages that never came again, because their dispatcher died after the last ack.
FORGET_OLD_ATTEMPTS = "DELETE FROM tidemill.stream_attempt WHERE stream = $1 AND due_at < now() - interval '30 days'"

#: The controls of a stream and its sources.
READ_CONTROL = "SELECT source, mode, weight, max_qps, burst, enabled FROM tidemill.stream_control WHERE stream = $1"
HOLD_CONTROL = """
SELECT mode, weight, max_qps, burst, enabled FROM tidemill.stream_control WHERE stream = $1 AND source = $2 FOR UPDATE
"""

#: What an operator sets; fields that are NULL stay as they are.
SET_CONTROL = """
WITH wanted AS (
    INSERT INTO tidemill.stream_control AS c (stream, source, by, mode, weight, max_qps, enabled, burst)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (stream, source) DO UPDATE SET mode = coalesce(excluded.mode, c.mode),
        weight = coalesce(excluded.weight, c.weight), max_qps = coalesce(excluded.max_qps, c.max_qps),
        enabled = coalesce(excluded.enabled, c.enabled), burst = coalesce(excluded.burst, c.burst),
        by = excluded.by, at = now()
    RETURNING stream)
SELECT pg_notify('tidemill_streams', stream || '/settings') FROM wanted
"""

#: Writes, deletes and reads the status of dispatchers.
WRITE_STATUS = """
INSERT INTO tidemill.stream_status (dispatcher, stream, host, pid, status) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (dispatcher) DO UPDATE SET seen_at = now(), status = excluded.status
"""

DROP_STATUS = "DELETE FROM tidemill.stream_status WHERE dispatcher = $1 OR seen_at < now() - interval '1 hour'"

READ_STATUS = """
SELECT dispatcher, stream, host, pid, extract(epoch FROM now() - seen_at)::float8 AS silent, status
FROM tidemill.stream_status WHERE seen_at > now() - interval '15 seconds' AND ($1::text IS NULL OR stream = $1)
ORDER BY stream, host, pid
"""

#: The number of stored retries and dead letters.
COUNT_KEPT = """
SELECT s.stream, (SELECT count(*) FROM tidemill.stream_retry AS r WHERE r.stream = s.stream) AS retries,
       (SELECT count(*) FROM tidemill.dead_letter AS d WHERE d.stream = s.stream) AS dead
FROM unnest($1::text[]) AS s (stream)
"""


#: Ranges of positions, each after one and up to and including another; None: from the beginning.
Span = tuple[int | None, int]


class StoredCursor(msgspec.Struct, frozen=True):
    """The progress of a partition: everything up to `position` is done, and `done` beyond it; None if unknown."""

    position: int | None
    note: str | None
    done: tuple[Span, ...]


def settings_topic(stream: str) -> str:
    """What is notified when an operator changes a stream or replays messages: the name may be that of a topic."""
    return f"{stream}/settings"


def cursor_topic(stream: str, source: str) -> str:
    """What is notified when the lease of a source's cursor ends."""
    return f"cursor {stream}/{source}"


async def own_cursor(database: Database, stream: str, source: str, part: str, owner: UUID) -> StoredCursor:
    """Take over a partition's cursor."""
    return _cursor((await database.fetch(OWN_CURSOR, stream, source, part, owner, None, patience=None))[0])


async def lease_cursor(
    database: Database, stream: str, source: str, part: str, owner: UUID, lease: float
) -> StoredCursor | None:
    """Take over a partition's cursor for this many seconds; None if another process has it."""
    rows = await database.fetch(OWN_CURSOR, stream, source, part, owner, lease, patience=None)
    return _cursor(rows[0]) if rows else None


def _cursor(row: asyncpg.Record) -> StoredCursor:
    done = [(None if span.lower is None else span.lower - 1, span.upper - 1) for span in row["done"]]
    return StoredCursor(row["position"], row["note"], tuple(done))


async def move_cursor(
    database: Database,
    connection: Executor,
    stream: str,
    source: str,
    part: str,
    owner: UUID,
    position: int | None,
    note: str | None,
    done: Sequence[Span] = (),
) -> bool:
    """Move a cursor; False if another dispatcher owns it by now."""
    ranges = [asyncpg.Range(after, last, lower_inc=False, upper_inc=True) for after, last in done]
    moved = await connection.fetch(database.sql(MOVE_CURSOR), stream, source, part, owner, position, note, ranges)
    return bool(moved)


async def renew_cursor(database: Database, stream: str, source: str, part: str, owner: UUID, lease: float) -> bool:
    """Renew the lease of a cursor; False if another process owns it by now."""
    return bool(await database.fetch(RENEW_CURSOR, stream, source, part, owner, lease))


async def release_cursor(database: Database, stream: str, source: str, part: str, owner: UUID) -> None:
    """End the lease of a cursor: the next process takes it over at once."""
    await database.fetch(RELEASE_CURSOR, stream, source, part, owner, cursor_topic(stream, source))


async def end_leases(database: Database, host: str, pid: int) -> None:
    """End the leases of a dispatcher that has died. Only its supervisor, which saw it die, may call this."""
    await database.fetch(END_LEASES, host, pid, patience=5.0)


async def add_retries(database: Database, connection: Executor, stream: str, columns: Sequence[Sequence[Any]]) -> None:
    """Store messages for a retry; the columns are those of the statement."""
    *rest, error, payload, history = columns
    sealed = seal_message(database, error, payload, history)
    await connection.execute(database.sql(ADD_RETRIES), stream, *rest, *sealed)


async def drop_retries(database: Database, connection: Executor, ids: Sequence[int]) -> set[int]:
    """Delete ended retries; returns those that no other dispatcher had finished before."""
    return {row["id"] for row in await connection.fetch(database.sql(DROP_RETRIES), list(ids))}


async def claim_retries(
    database: Database, stream: str, most: Mapping[str, int], owner: UUID, *, size: int, lease: float
) -> list[asyncpg.Record]:
    """Claim due retries, up to a number of messages of each source and about a number of bytes."""
    return await database.fetch(CLAIM_RETRIES, stream, [*most], owner, [*most.values()], size, lease, patience=None)


async def next_retry(database: Database, stream: str, sources: Sequence[str]) -> float | None:
    """Seconds until a retry is due; None if none is stored."""
    row = await database.fetchrow(NEXT_RETRY, stream, list(sources), patience=None)
    return None if row is None else row["wait"]


async def count_stranded(database: Database, stream: str, sources: Sequence[str]) -> dict[str, int]:
    """How many messages are stored of sources that are not among these, by source."""
    rows = await database.fetch(COUNT_STRANDED, stream, list(sources), patience=None)
    return {row["source"]: row["messages"] for row in rows}


async def note_attempts(
    database: Database, connection: Executor, stream: str, columns: Sequence[Sequence[Any]]
) -> None:
    """Store the attempts of messages that stay at their source; the columns are those of the statement."""
    *rest, error, history = columns
    error, _, history = seal_message(database, error, (), history)
    await connection.execute(database.sql(NOTE_ATTEMPTS), stream, *rest, error, history)


async def forget_attempts(
    database: Database, connection: Executor, stream: str, places: Sequence[tuple[str, str]]
) -> None:
    """Delete the attempts of finished messages, given by source and place."""
    sources, names = [source for source, _ in places], [place for _, place in places]
    await connection.execute(database.sql(FORGET_ATTEMPTS), stream, sources, names)


async def set_control(
    tx: Transaction,
    stream: str,
    source: str = "",
    *,
    mode: str | None = None,
    weight: float | None = None,
    max_qps: float | None = None,
    burst: float | None = None,
    enabled: bool | None = None,
) -> None:
    """Store what an operator sets for a stream or a source; dispatchers are notified at once."""
    before = await tx.fetchrow(HOLD_CONTROL, stream, source)
    await tx.execute(SET_CONTROL, stream, source, tx.by, mode, weight, max_qps, enabled, burst)
    after = {"mode": mode, "weight": weight, "max_qps": max_qps, "burst": burst, "enabled": enabled}
    await tx.audit(
        "stream.control",
        f"{stream}/{source}" if source else stream,
        before=None if before is None else _given(dict(before)),
        after=_given(after),
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def report_status(
    database: Database, dispatcher: UUID, stream: str, host: str, pid: int, status: Mapping[str, Any]
) -> None:
    """Write the status of a dispatcher; what a source or sink answers may quote a payload."""
    sealed = {
        part: [{**each, "error": database.seal_text(each["error"])} for each in status[part]]
        for part in ("sources", "sinks")
    }
    await database.fetch(WRITE_STATUS, dispatcher, stream, host, pid, encode({**status, **sealed}), patience=1.0)


async def read_status(database: Database, stream: str | None = None) -> list[asyncpg.Record]:
    """The status of the running dispatchers."""
    return await database.fetch(READ_STATUS, stream)
