"""The settings of a monitor over time: labels of entities, triggers that are off. Each applies from the next tick on.

A change locks the monitor's row, as the completion of a tick does. So every change applies to the same ticks, live and
in a replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.core.codec import encode
from tidemill.store.database import Database
from tidemill.store.monitors.monitors import require_monitor
from tidemill.store.transaction import Transaction

#: Locks the monitor until a change is stored: no tick is completed meanwhile.
HOLD_MONITOR = "SELECT tick, off FROM tidemill.monitor WHERE name = $1 FOR UPDATE"
WRITE_SETTING = (
    "INSERT INTO tidemill.monitor_setting (monitor, tick, entity, before, after) VALUES ($1, $2, $3, $4, $5)"
)

#: The changes after a tick: for the whole monitor, and for these entities or all.
READ_SETTINGS_HISTORY = """
SELECT tick, entity, before, after, extract(epoch FROM at)::float8 AS at FROM tidemill.monitor_setting
WHERE monitor = $1 AND tick > $2 AND (entity IS NULL OR $3::text[] IS NULL OR entity = ANY ($3)) ORDER BY id
"""

#: Deletes changes that are older than all stored ticks.
DELETE_OLD_SETTINGS = """
DELETE FROM tidemill.monitor_setting AS w USING tidemill.monitor AS m
WHERE m.name = w.monitor AND w.tick < (SELECT min(number) FROM tidemill.monitor_tick AS t WHERE t.monitor = m.name)
"""


async def hold_monitor(tx: Transaction, monitor: str) -> asyncpg.Record:
    """Block the completion of ticks until the transaction ends; returns the last complete tick and the triggers off."""
    return require_monitor(await tx.fetchrow(HOLD_MONITOR, monitor), monitor)


async def write_setting(
    tx: Transaction, monitor: str, tick: int, entity: str | None, before: object, after: object
) -> None:
    """Store a change, after `hold_monitor`: it counts from the tick after this one."""
    await tx.execute(WRITE_SETTING, monitor, tick + 1, entity, encode(before), encode(after))


async def read_settings_history(
    database: Database, monitor: str, after: int, entities: Sequence[str] | None = None
) -> list[asyncpg.Record]:
    """The changes after a tick, in order."""
    return await database.fetch(READ_SETTINGS_HISTORY, monitor, after, None if entities is None else list(entities))
