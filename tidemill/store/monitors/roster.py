"""The entities of a monitor, the progress of their backfills, and operators' requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from tidemill.core.codec import decode, encode
from tidemill.core.errors import NotFoundError
from tidemill.store.audit import write_audit
from tidemill.store.database import Database, Executor
from tidemill.store.monitors.alerts import RESOLVE_TRIGGER
from tidemill.store.monitors.monitors import read_monitor
from tidemill.store.monitors.settings_history import hold_monitor, write_setting

_NEWS = "SELECT pg_notify('tidemill_monitors', $1)"

#: Adds entities, and starts the backfill of new ones.
ADD_TO_ROSTER = """
INSERT INTO tidemill.monitor_entity AS e (monitor, entity, shard, backfill)
SELECT $1, n.entity, n.shard, $4::json FROM unnest($2::text[], $3::smallint[]) AS n(entity, shard)
ON CONFLICT (monitor, entity) DO UPDATE SET active = true, backfill = excluded.backfill, added_at = now()
    WHERE NOT e.active
RETURNING entity
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
SELECT entity, active, added_at, last_at, at, id, count, head, folded, due_at, version, state, labels, problem, backfill
FROM tidemill.monitor_entity WHERE monitor = $1 AND entity = $2
"""
SHOW_STATES = """
SELECT entity, last_at, count, folded, state, labels FROM tidemill.monitor_entity
WHERE monitor = $1 AND active AND ($3::text[] IS NULL OR entity = ANY ($3)) AND ($4::text IS NULL OR entity > $4)
ORDER BY entity LIMIT $2
"""


async def add_to_roster(
    database: Database, monitor: str, entities: Sequence[str], shards: Sequence[int], *, backfill: object, by: str
) -> list[str]:
    """Follow entities; returns those that are new, whose backfill starts now."""
    async with database.transaction(patience=30.0) as connection:
        await read_monitor(database, monitor)
        plan = None if backfill is None else encode(backfill)
        rows = await connection.fetch(database.sql(ADD_TO_ROSTER), monitor, list(entities), list(shards), plan)
        added = sorted(row["entity"] for row in rows)
        if added:
            await _tell(database, connection, monitor, "roster.add", by, after={"entities": added})
    return added


async def remove_from_roster(database: Database, monitor: str, entities: Sequence[str], *, by: str) -> list[str]:
    """Stop following entities and resolve their alerts; returns those that were followed."""
    async with database.transaction(patience=30.0) as connection:
        await read_monitor(database, monitor)
        rows = await connection.fetch(database.sql(REMOVE_FROM_ROSTER), monitor, list(entities))
        gone = sorted(row["entity"] for row in rows)
        for entity in gone:
            await connection.fetch(database.sql(RESOLVE_TRIGGER), monitor, None, "no longer followed", entity, by)
        if gone:
            await _tell(database, connection, monitor, "roster.remove", by, after={"entities": gone})
    return gone


async def list_roster(
    database: Database, monitor: str, *, everybody: bool = False, after: str | None = None, limit: int = 1000
) -> list[asyncpg.Record]:
    await read_monitor(database, monitor)
    return await database.fetch(LIST_ROSTER, monitor, everybody, after, limit)


async def start_backfill(
    database: Database, monitor: str, entities: Sequence[str] | None, plan: object, *, by: str
) -> list[str]:
    """Start the backfill of entities again, or of all."""
    async with database.transaction(patience=30.0) as connection:
        await read_monitor(database, monitor)
        wanted = None if entities is None else list(entities)
        rows = await connection.fetch(database.sql(START_BACKFILL), monitor, wanted, encode(plan))
        found = sorted(row["entity"] for row in rows)
        if wanted is not None and (missing := set(wanted) - set(found)):
            raise NotFoundError(f"monitor {monitor} does not follow {min(missing)!r}: add it with `roster add`")
        await _tell(database, connection, monitor, "backfill", by, after={"entities": wanted or "all"})
    return found


async def next_backfills(database: Database, monitor: str, limit: int) -> list[asyncpg.Record]:
    return await database.fetch(NEXT_BACKFILLS, monitor, limit)


async def move_backfill(
    database: Database, connection: Executor, monitor: str, entity: str, plan: object | None
) -> None:
    """Store how far the backfill of an entity has come; None when it is complete."""
    await connection.execute(database.sql(MOVE_BACKFILL), monitor, entity, None if plan is None else encode(plan))


async def reset_monitor(database: Database, monitor: str, entities: Sequence[str] | None, *, by: str) -> list[str]:
    """Rebuild states from the log: of these entities, or of all."""
    async with database.transaction(patience=30.0) as connection:
        await read_monitor(database, monitor)
        wanted = None if entities is None else list(entities)
        await connection.execute(database.sql(RESET_MONITOR), monitor)
        rows = await connection.fetch(database.sql(RESET_STATES), monitor, wanted)
        await connection.execute(database.sql(FORGET_CHECKPOINTS), monitor, wanted)
        await connection.execute(database.sql(FORGET_PROBLEMS), monitor, wanted)
        await _tell(database, connection, monitor, "reset", by, after={"entities": wanted or "all"})
    return sorted(row["entity"] for row in rows)


async def set_paused(database: Database, monitor: str, paused: bool, *, by: str) -> None:
    async with database.transaction(patience=30.0) as connection:
        before = await read_monitor(database, monitor)
        await connection.execute(database.sql(SET_PAUSED), monitor, paused)
        action = "pause" if paused else "resume"
        await _tell(database, connection, monitor, action, by, before=before["paused"], after=paused)


async def switch_trigger(database: Database, monitor: str, trigger: str, on: bool, *, by: str, said: str = "") -> None:
    """Switch a trigger off, which resolves its open alerts, or on, which evaluates all entities again.

    `said` is a display name; the audit entry names `by` and includes it.
    """
    async with database.transaction(patience=30.0) as connection:
        held = await hold_monitor(database, connection, monitor)
        others = [name for name in held["off"] if name != trigger]
        await write_setting(
            database, connection, monitor, held["tick"], None, held["off"], others if on else [*others, trigger]
        )
        await connection.execute(database.sql(SWITCH_ON if on else SWITCH_OFF), monitor, trigger)
        if on:
            await connection.execute(database.sql(EVALUATE_ALL), monitor)
        else:
            await connection.fetch(
                database.sql(RESOLVE_TRIGGER), monitor, trigger, "its trigger was switched off", None, by
            )
        before = {"trigger": trigger, "on": trigger not in held["off"]}
        after = {"trigger": trigger, "on": on, **({"said": said} if said else {})}
        action = f"trigger.{'on' if on else 'off'}"
        await _tell(database, connection, monitor, action, by, before=before, after=after)


async def label_entity(
    database: Database,
    monitor: str,
    entity: str,
    labels: dict[str, Any],
    *,
    by: str,
    expecting: tuple[str, Any] | None = None,
    said: str = "",
) -> bool:
    """Set labels of an entity, such as present=false; with `expecting`, only if that label has that value before.

    Returns whether they were set. A missing label is None. `said` is as in `switch_trigger`.
    """
    async with database.transaction(patience=30.0) as connection:
        held = await hold_monitor(database, connection, monitor)
        found: Any = await connection.fetchval(database.sql(READ_LABELS), monitor, entity)
        if found is None:
            raise NotFoundError(f"monitor {monitor} does not follow {entity!r}: add it with `roster add`")
        before: dict[str, Any] = decode(found)
        if expecting is not None and before.get(expecting[0]) != expecting[1]:
            return False
        after: Any = await connection.fetchval(database.sql(LABEL_ENTITY), monitor, entity, encode(labels).decode())
        await write_setting(database, connection, monitor, held["tick"], entity, before, decode(after))
        held_labels = {"entity": entity, **{name: before.get(name) for name in labels}}
        wanted = {"entity": entity, **labels, **({"said": said} if said else {})}
        await _tell(database, connection, monitor, "label", by, before=held_labels, after=wanted)
    return True


async def show_entity(database: Database, monitor: str, entity: str) -> asyncpg.Record:
    row = await database.fetchrow(SHOW_ENTITY, monitor, entity)
    if row is None:
        raise NotFoundError(f"monitor {monitor} does not follow {entity!r}: add it with `roster add`")
    return row


async def show_states(
    database: Database,
    monitor: str,
    *,
    entities: Sequence[str] | None = None,
    after: str | None = None,
    limit: int = 10_000,
) -> list[asyncpg.Record]:
    """The entities of a monitor, or those given, with their states, by name, starting after one."""
    return await database.fetch(SHOW_STATES, monitor, limit, None if entities is None else list(entities), after)


async def _tell(
    database: Database, connection: Executor, monitor: str, action: str, by: str, *, before: Any = None, after: Any
) -> None:
    await write_audit(
        database, connection, who=by, action=f"monitor.{action}", target=monitor, before=before, after=after
    )
    await connection.execute(database.sql(_NEWS), monitor)
