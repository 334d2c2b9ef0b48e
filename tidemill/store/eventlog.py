"""The PostgreSQL log: append-only topics, read by consumer groups in ranges.

Nothing is written per message that is read: a group's position moves by ranges, a range is one row while it is worked
on, and a row less when it is done. Whoever stops renewing the lease of its ranges loses them to another reader, who
reads again what was not done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tidemill.store.database import Database, Executor
from tidemill.store.retention import LOCK_PATIENCE_MS

#: News for readers: the payload names the topic, or the stream whose control has changed.
STREAMS_CHANNEL = "streams"

_PARTITION = re.compile(r"event_log_(\d{4})(\d{2})(\d{2})\Z")

NOTIFY = "SELECT pg_notify('tidemill_streams', topic) FROM unnest($1::text[]) AS topic"

#: A group begins at the beginning, or after what is there now.
MAKE_GROUP = """
INSERT INTO tidemill.log_group (name, topic, xid, id)
SELECT $1, $2, coalesce(last.xid, '0'), coalesce(last.id, 0) FROM (SELECT) AS one LEFT JOIN LATERAL (
    SELECT xid, id FROM tidemill.event_log
    WHERE $3 AND topic = $2 AND xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY xid DESC, id DESC LIMIT 1) AS last ON true
ON CONFLICT DO NOTHING
"""

#: One reader of a group at a time decides what is taken next.
LOCK_GROUP = "SELECT xid::text, id FROM tidemill.log_group WHERE name = $1 AND topic = $2 FOR UPDATE"

#: A range whose reader has fallen silent.
TAKE_OVER = """
UPDATE tidemill.log_range SET owner = $3, lease_until = now() + make_interval(secs => $4)
WHERE number = (SELECT number FROM tidemill.log_range
    WHERE name = $1 AND topic = $2 AND lease_until < now() ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING number, from_xid::text, from_id, to_xid::text, to_id, done
"""

_COLUMNS = "id, extract(epoch FROM at)::float8 AS at, key, headers, payload, xid::text AS mark"

#: The messages of a range.
READ_RANGE = f"""
SELECT {_COLUMNS} FROM tidemill.event_log
WHERE topic = $1 AND (xid, id) > ($2::text::xid8, $3) AND (xid, id) <= ($4::text::xid8, $5) ORDER BY xid, id
"""

#: The next messages; none of a transaction that is still open, nor of any that is younger than one.
READ_NEXT = f"""
SELECT {_COLUMNS} FROM tidemill.event_log
WHERE topic = $1 AND (xid, id) > ($2::text::xid8, $3) AND xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY xid, id LIMIT $4
"""

#: They are taken: the group moves on, and the range is ours while its lease lasts.
TAKE_RANGE = """
WITH moved AS (UPDATE tidemill.log_group SET xid = $5::text::xid8, id = $6 WHERE name = $1 AND topic = $2)
INSERT INTO tidemill.log_range (name, topic, from_xid, from_id, to_xid, to_id, owner, lease_until)
VALUES ($1, $2, $3::text::xid8, $4, $5::text::xid8, $6, $7, now() + make_interval(secs => $8)) RETURNING number
"""

#: Ranges that are done.
FINISH_RANGES = "DELETE FROM tidemill.log_range WHERE number = ANY($1::bigint[]) AND owner = $2 RETURNING number"

#: What is done of ranges that are not.
NOTE_DONE = """
UPDATE tidemill.log_range AS r SET done = (SELECT coalesce(array_agg(id::bigint), '{}') FROM
    json_array_elements_text(new.done) AS id)
FROM ROWS FROM (json_to_recordset($1::text::json) AS (number bigint, done json)) AS new
WHERE r.number = new.number AND r.owner = $2 RETURNING r.number
"""

RENEW = """
UPDATE tidemill.log_range SET lease_until = now() + make_interval(secs => $2) WHERE owner = $1 RETURNING number
"""

#: Given back: whoever looks next may take them over.
RELEASE = "UPDATE tidemill.log_range SET lease_until = '-infinity' WHERE owner = $1 RETURNING number"

#: How many messages a group has not taken, counted up to a limit, and how many it has taken and not finished.
LAG = """
SELECT (SELECT count(*) FROM (SELECT FROM tidemill.event_log AS e WHERE e.topic = g.topic
        AND (e.xid, e.id) > (g.xid, g.id) LIMIT $3) AS behind) AS behind
FROM tidemill.log_group AS g WHERE g.name = $1 AND g.topic = $2
"""

LIST_PARTITIONS = """
SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'tidemill.event_log'::regclass ORDER BY 1
"""


class Entry(msgspec.Struct, frozen=True):
    """A message for the log."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: bytes | None = None
    """As JSON."""


class Range(msgspec.Struct):
    """Messages that this reader has taken together."""

    number: int
    rows: Sequence[Any]
    done: frozenset[int] = frozenset()


async def append(connection: Executor, schema: str, entries: Iterable[Entry], *, notify: bool = True) -> None:
    """Append to the log, in the connection's transaction if it has one."""
    records = [(entry.topic, entry.key, entry.headers, entry.payload) for entry in entries]
    if not records:
        return
    await connection.copy_records_to_table(
        "event_log", schema_name=schema, columns=("topic", "key", "headers", "payload"), records=records
    )
    if notify:
        topics = sorted({record[0] for record in records})
        await connection.execute(NOTIFY.replace("tidemill_", f"{schema}_"), topics)


async def make_group(database: Database, name: str, topic: str, *, from_now: bool) -> None:
    """Make sure that a group has a position."""
    await database.fetch(MAKE_GROUP, name, topic, from_now)


async def take_range(
    database: Database, name: str, topic: str, *, most: int, owner: UUID, lease: float
) -> Range | None:
    """The next messages of a topic for this reader; None if there are none."""
    async with database.transaction() as connection:
        row = await connection.fetchrow(database.sql(LOCK_GROUP), name, topic)
        if row is None:
            return None
        left = await connection.fetchrow(database.sql(TAKE_OVER), name, topic, owner, lease)
        if left is not None:
            rows = await connection.fetch(
                database.sql(READ_RANGE), topic, left["from_xid"], left["from_id"], left["to_xid"], left["to_id"]
            )
            return Range(left["number"], rows, frozenset(left["done"]))
        rows = await connection.fetch(database.sql(READ_NEXT), topic, row["xid"], row["id"], most)
        if not rows:
            return None
        last = rows[-1]
        taken = await connection.fetch(
            database.sql(TAKE_RANGE), name, topic, row["xid"], row["id"], last["mark"], last["id"], owner, lease
        )
        return Range(taken[0]["number"], rows)


async def finish_ranges(database: Database, connection: Executor, numbers: Sequence[int], owner: UUID) -> set[int]:
    """These ranges are done; returns those that were still ours."""
    return {row["number"] for row in await connection.fetch(database.sql(FINISH_RANGES), list(numbers), owner)}


async def note_done(
    database: Database, connection: Executor, done: Sequence[tuple[int, Sequence[int]]], owner: UUID
) -> set[int]:
    """What is done of ranges that are not finished; returns those that are still ours."""
    text = msgspec.json.encode([{"number": number, "done": ids} for number, ids in done]).decode()
    return {row["number"] for row in await connection.fetch(database.sql(NOTE_DONE), text, owner)}


async def renew_ranges(database: Database, owner: UUID, lease: float) -> set[int]:
    """Keep our ranges for another while; returns those that are still ours."""
    return {row["number"] for row in await database.fetch(RENEW, owner, lease)}


async def release_ranges(database: Database, owner: UUID) -> None:
    await database.fetch(RELEASE, owner)


async def count_behind(database: Database, name: str, topic: str, *, most: int = 100_000) -> int:
    """How many messages wait for a group, counted up to `most`."""
    row = await database.fetchrow(LAG, name, topic, most)
    return row["behind"] if row else 0


async def keep_log(database: Database, today: date, *, keep_days: int, days_ahead: int = 3) -> None:
    """Make the log's next partitions and drop those that are too old."""
    names = {row["name"] for row in await database.fetch(LIST_PARTITIONS)}
    for offset in range(days_ahead + 1):
        day = today + timedelta(days=offset)
        name = f"event_log_{day:%Y%m%d}"
        if name not in names:
            first, last = (_midnight(each).isoformat() for each in (day, day + timedelta(days=1)))
            await _change(
                database,
                f"CREATE TABLE IF NOT EXISTS tidemill.{name} PARTITION OF tidemill.event_log "
                f"FOR VALUES FROM ('{first}') TO ('{last}')",
            )
    oldest = today - timedelta(days=keep_days)
    for name in names:
        found = _PARTITION.match(name)
        if found is not None and date(int(found[1]), int(found[2]), int(found[3])) < oldest:
            await _change(database, f"DROP TABLE IF EXISTS tidemill.{name}")
    await database.fetch("DELETE FROM tidemill.event_log_default WHERE at < $1", _midnight(oldest))


async def _change(database: Database, statement: str) -> None:
    """Change the partitions unless somebody is in the way; the next round tries again."""
    async with database.acquire() as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_PATIENCE_MS}")
                await connection.execute(database.sql(statement))
        except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError):
            return  # Busy; or messages of that day are in the default partition, where they then stay.


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
