"""Monitors in the database: owners of entities, arriving events, ticks, pending work and committed results.

Arriving events belong to the tick after the last complete one. `seal_tick` completes it; from then on every owner of
a share of the entities may fold it. The results of an entity are written in one transaction, if the owner is unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import LeaseLostError, NotFoundError
from tidemill.store.database import Database, Executor
from tidemill.store.transaction import Transaction

#: Notifies monitors of a complete tick or an operator's request.
MONITORS_CHANNEL = "monitors"
SHARDS = 64

#: Registers a monitor; its version is only set once here, because a new one takes over when it has caught up.
DECLARE_MONITOR = """
WITH known AS (
    INSERT INTO tidemill.monitor AS m (name, version, keep) VALUES ($1, $2, $3)
    ON CONFLICT (name) DO UPDATE SET keep = excluded.keep WHERE m.keep <> excluded.keep)
INSERT INTO tidemill.monitor_shard (monitor, shard) SELECT $1, generate_series(0, $4 - 1) ON CONFLICT DO NOTHING
"""

#: One monitor, and all monitors.
READ_MONITOR = """
SELECT name, version, tick, tick_at, cursor_at, cursor_id, cursor_token, lateness, events, duplicates, ignored, late,
       resets, paused, off, keep, status, seen_at FROM tidemill.monitor WHERE name = $1
"""
LIST_MONITORS = """
SELECT m.name, m.version, m.tick, m.tick_at, m.cursor_at, m.lateness, m.events, m.duplicates, m.ignored, m.late,
       m.paused, m.off, m.status, m.seen_at,
       (SELECT count(*) FROM tidemill.monitor_entity AS e WHERE e.monitor = m.name AND e.active) AS entities,
       (SELECT count(*) FROM tidemill.monitor_entity AS e
        WHERE e.monitor = m.name AND e.backfill IS NOT NULL) AS filling,
       (SELECT count(*) FROM tidemill.alert AS a WHERE a.monitor = m.name AND a.resolved_at IS NULL) AS open,
       (SELECT count(DISTINCT owner) FROM tidemill.monitor_shard AS s JOIN tidemill.worker AS w ON w.id = s.owner
        WHERE s.monitor = m.name AND w.ended_at IS NULL AND w.lease_until > now()) AS members
FROM tidemill.monitor AS m WHERE $1::text IS NULL OR m.name = $1 ORDER BY m.name
"""

#: Values that change whenever anything shown about a monitor may have changed: looked up, not counted.
READ_PULSE = """
SELECT m.tick, m.tick_at, m.paused, m.off, m.status, m.seen_at,
       EXISTS (SELECT FROM tidemill.monitor_entity AS e WHERE e.monitor = m.name AND e.head > e.folded) AS behind,
       (SELECT max(id) FROM tidemill.alert_history) AS alert_change,
       (SELECT max(id) FROM installation.audit) AS audit_entry
FROM tidemill.monitor AS m WHERE m.name = $1
"""

#: The processes that run a monitor now.
LIST_MEMBERS = """
SELECT id FROM tidemill.worker
WHERE ended_at IS NULL AND lease_until > now() AND $1 = ANY (queues)
  AND status NOT IN ('draining', 'paused', 'drained', 'stopped')
ORDER BY id
"""

#: Releases unwanted shares, takes wanted ones without a living owner; returns the owned shares.
SHARE_OUT = """
WITH gone AS (
    UPDATE tidemill.monitor_shard SET owner = NULL WHERE monitor = $1 AND owner = $2 AND shard <> ALL ($3)),
took AS (
    UPDATE tidemill.monitor_shard AS s SET owner = $2 WHERE monitor = $1 AND shard = ANY ($3)
      AND (owner IS NULL OR NOT EXISTS (
          SELECT FROM tidemill.worker AS w WHERE w.id = s.owner AND w.ended_at IS NULL AND w.lease_until > now()))
    RETURNING shard)
SELECT shard FROM tidemill.monitor_shard WHERE monitor = $1 AND owner = $2 AND shard = ANY ($3)
UNION SELECT shard FROM took ORDER BY 1
"""

#: Adds unknown entities.
ADD_ENTITIES = """
INSERT INTO tidemill.monitor_entity (monitor, entity, shard)
SELECT $1, * FROM unnest($2::text[], $3::smallint[]) ON CONFLICT DO NOTHING
"""

#: Stores a page: new events of followed entities, the entities they touch, the cursor and the counts.
INGEST = """
WITH held AS (SELECT tick + 1 AS tick FROM tidemill.monitor WHERE name = $1 FOR UPDATE),
kept AS (
    SELECT entity FROM tidemill.monitor_entity WHERE monitor = $1 AND entity = ANY ($6::text[]) AND active),
stored AS (
    INSERT INTO tidemill.monitor_event (monitor, entity, source_id, at, tick, data, past)
    SELECT $1, new.entity, new.source_id, new.at, held.tick, new.data, coalesce(new.at < $14, false)
    -- JSON in an array is checked as it is read; from a text each value would be cut out and copied first.
    FROM unnest($2::text[], $3::float8[], $4::text[], $5::json[]) AS new (source_id, at, entity, data)
    JOIN kept ON kept.entity = new.entity CROSS JOIN held
    ON CONFLICT DO NOTHING RETURNING entity, at),
counted AS (
    SELECT (SELECT count(*) FROM stored) AS stored, (SELECT min(at) FROM stored) AS oldest,
           ARRAY(SELECT at FROM stored WHERE at < $12 ORDER BY at LIMIT 1000) AS behind,
           (SELECT coalesce(sum(new.events), 0)
            FROM unnest($6::text[], $7::int[]) AS new(entity, events) JOIN kept USING (entity)) AS followed,
           $13::int AS given),
touched AS (
    UPDATE tidemill.monitor_entity AS e
    SET head = held.tick, fresh_at = CASE WHEN e.head > e.folded THEN least(e.fresh_at, c.oldest) ELSE c.oldest END
    FROM held, counted AS c
    -- An array and not a join, so that entities are looked up by key whatever the planner estimates.
    WHERE e.monitor = $1 AND e.entity = ANY (ARRAY(SELECT DISTINCT entity FROM stored))
      AND (e.head <> held.tick OR e.fresh_at IS NULL OR e.fresh_at > c.oldest))
UPDATE tidemill.monitor AS m
SET events = m.events + c.stored, duplicates = m.duplicates + c.followed - c.stored,
    ignored = m.ignored + c.given - c.followed + $8,
    cursor_at = greatest($9, m.cursor_at), cursor_id = coalesce($10, m.cursor_id),
    cursor_token = coalesce($11, m.cursor_token)
FROM counted AS c WHERE m.name = $1
RETURNING c.stored, c.behind, c.given - c.followed AS ignored
"""

#: Stores the traces and origins that events came with, and reads them.
NOTE_ORIGINS = """
UPDATE tidemill.monitor_event AS e SET trace = n.trace, origin = n.origin
FROM unnest($2::text[], $3::float8[], $4::text[], $5::text[]) AS n(source_id, at, trace, origin)
WHERE e.monitor = $1 AND e.source_id = n.source_id AND e.at = n.at AND e.trace IS NULL AND e.origin IS NULL
"""
READ_TRACES = """
SELECT e.trace FROM tidemill.monitor_event AS e
JOIN unnest($2::text[], $3::float8[]) AS n(source_id, at) USING (source_id, at)
WHERE e.monitor = $1 AND e.trace IS NOT NULL ORDER BY e.at DESC
"""

READ_ORIGINS = """
SELECT e.source_id, e.origin FROM tidemill.monitor_event AS e
JOIN unnest($2::text[], $3::float8[]) AS n(source_id, at) USING (source_id, at)
WHERE e.monitor = $1 ORDER BY e.at DESC
"""

#: Stores when a monitor was first followed.
START_MONITOR = """
UPDATE tidemill.monitor SET started_at = coalesce(started_at, $2) WHERE name = $1 RETURNING started_at
"""

#: How late the events of a source are, minute by minute, and what is usual.
READ_LATENESS = "SELECT lateness_by_minute FROM tidemill.monitor WHERE name = $1"
KEEP_LATENESS = "UPDATE tidemill.monitor SET lateness = $2, lateness_by_minute = $3 WHERE name = $1"

#: Completes a tick, if it has events or a timer is due by then; returns it. Its time is the one up to which the source
#: has been read, in all its parts. A timer that the last complete tick serves, but that the entity's owner has not
#: processed yet, needs no further tick.
SEAL_TICK = """
WITH read_until AS (
    SELECT CASE WHEN $4::int = 0 THEN least($2::float8, $3::float8)
                WHEN count(*) = $4 AND count(heard_at) = $4 THEN least($2, min(heard_at)) END AS at
    FROM tidemill.monitor_source_position WHERE monitor = $1 AND part < $4),
locked AS (SELECT tick, tick_at FROM tidemill.monitor WHERE name = $1 FOR UPDATE),
held AS (
    SELECT tick, tick_at, greatest(read_until.at, tick_at) AS at FROM locked CROSS JOIN read_until
    WHERE read_until.at IS NOT NULL),
due AS (
    SELECT held.at FROM held
    WHERE EXISTS (SELECT FROM tidemill.monitor_entity
                  WHERE monitor = $1 AND head > folded AND head = held.tick + 1)
       OR EXISTS (SELECT FROM tidemill.monitor_entity WHERE monitor = $1 AND due_at <= held.at
                  AND active AND NOT (due_at <= held.tick_at AND folded < held.tick))
       OR EXISTS (SELECT FROM tidemill.alert AS a JOIN tidemill.monitor_entity AS e USING (monitor, entity)
                  WHERE a.monitor = $1 AND a.resolved_at IS NULL
                  AND a.realert_at <= to_timestamp(held.at) AND e.active
                  AND NOT (a.realert_at <= to_timestamp(held.tick_at) AND e.folded < held.tick))),
sealed AS (UPDATE tidemill.monitor AS m SET tick = m.tick + 1, tick_at = due.at FROM due WHERE m.name = $1
           RETURNING m.tick, m.tick_at),
news AS (SELECT pg_notify('tidemill_monitors', $1) FROM sealed)
INSERT INTO tidemill.monitor_tick (monitor, number, at, clock)
SELECT $1, tick, tick_at, CASE WHEN $2 > tick_at THEN $2 END FROM sealed
RETURNING number, at, clock, (SELECT count(*) FROM news)
"""

#: The next timer of a monitor.
NEXT_DUE = """
SELECT least((SELECT min(due_at) FROM tidemill.monitor_entity WHERE monitor = $1 AND due_at IS NOT NULL),
             (SELECT extract(epoch FROM min(realert_at))::float8 FROM tidemill.alert
              WHERE monitor = $1 AND resolved_at IS NULL AND realert_at IS NOT NULL)) AS at
"""

#: Entities of these shares with unfolded events, or whose timer is due; without those that are postponed.
FIND_WORK = """
SELECT entity, shard, folded, fresh_at, at, id, last_at, count, due_at, version, marks, labels,
       head > folded AND folded < $3 AS fresh
FROM tidemill.monitor_entity WHERE monitor = $1 AND shard = ANY ($2) AND active
  AND entity = ANY (ARRAY(
    (SELECT entity FROM tidemill.monitor_entity
     WHERE monitor = $1 AND shard = ANY ($2) AND active AND head > folded AND folded < $3 AND entity <> ALL ($6)
     LIMIT $5)
    UNION
    (SELECT entity FROM tidemill.monitor_entity
     WHERE monitor = $1 AND due_at <= $4 AND shard = ANY ($2) AND active AND folded < $3 AND entity <> ALL ($6)
     LIMIT $5)
    UNION
    (SELECT a.entity FROM tidemill.alert AS a JOIN tidemill.monitor_entity AS e USING (monitor, entity)
     WHERE a.monitor = $1 AND a.resolved_at IS NULL AND a.realert_at <= to_timestamp($4)
       AND e.shard = ANY ($2) AND e.folded < $3 AND e.entity <> ALL ($6) LIMIT $5)))
"""

#: The events of entities that are not folded yet.
FRESH_EVENTS = """
SELECT e.entity, e.source_id, e.at, e.tick, e.data, e.past
FROM unnest($2::text[], $3::float8[], $4::bigint[]) AS w(entity, fresh_at, folded)
JOIN tidemill.monitor_event AS e
    ON e.monitor = $1 AND e.entity = w.entity AND e.at >= w.fresh_at AND e.tick > w.folded
WHERE e.at >= $5 AND e.tick <= $6
"""

#: The newest events of entities from a time on, up to a tick each; at most `$5`.
PAST_EVENTS = """
SELECT e.entity, e.source_id, e.at, e.tick, e.data, e.past
FROM unnest($2::text[], $3::float8[], $4::bigint[]) AS w(entity, since, tick) CROSS JOIN LATERAL (
    SELECT * FROM tidemill.monitor_event
    WHERE monitor = $1 AND entity = w.entity AND at >= w.since AND tick <= w.tick ORDER BY at DESC LIMIT $5) AS e
"""

#: The relevant ticks: those of these events, and all from the first timer on.
READ_TICKS = """
SELECT number, at, clock FROM tidemill.monitor_tick WHERE monitor = $1 AND number <= $2 AND number = ANY ($3)
UNION
SELECT number, at, clock FROM tidemill.monitor_tick WHERE monitor = $1 AND number <= $2 AND at >= $4
"""

LOAD_STATES = "SELECT entity, state, version FROM tidemill.monitor_entity WHERE monitor = $1 AND entity = ANY ($2)"
LOAD_CHECKPOINTS = """
SELECT at, id, count, state FROM tidemill.monitor_checkpoint WHERE monitor = $1 AND entity = $2 AND version = $3
ORDER BY count
"""

#: Locks these shares if they still belong to the owner, until the transaction ends.
HOLD_SHARDS = """
SELECT count(*) FROM (SELECT FROM tidemill.monitor_shard
                      WHERE monitor = $1 AND owner = $2 AND shard = ANY ($3) FOR SHARE) AS held
"""

#: Stores the progress of entities, each only if it is unchanged since. A request for an earlier evaluation is kept.
COMMIT_ENTITIES = """
UPDATE tidemill.monitor_entity AS e
SET folded = n.folded, at = n.at, id = n.id, last_at = n.last_at, count = n.count, version = $2, state = n.state,
    marks = n.marks, problem = n.problem,
    due_at = CASE WHEN e.due_at IS DISTINCT FROM n.was_due THEN least(e.due_at, n.due_at) ELSE n.due_at END
FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::float8[], $7::text[], $8::float8[], $9::bigint[],
            $10::float8[], $11::float8[], $12::json[], $13::json[], $14::text[])
    AS n(entity, was, folded, at, id, last_at, count, was_due, due_at, state, marks, problem)
WHERE e.monitor = $1 AND e.entity = n.entity AND e.folded = n.was
"""

#: Older states, each in one of two slots; those that a late event has invalidated are deleted first.
DROP_CHECKPOINTS = """
DELETE FROM tidemill.monitor_checkpoint AS c USING unnest($2::text[], $3::float8[]) AS n(entity, at)
WHERE c.monitor = $1 AND c.entity = n.entity AND c.at >= n.at
"""
KEEP_CHECKPOINTS = """
INSERT INTO tidemill.monitor_checkpoint (monitor, version, entity, slot, at, id, count, state)
SELECT $1, $2, * FROM unnest($3::text[], $4::smallint[], $5::float8[], $6::text[], $7::bigint[], $8::json[])
ON CONFLICT (monitor, entity, slot) DO UPDATE
SET version = excluded.version, at = excluded.at, id = excluded.id, count = excluded.count, state = excluded.state
"""

#: Stores a monitor's status, and counts late events.
WRITE_STATUS = "UPDATE tidemill.monitor SET status = $2, seen_at = now() WHERE name = $1"
COUNT_LATE = "UPDATE tidemill.monitor SET late = late + $2 WHERE name = $1"


class NewEvents(msgspec.Struct, frozen=True):
    """A page of events as columns."""

    ids: list[str]
    times: list[float]
    entities: list[str]
    data: list[bytes]
    without_entity: int = 0
    """Events without an entity."""
    origins: Sequence[tuple[str, float, str | None, str | None]] = ()
    """The ids, times, traces and origins of those that came with one of both."""


class CursorMove(msgspec.Struct, frozen=True):
    """The cursor after a page is stored; None leaves it."""

    at: float | None = None
    id: str | None = None
    token: str | None = None


class Stored(msgspec.Struct, frozen=True):
    """The result of storing a page: the number of new events, the times of late ones, and those without an entity."""

    count: int
    behind: list[float]
    """The times of new events that are older than the newest one before them; at most 1000."""
    ignored: int


class EntityMove(msgspec.Struct, frozen=True):
    """The new progress of an entity, and the previous one."""

    entity: str
    shard: int
    was: int
    was_due: float | None
    folded: int
    at: float | None
    id: str | None
    last_at: float | None
    count: int
    due_at: float | None
    state: bytes | None
    marks: bytes
    problem: str | None = None
    drop_from: float | None = None
    checkpoints: tuple[tuple[int, float, str, int, bytes], ...] = ()
    """Slot, time, id, count and state of each."""


async def declare_monitor(database: Database, name: str, version: str, *, keep: float) -> None:
    await database.fetch(DECLARE_MONITOR, name, version, keep, SHARDS, patience=None)


async def read_monitor(at: Database | Transaction, name: str) -> asyncpg.Record:
    row = await at.fetchrow(READ_MONITOR, name)
    known = [] if row is not None else [each["name"] for each in await at.fetch("SELECT name FROM tidemill.monitor")]
    return require_monitor(row, name, known)


def require_monitor(row: asyncpg.Record | None, name: str, known: Sequence[str] = ()) -> asyncpg.Record:
    """The row of a monitor, or an error if there is none."""
    if row is None:
        hint = did_you_mean(name, known)
        raise NotFoundError(f"there is no monitor {name!r}: start it with `tidemill monitor run app.py`{hint}")
    return row


async def read_fingerprint(database: Database, name: str) -> asyncpg.Record | None:
    """A cheap fingerprint of a monitor: what is shown about it need not be read again while this is unchanged."""
    return await database.fetchrow(READ_PULSE, name)


async def list_monitors(database: Database, name: str | None = None) -> list[asyncpg.Record]:
    return await database.fetch(LIST_MONITORS, name)


async def list_members(database: Database, name: str, version: str) -> list[int]:
    """The workers that run a monitor with this version of its fold, oldest first."""
    return [row["id"] for row in await database.fetch(LIST_MEMBERS, member_queue(name, version))]


def member_queue(name: str, version: str) -> str:
    """The queue name under which a process that runs a monitor is registered as a worker."""
    return f"monitor:{name}@{version}"


async def claim_shards(database: Database, name: str, owner: int, wanted: Sequence[int]) -> list[int]:
    """Own these shares, unless a living owner has them; returns those that are owned now."""
    return [row["shard"] for row in await database.fetch(SHARE_OUT, name, owner, list(wanted))]


async def add_entities(database: Database, name: str, entities: Sequence[str], shards: Sequence[int]) -> None:
    await database.fetch(ADD_ENTITIES, name, list(entities), list(shards))


async def ingest(
    database: Database,
    connection: Executor,
    name: str,
    events: NewEvents,
    move: CursorMove,
    *,
    behind: float | None = None,
    past: float | None = None,
) -> Stored:
    """Store a page and move the cursor, in one statement.

    An event from before `behind` is late, and one from before `past` is from before it was followed.
    """
    entities = Counter(events.entities)
    row = await connection.fetchrow(
        database.sql(INGEST),
        name,
        events.ids,
        events.times,
        events.entities,
        [database.seal(data) for data in events.data],
        [*entities],
        [*entities.values()],
        events.without_entity,
        move.at,
        move.id,
        move.token,
        behind,
        len(events.ids),
        past,
    )
    if row is None:
        raise NotFoundError(f"monitor {name!r} no longer exists: start it with `tidemill monitor run`")
    if events.origins:
        columns = (list(each) for each in zip(*events.origins, strict=True))
        await connection.execute(database.sql(NOTE_ORIGINS), name, *columns)
    return Stored(row["stored"], row["behind"], row["ignored"])


async def read_traces(
    database: Database, connection: Executor, name: str, events: Sequence[tuple[str, float]]
) -> list[str]:
    """The traces that some events of a monitor came with, given by id and time: the newest first, each once."""
    ids, times = [id for id, _ in events], [at for _, at in events]
    rows = await connection.fetch(database.sql(READ_TRACES), name, ids, times)
    return list(dict.fromkeys(row["trace"] for row in rows))


async def read_event_origins(
    database: Database, name: str, events: Sequence[tuple[str, float]]
) -> list[tuple[str, str | None]]:
    """Some events of a monitor, given by id and time, and the work that published each: the newest first."""
    ids, times = [id for id, _ in events], [at for _, at in events]
    return [(row["source_id"], row["origin"]) for row in await database.fetch(READ_ORIGINS, name, ids, times)]


async def start_monitor(database: Database, name: str, now: float) -> float:
    """When a monitor was first followed: now, unless it is known."""
    row = await database.fetchrow(START_MONITOR, name, now)
    return now if row is None else row["started_at"]


async def read_lateness(database: Database, name: str) -> list[tuple[float, float]]:
    """When each of the last minutes ended, and how late its events were."""
    row = await database.fetchrow(READ_LATENESS, name)
    found = None if row is None else row["lateness_by_minute"]
    return [] if found is None else decode(found, list[tuple[float, float]])


async def keep_lateness(database: Database, name: str, usual: float, by_minute: Sequence[tuple[float, float]]) -> None:
    await database.fetch(KEEP_LATENESS, name, usual, encode(by_minute))


async def seal_tick(
    database: Database, name: str, at: float, *, read_until: float | None = None, parts: int = 0
) -> tuple[int, float, float | None] | None:
    """Complete the current tick; None if nothing has happened and nothing is due.

    `read_until` is the time up to which the source has been read, unless that is now. A source in parts has a time for
    each: while one of its parts was never read, no tick is complete.
    """
    row = await database.fetchrow(SEAL_TICK, name, at, read_until, parts)
    return None if row is None else (row["number"], row["at"], row["clock"])


async def next_due(database: Database, name: str) -> float | None:
    """When the next timer of any entity is due."""
    row = await database.fetchrow(NEXT_DUE, name)
    return None if row is None else row["at"]


async def commit_entities(
    database: Database, connection: Executor, name: str, version: str, owner: int, moves: Sequence[EntityMove]
) -> None:
    """Write the progress of entities, or raise `LeaseLostError` if the owner has lost any of them."""
    shards = sorted({move.shard for move in moves})
    if await connection.fetchval(database.sql(HOLD_SHARDS), name, owner, shards) != len(shards):
        raise LeaseLostError(f"monitor {name}: another process has taken over some of its entities")
    columns: list[list[Any]] = [
        [getattr(move, field) for move in moves]
        for field in (
            "entity", "was", "folded", "at", "id", "last_at", "count", "was_due", "due_at", "state", "marks", "problem",
        )
    ]  # fmt: skip
    columns[9], columns[10] = database.seal_each(columns[9]), database.seal_each(columns[10])
    columns[11] = [database.seal_text(problem) for problem in columns[11]]
    done = await connection.execute(database.sql(COMMIT_ENTITIES), name, version, *columns)
    if int(done.rpartition(" ")[2]) != len(moves):
        raise LeaseLostError(f"monitor {name}: another process has changed some of its entities")
    dropped = [(move.entity, move.drop_from) for move in moves if move.drop_from is not None]
    if dropped:
        await connection.execute(database.sql(DROP_CHECKPOINTS), name, *map(list, zip(*dropped, strict=True)))
    kept = [(move.entity, *checkpoint) for move in moves for checkpoint in move.checkpoints]
    if kept:
        *rest, states = map(list, zip(*kept, strict=True))
        await connection.execute(database.sql(KEEP_CHECKPOINTS), name, version, *rest, database.seal_each(states))


async def write_status(database: Database, name: str, status: Mapping[str, Any]) -> None:
    """Write the status of a monitor; what its source answers may quote a payload."""
    await database.fetch(WRITE_STATUS, name, encode({**status, "error": database.seal_text(status["error"])}))
