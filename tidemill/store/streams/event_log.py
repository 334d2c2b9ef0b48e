"""The PostgreSQL log: append-only topics, read by consumer groups in ranges.

Reading writes nothing per message: a group's position moves by ranges, and a range is one row while it is processed. A
reader that stops renewing the lease of its ranges loses them to another reader, which reads unfinished messages again.

Messages that are appended together share a row, up to `MOST_IN_ROW`: this is cheaper than one row and one index entry
each. A message's position is made of its row's id and its offset in the row.

The order of rows is (xid, id), where `xid` is the transaction that appended the row, counted from the beginning of the
log's era. A cluster that the log is moved to begins an era of its own, so positions stay valid.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from tidemill.core.errors import StoreError
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor
from tidemill.store.maintenance.partitions import keep_daily
from tidemill.store.schemas import in_schema

#: Notifies readers; the payload is the topic, or the stream whose control has changed.
STREAMS_CHANNEL = "streams"

MOST_IN_ROW = 256
MOST_BYTES = 64 * 1024
MOST_IN_RANGE = 16 * 2**20  # bytes, rounded up to whole rows
MOST_COUNTED = 100_000  # rows
SPREAD = 1024  # positions per row; the view `log_message` uses the same number

LOG_COLUMNS = ("topic", "keys", "headers", "payloads", "origins")

#: Appends one row and notifies, in one round trip.
APPEND_ROW = """
WITH row AS (
    INSERT INTO tidemill.event_log (topic, keys, headers, payloads, origins)
    VALUES ($1, $2, $3, $4, $5) RETURNING topic)
SELECT pg_notify('tidemill_streams', topic) FROM row
"""

NOTIFY = "SELECT pg_notify('tidemill_streams', topic) FROM unnest($1::text[]) AS topic"

#: Where the positions of this cluster begin. Read before the statement that reads messages: the snapshot of that one
#: then has every message of the eras before.
READ_BASE = "SELECT tidemill.log_base() AS base"

#: Creates a group at the beginning, or after the existing messages.
MAKE_GROUP = """
INSERT INTO tidemill.log_group (name, topic, xid, id)
SELECT $1, $2, coalesce(last.xid, '0'), coalesce(last.id, 0) FROM (SELECT) AS one LEFT JOIN LATERAL (
    SELECT xid, id FROM tidemill.event_log
    WHERE $3 AND topic = $2
      AND xid < (SELECT ($4 + pg_snapshot_xmin(pg_current_snapshot())::text::bigint)::text::xid8)
    ORDER BY xid DESC, id DESC LIMIT 1) AS last ON true
ON CONFLICT DO NOTHING
"""

#: Locks a group: one reader at a time takes the next range.
LOCK_GROUP = """
SELECT xid::text::bigint AS xid, id, tidemill.log_base() AS base,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next
FROM tidemill.log_group WHERE name = $1 AND topic = $2 FOR UPDATE
"""

#: The position that no message can have yet.
READ_END = "SELECT tidemill.log_base() + pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS end"

#: Whether the group has messages in flight that this reader does not have: another reader has them, or its own response
#: was lost when it took them.
OTHERS_READ = """
SELECT EXISTS (SELECT FROM tidemill.log_range
    WHERE name = $1 AND topic = $2 AND (owner <> $3 OR number <> ALL ($4::bigint[])) AND lease_until >= now()) AS others
"""

#: Takes over a range whose reader's lease has lapsed.
TAKE_OVER = """
UPDATE tidemill.log_range SET owner = $3, lease_until = now() + make_interval(secs => $4)
WHERE number = (SELECT number FROM tidemill.log_range
    WHERE name = $1 AND topic = $2 AND lease_until < now() ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING number, from_xid::text::bigint AS from_xid, from_id, to_xid::text::bigint AS to_xid, to_id, done
"""

_COLUMNS = "id, extract(epoch FROM at)::float8 AS at, keys, headers, payloads, origins, xid::text::bigint AS mark"

#: The messages of a range.
READ_RANGE = f"""
SELECT {_COLUMNS} FROM tidemill.event_log
WHERE topic = $1 AND (xid, id) > ($2::bigint::text::xid8, $3) AND (xid, id) <= ($4::bigint::text::xid8, $5)
ORDER BY xid, id
"""

#: The next messages, without those of an open transaction or of any younger one. Whole rows, until there are enough
#: messages or bytes.
READ_NEXT = f"""
SELECT {_COLUMNS} FROM (
    SELECT *, sum(messages) OVER in_order - messages AS before, sum(size) OVER in_order - size AS size_before FROM (
        SELECT *, pg_column_size(payloads) AS size FROM tidemill.event_log
        WHERE topic = $1 AND (xid, id) > ($2::bigint::text::xid8, $3)
          AND xid < (SELECT ($6 + pg_snapshot_xmin(pg_current_snapshot())::text::bigint)::text::xid8)
        ORDER BY xid, id LIMIT $5) AS rows
    WINDOW in_order AS (ORDER BY xid, id ROWS UNBOUNDED PRECEDING)) AS counted
WHERE before < $4 AND size_before < {MOST_IN_RANGE} ORDER BY counted.xid, id
"""

#: Takes a range: moves the group's position, and leases the range to this reader.
TAKE_RANGE = """
WITH moved AS (UPDATE tidemill.log_group SET xid = $5::bigint::text::xid8, id = $6 WHERE name = $1 AND topic = $2)
INSERT INTO tidemill.log_range (name, topic, from_xid, from_id, to_xid, to_id, owner, lease_until)
VALUES ($1, $2, $3::bigint::text::xid8, $4, $5::bigint::text::xid8, $6, $7, now() + make_interval(secs => $8))
RETURNING number
"""

#: Deletes finished ranges.
FINISH_RANGES = "DELETE FROM tidemill.log_range WHERE number = ANY($1::bigint[]) AND owner = $2 RETURNING number"

#: Stores the progress within unfinished ranges.
NOTE_DONE = """
UPDATE tidemill.log_range AS r SET done = (SELECT coalesce(array_agg(id::bigint), '{}') FROM
    json_array_elements_text(new.done) AS id)
FROM ROWS FROM (json_to_recordset($1::text::json) AS (number bigint, done json)) AS new
WHERE r.number = new.number AND r.owner = $2 RETURNING r.number
"""

#: Renews only ranges that their owner knows of: one whose response was lost lapses and is taken over.
RENEW = """
UPDATE tidemill.log_range SET lease_until = now() + make_interval(secs => $2)
WHERE owner = $1 AND number = ANY ($3::bigint[]) RETURNING number
"""

#: Releases ranges for the next reader to take over.
RELEASE = "UPDATE tidemill.log_range SET lease_until = '-infinity' WHERE owner = $1 RETURNING number"

#: How many messages a group has not taken yet, counted up to a limit of rows.
LAG = """
SELECT (SELECT coalesce(sum(messages), 0) FROM (
        SELECT messages FROM tidemill.event_log AS e WHERE e.topic = g.topic AND (e.xid, e.id) > (g.xid, g.id)
        LIMIT $3) AS rows)::bigint AS behind
FROM tidemill.log_group AS g WHERE g.name = $1 AND g.topic = $2
"""


class PositionAheadError(StoreError):
    """A consumer group is ahead of the log: it would not be given the messages that are appended now."""


class Entry(msgspec.Struct, frozen=True):
    """A message to append to the log."""

    topic: str
    payload: bytes
    key: str | None = None
    headers: bytes | None = None
    """As JSON."""
    origin: str | None = None
    """The work that publishes it, in words."""


class LogMessage(NamedTuple):
    """A message read from the log."""

    position: int
    at: float
    key: str | None
    headers: str | None
    payload: bytes
    origin: str | None


class Range(msgspec.Struct):
    """Messages that this reader has taken together."""

    number: int
    messages: list[LogMessage]
    rows: int
    done: frozenset[int] = frozenset()


class _Row(msgspec.Struct):
    """A row of the log that can still take messages."""

    room: int = MOST_BYTES
    payloads: list[bytes] = []
    keys: dict[int, str] = {}
    headers: dict[int, bytes] = {}
    origins: dict[int, str] = {}

    def record(self, topic: str) -> tuple[Any, ...]:
        keys, headers, many = self.keys, self.headers, range(len(self.payloads))
        return (
            topic,
            [keys.get(number) for number in many] if keys else None,
            [headers[number].decode() if number in headers else None for number in many] if headers else None,
            self.payloads,
            self._origins(),
        )

    def _origins(self) -> list[str | None] | None:
        """The origin of all messages if they share it, else that of each."""
        origins, count = self.origins, len(self.payloads)
        if not origins or (len(origins) == count and len(set(origins.values())) == 1):
            return [*{*origins.values()}] or None
        return [origins.get(number) for number in range(count)]


async def append(database: Database, connection: Executor, entries: Iterable[Entry]) -> None:
    """Append to the log, in the connection's transaction if it has one."""
    records, schema = list(_records(_sealed(database, entries))), database.schema
    if not records:
        return
    if len(records) == 1:
        await connection.execute(in_schema(APPEND_ROW, schema), *records[0])
        return
    await connection.copy_records_to_table("event_log", schema_name=schema, columns=LOG_COLUMNS, records=records)
    await connection.execute(in_schema(NOTIFY, schema), sorted({record[0] for record in records}))


#: Appends rows for any driver's connection: payloads as base64, since not every driver sends bytes in JSON.
APPEND_ROWS = """
WITH appended AS (
    INSERT INTO tidemill.event_log (topic, keys, headers, payloads, origins)
    SELECT topic, CASE WHEN keys IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(keys)) END,
           CASE WHEN headers IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(headers)) END,
           ARRAY(SELECT decode(payload, 'base64') FROM json_array_elements_text(payloads) AS payload),
           CASE WHEN origins IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(origins)) END
    FROM ROWS FROM (json_to_recordset($1::text::json)
                    AS (topic text, keys json, headers json, payloads json, origins json))
         WITH ORDINALITY AS new ORDER BY new.ordinality
    RETURNING topic)
SELECT pg_notify('tidemill_streams', topic) FROM (SELECT DISTINCT topic FROM appended) AS topics
"""


def append_statements(database: Database, entries: Iterable[Entry]) -> Statements[None]:
    """The statements that append to the log, for any driver."""
    rows = [
        {
            "topic": topic,
            "keys": keys,
            "headers": headers,
            "payloads": [b64encode(each).decode() for each in payloads],
            "origins": origins,
        }
        for topic, keys, headers, payloads, origins in _records(_sealed(database, entries))
    ]
    if rows:
        yield APPEND_ROWS, (msgspec.json.encode(rows).decode(),)


def _sealed(database: Database, entries: Iterable[Entry]) -> Iterable[Entry]:
    if database.codec is None:
        return entries
    return [msgspec.structs.replace(each, payload=database.seal_bytes(each.payload)) for each in entries]


def _records(entries: Iterable[Entry]) -> Iterator[tuple[Any, ...]]:
    """Pack entries into rows of limited size, in order per topic."""
    rows: dict[str, _Row] = {}
    for entry in entries:
        topic, payload = entry.topic, entry.payload
        row = rows.get(topic)
        if row is None:
            row = rows[topic] = _Row()
        number = len(row.payloads)
        if number == MOST_IN_ROW or (number and row.room < len(payload)):
            yield row.record(topic)
            row = rows[topic] = _Row()
            number = 0
        row.payloads.append(payload)
        row.room -= len(payload)
        if entry.key is not None:
            row.keys[number] = entry.key
        if entry.headers is not None:
            row.headers[number] = entry.headers
        if entry.origin is not None:
            row.origins[number] = entry.origin
    for topic, row in rows.items():
        yield row.record(topic)


def _messages(rows: Sequence[Any]) -> list[LogMessage]:
    found: list[LogMessage] = []
    for row in rows:
        first, at, keys, headers, payloads = row["id"] * SPREAD, row["at"], row["keys"], row["headers"], row["payloads"]
        origins = row["origins"]
        for number, payload in enumerate(payloads):
            key, header = keys and keys[number], headers and headers[number]
            origin = origins and (origins[0] if len(origins) == 1 else origins[number])
            found.append(LogMessage(first + number, at, key, header, payload, origin))
    return found


async def make_group(database: Database, name: str, topic: str, *, from_now: bool) -> None:
    """Create a group if it does not exist yet."""
    base = (await database.fetch(READ_BASE))[0]["base"]
    await database.fetch(MAKE_GROUP, name, topic, from_now, base)


async def take_range(
    database: Database,
    name: str,
    topic: str,
    *,
    most: int,
    rows: int,
    owner: UUID,
    lease: float,
    known: Sequence[int] | None = None,
) -> Range | None:
    """Take the next messages of a topic for this reader: about `most`, in a limited number of rows. None if none.

    `known` are the ranges that a reader in order has in flight: it takes no other while there are more in flight. A
    `PositionAheadError` says that the group's position is not one of this log.
    """
    async with database.transaction() as connection:
        row = await connection.fetchrow(database.sql(LOCK_GROUP), name, topic)
        if row is None:
            return None
        left = await connection.fetchrow(database.sql(TAKE_OVER), name, topic, owner, lease)
        if left is not None:
            found = await connection.fetch(
                database.sql(READ_RANGE), topic, left["from_xid"], left["from_id"], left["to_xid"], left["to_id"]
            )
            return Range(left["number"], _messages(found), len(found), frozenset(left["done"]))
        if known is not None:
            others = await connection.fetch(database.sql(OTHERS_READ), name, topic, owner, known)
            if others[0]["others"]:
                return None
        found = await connection.fetch(database.sql(READ_NEXT), topic, row["xid"], row["id"], most, rows, row["base"])
        if not found:
            if row["xid"] >= row["base"] + row["next"]:
                await _check_position(database, connection, name, topic, row["xid"])
            return None
        last = found[-1]
        taken = await connection.fetch(
            database.sql(TAKE_RANGE), name, topic, row["xid"], row["id"], last["mark"], last["id"], owner, lease
        )
        return Range(taken[0]["number"], _messages(found), len(found))


async def _check_position(database: Database, connection: Executor, name: str, topic: str, xid: int) -> None:
    """Raise if the group is ahead of the log. The caller's snapshot may be older than the position."""
    rows = await connection.fetch(database.sql(READ_END))
    if xid >= rows[0]["end"]:
        raise PositionAheadError(
            f"group {name} of topic {topic} is ahead of the log: its position is not from this log or from a later "
            f"copy of it, so new messages would not be delivered; run `SELECT {database.schema}.begin_log_era()` in "
            "the database, and publish again what was published since the copy"
        )


async def finish_ranges(database: Database, connection: Executor, numbers: Sequence[int], owner: UUID) -> set[int]:
    """Finish ranges; returns those that were still ours."""
    return {row["number"] for row in await connection.fetch(database.sql(FINISH_RANGES), list(numbers), owner)}


async def note_done(
    database: Database, connection: Executor, done: Sequence[tuple[int, Sequence[int]]], owner: UUID
) -> set[int]:
    """Store the progress within unfinished ranges; returns those that are still ours."""
    text = msgspec.json.encode([{"number": number, "done": ids} for number, ids in done]).decode()
    return {row["number"] for row in await connection.fetch(database.sql(NOTE_DONE), text, owner)}


async def renew_ranges(database: Database, owner: UUID, numbers: Iterable[int], lease: float) -> set[int]:
    """Renew the lease of these ranges; returns those that are still ours."""
    return {row["number"] for row in await database.fetch(RENEW, owner, lease, list(numbers), patience=None)}


async def release_ranges(database: Database, owner: UUID) -> None:
    await database.fetch(RELEASE, owner)


async def count_behind(database: Database, name: str, topic: str) -> int:
    """How many messages wait for a group, counted up to a limit of rows."""
    row = await database.fetchrow(LAG, name, topic, MOST_COUNTED)
    return row["behind"] if row else 0


async def keep_log(database: Database, today: date, *, keep_days: int) -> None:
    """Create the log's next partitions and drop those that are too old."""
    await keep_daily(database, "event_log", "at", today, keep_days=keep_days)
