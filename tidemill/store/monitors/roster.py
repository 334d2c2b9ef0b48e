"""The entities that a monitor follows, how far the past of each has been read, and what operators set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tidemill.core.codec import decode, encode
from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database, Executor
from tidemill.store.large_values import cut, place_of
from tidemill.store.monitors.alerts import RESOLVE_TRIGGER
from tidemill.store.monitors.monitors import read_monitor
from tidemill.store.monitors.settings_history import hold_monitor, write_setting
from tidemill.store.transaction import Transaction

_NOT_FOLLOWED = (
    "monitor {} does not follow {!r}: no event of it has arrived, and it was not added by `tidemill monitor roster add`"
)
_NEWS = "SELECT pg_notify('tidemill_monitors', $1)"

#: Adds entities, starts the backfill of new ones, and makes them due: from now on their events are expected.
ADD_TO_ROSTER = """
INSERT INTO tidemill.monitor_entity AS e (monitor, entity, shard, backfill, due_at)
SELECT $1, n.entity, n.shard, $4::json, m.tick_at - 0.00001
FROM unnest($2::text[], $3::smallint[]) AS n(entity, shard) JOIN tidemill.monitor AS m ON m.name = $1
ON CONFLICT (monitor, entity) DO UPDATE
SET active = true, backfill = excluded.backfill, added_at = now(), due_at = excluded.due_at
    WHERE NOT e.active
RETURNING entity, coalesce(labels, '{}') AS labels
"""

#: Stops following entities; their data stays.
REMOVE_FROM_ROSTER = """
UPDATE tidemill.monitor_entity SET active = false, backfill = NULL, due_at = NULL
WHERE monitor = $1 AND entity = ANY ($2) AND active RETURNING entity
"""
#: The entities of a monitor.
LIST_ROSTER = """
SELECT entity, active, added_at, last_at, count, folded, head > folded AS behind, due_at, labels, problem, backfill
FROM tidemill.monitor_entity WHERE monitor = $1 AND ($2 OR active) AND ($3::text IS NULL OR entity > $3)
  AND (NOT $5 OR backfill IS NOT NULL)
ORDER BY entity LIMIT $4
"""

#: Starts the backfill of entities again, from a time on.
START_BACKFILL = """
UPDATE tidemill.monitor_entity SET backfill = $3::json
WHERE monitor = $1 AND active AND ($2::text[] IS NULL OR entity = ANY ($2)) RETURNING entity
"""
#: Unfinished backfills, and their progress.
NEXT_BACKFILLS = """
SELECT entity, backfill FROM tidemill.monitor_entity
WHERE monitor = $1 AND backfill IS NOT NULL AND active ORDER BY added_at, entity LIMIT $2
"""
MOVE_BACKFILL = """
UPDATE tidemill.monitor_entity SET backfill = $3::json WHERE monitor = $1 AND entity = $2 AND backfill IS NOT NULL
"""

#: Deletes the states, which are rebuilt from the log; alerts that were reported before are not reported again.
RESET_STATES = """
UPDATE tidemill.monitor_entity SET state = NULL, problem = NULL,
    due_at = (SELECT tick_at FROM tidemill.monitor WHERE name = $1)
WHERE monitor = $1 AND active AND ($2::text[] IS NULL OR entity = ANY ($2)) RETURNING entity
"""
RESET_MONITOR = "UPDATE tidemill.monitor SET resets = resets + 1 WHERE name = $1"
FORGET_CHECKPOINTS = """
DELETE FROM tidemill.monitor_checkpoint WHERE monitor = $1 AND ($2::text[] IS NULL OR entity = ANY ($2))
"""
FORGET_PROBLEMS = """
DELETE FROM tidemill.monitor_problem WHERE monitor = $1 AND ($2::text[] IS NULL OR entity = ANY ($2))
"""

#: Due at once and earlier than before, so that a running evaluation notices that another is requested.
_SOONER = "least(coalesce(e.due_at, m.tick_at), m.tick_at) - 0.00001"

#: Pauses a monitor, and switches triggers.
SET_PAUSED = "UPDATE tidemill.monitor SET paused = $2 WHERE name = $1"
SWITCH_OFF = "UPDATE tidemill.monitor SET off = array_append(array_remove(off, $2), $2) WHERE name = $1"
SWITCH_ON = "UPDATE tidemill.monitor SET off = array_remove(off, $2) WHERE name = $1"
#: Makes all entities due for evaluation.
EVALUATE_ALL = f"""
UPDATE tidemill.monitor_entity AS e SET due_at = {_SOONER} FROM tidemill.monitor AS m
WHERE m.name = $1 AND e.monitor = $1 AND e.active
"""

#: Sets labels of an entity and makes it due for evaluation.
LABEL_ENTITY = f"""
UPDATE tidemill.monitor_entity AS e
SET labels = (coalesce(e.labels, '{{}}')::jsonb || $3::text::jsonb)::json, due_at = {_SOONER} FROM tidemill.monitor AS m
WHERE m.name = $1 AND e.monitor = $1 AND e.entity = $2 RETURNING e.labels
"""
READ_LABELS = "SELECT coalesce(labels, '{}') AS labels FROM tidemill.monitor_entity WHERE monitor = $1 AND entity = $2"

#: One entity, and the states of many.
SHOW_ENTITY = """
SELECT entity, active, added_at, last_at, at, id, count, head, folded, due_at, version, state, marks, labels, problem,
       backfill,
       (SELECT t.at FROM tidemill.monitor_tick AS t WHERE t.monitor = $1 AND t.number = e.folded) AS checked_at
FROM tidemill.monitor_entity AS e WHERE monitor = $1 AND entity = $2
"""
SHOW_STATES = """
SELECT entity, last_at, count, folded, state, labels FROM tidemill.monitor_entity
WHERE monitor = $1 AND active AND ($3::text[] IS NULL OR entity = ANY ($3)) AND ($4::text IS NULL OR entity > $4)
ORDER BY entity LIMIT $2
"""

#: The same as people are shown it, with large states cut.
DESCRIBE_STATES = SHOW_STATES.replace(
    " state,", f" {cut('state', place_of('entity/state', 'monitor', 'entity'))} AS state,"
)


async def add_to_roster(
    tx: Transaction, monitor: str, entities: Sequence[str], shards: Sequence[int], *, backfill: object
) -> list[str]:
    """Follow entities; returns those that were not followed before, whose past is read from now on."""
    held = await hold_monitor(tx, monitor)
    plan = None if backfill is None else encode(backfill)
    rows = await tx.fetch(ADD_TO_ROSTER, monitor, list(entities), list(shards), plan)
    for row in rows:
        await write_setting(tx, monitor, held["tick"], row["entity"], None, decode(row["labels"]))
    added = sorted(row["entity"] for row in rows)
    if added:
        await _record(tx, monitor, "roster.add", after={"entities": added})
    return added


async def remove_from_roster(tx: Transaction, monitor: str, entities: Sequence[str]) -> list[str]:
    """Stop following entities, and resolve their alerts; returns those that were followed."""
    await read_monitor(tx, monitor)
    rows = await tx.fetch(REMOVE_FROM_ROSTER, monitor, list(entities))
    gone = sorted(row["entity"] for row in rows)
    for entity in gone:
        await tx.fetch(RESOLVE_TRIGGER, monitor, None, "no longer followed", entity, tx.by)
    if gone:
        await _record(tx, monitor, "roster.remove", after={"entities": gone})
    return gone


async def list_roster(
    database: Database,
    monitor: str,
    *,
    inactive: bool = False,
    filling: bool = False,
    after: str | None = None,
    limit: int = 1000,
) -> list[asyncpg.Record]:
    """Entities of a monitor by name: `inactive` adds removed ones, `filling` are those whose past is being read."""
    await read_monitor(database, monitor)
    return await database.fetch(LIST_ROSTER, monitor, inactive, after, limit, filling)


async def start_backfill(tx: Transaction, monitor: str, entities: Sequence[str] | None, plan: object) -> list[str]:
    """Read the past of entities again, or of all of them."""
    await read_monitor(tx, monitor)
    wanted = None if entities is None else list(entities)
    rows = await tx.fetch(START_BACKFILL, monitor, wanted, encode(plan))
    found = sorted(row["entity"] for row in rows)
    if wanted is not None and (missing := set(wanted) - set(found)):
        raise NotFoundError(_NOT_FOLLOWED.format(monitor, min(missing)))
    await _record(tx, monitor, "backfill", after={"entities": wanted or "all"})
    return found


async def next_backfills(database: Database, monitor: str, limit: int) -> list[asyncpg.Record]:
    return await database.fetch(NEXT_BACKFILLS, monitor, limit)


async def move_backfill(
    database: Database, connection: Executor, monitor: str, entity: str, plan: object | None
) -> None:
    """Store how far the past of an entity has been read; None when all of it has."""
    await connection.execute(database.sql(MOVE_BACKFILL), monitor, entity, None if plan is None else encode(plan))


async def reset_monitor(tx: Transaction, monitor: str, entities: Sequence[str] | None) -> list[str]:
    """Build states again from the log: of these entities, or of all."""
    await read_monitor(tx, monitor)
    wanted = None if entities is None else list(entities)
    await tx.execute(RESET_MONITOR, monitor)
    rows = await tx.fetch(RESET_STATES, monitor, wanted)
    await tx.execute(FORGET_CHECKPOINTS, monitor, wanted)
    await tx.execute(FORGET_PROBLEMS, monitor, wanted)
    await _record(tx, monitor, "reset", after={"entities": wanted or "all"})
    return sorted(row["entity"] for row in rows)


async def set_paused(tx: Transaction, monitor: str, paused: bool) -> None:
    before = await read_monitor(tx, monitor)
    await tx.execute(SET_PAUSED, monitor, paused)
    await _record(tx, monitor, "pause" if paused else "resume", before=before["paused"], after=paused)


async def switch_trigger(tx: Transaction, monitor: str, trigger: str, on: bool, *, said: str = "") -> None:
    """Switch a trigger off, which resolves its open alerts, or on again, which evaluates all entities again.

    `said` is the name by which a person introduces themselves; it stands in the audit entry beside the caller.
    """
    held = await hold_monitor(tx, monitor)
    others = [name for name in held["off"] if name != trigger]
    await write_setting(tx, monitor, held["tick"], None, held["off"], others if on else [*others, trigger])
    await tx.execute(SWITCH_ON if on else SWITCH_OFF, monitor, trigger)
    if on:
        await tx.execute(EVALUATE_ALL, monitor)
    else:
        await tx.fetch(RESOLVE_TRIGGER, monitor, trigger, "its trigger was switched off", None, tx.by)
    before = {"trigger": trigger, "on": trigger not in held["off"]}
    after = {"trigger": trigger, "on": on, **({"said": said} if said else {})}
    await _record(tx, monitor, f"trigger.{'on' if on else 'off'}", before=before, after=after)


async def label_entity(
    tx: Transaction,
    monitor: str,
    entity: str,
    labels: dict[str, Any],
    *,
    expecting: tuple[str, Any] | None = None,
    said: str = "",
) -> bool:
    """Set labels of an entity, such as present=false; with `expecting`, only if that label has that value before.

    Returns whether they were set. A missing label is None. `said` is as in `switch_trigger`.
    """
    held = await hold_monitor(tx, monitor)
    found: Any = await tx.fetchval(READ_LABELS, monitor, entity)
    if found is None:
        raise NotFoundError(_NOT_FOLLOWED.format(monitor, entity))
    before: dict[str, Any] = decode(found)
    if expecting is not None and before.get(expecting[0]) != expecting[1]:
        return False
    after: Any = await tx.fetchval(LABEL_ENTITY, monitor, entity, encode(labels).decode())
    await write_setting(tx, monitor, held["tick"], entity, before, decode(after))
    held_labels = {"entity": entity, **{name: before.get(name) for name in labels}}
    wanted = {"entity": entity, **labels, **({"said": said} if said else {})}
    await _record(tx, monitor, "label", before=held_labels, after=wanted)
    return True


async def show_entity(database: Database, monitor: str, entity: str) -> asyncpg.Record:
    row = await database.fetchrow(SHOW_ENTITY, monitor, entity)
    if row is None:
        raise NotFoundError(_NOT_FOLLOWED.format(monitor, entity))
    return row


async def show_states(database: Database, monitor: str, *, entities: Sequence[str], limit: int) -> list[asyncpg.Record]:
    """These entities of a monitor with their states, by name."""
    return await database.fetch(SHOW_STATES, monitor, limit, list(entities), None)


async def describe_states(database: Database, monitor: str, *, after: str | None, limit: int) -> list[asyncpg.Record]:
    """The same as people are shown it: the beginning of states that are too large for an answer."""
    return await database.fetch(DESCRIBE_STATES, monitor, limit, None, after)


async def _record(tx: Transaction, monitor: str, action: str, *, before: Any = None, after: Any) -> None:
    """Write the audit entry, and notify the processes that follow the monitor."""
    await tx.audit(f"monitor.{action}", monitor, before=before, after=after)
    await tx.execute(_NEWS, monitor)
