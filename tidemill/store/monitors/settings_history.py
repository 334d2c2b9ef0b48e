"""What people set for a monitor: labels of an entity, triggers switched off; each counts from the next tick on.

A wish locks the monitor's row, as the completion of a tick does. So it is clear for every wish which ticks know of it,
and a replay of the ticks knows the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.core.codec import encode
from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database, Executor

#: The monitor as it is until the wish is written: no tick is completed meanwhile.
HOLD_MONITOR = "SELECT tick, off FROM tidemill.monitor WHERE name = $1 FOR UPDATE"
WRITE_WISH = "INSERT INTO tidemill.monitor_setting (monitor, tick, entity, before, after) VALUES ($1, $2, $3, $4, $5)"

#: Wishes that count after a tick: for the whole monitor, and for these entities or all.
READ_WISHES = """
SELECT tick, entity, before, after, extract(epoch FROM at)::float8 AS at FROM tidemill.monitor_setting
WHERE monitor = $1 AND tick > $2 AND (entity IS NULL OR $3::text[] IS NULL OR entity = ANY ($3)) ORDER BY id
"""

#: Wishes older than all ticks that are kept.
FORGET_WISHES = """
DELETE FROM tidemill.monitor_setting AS w USING tidemill.monitor AS m
WHERE m.name = w.monitor AND w.tick < (SELECT min(number) FROM tidemill.monitor_tick AS t WHERE t.monitor = m.name)
"""


async def hold_monitor(database: Database, connection: Executor, monitor: str) -> asyncpg.Record:
    """Keep ticks from being completed until the transaction ends; returns the last one that is, and what is off."""
    rows = await connection.fetch(database.sql(HOLD_MONITOR), monitor)
    if not rows:
        raise NotFoundError(f"there is no monitor {monitor!r}: it is made known by `tidemill monitor run app.py`")
    return rows[0]


async def write_wish(
    database: Database, connection: Executor, monitor: str, tick: int, entity: str | None, before: object, after: object
) -> None:
    """Remember what was set, after `hold_monitor`: it counts from the tick after this one on."""
    await connection.execute(database.sql(WRITE_WISH), monitor, tick + 1, entity, encode(before), encode(after))


async def read_wishes(
    database: Database, monitor: str, after: int, entities: Sequence[str] | None = None
) -> list[asyncpg.Record]:
    """What was set after a tick, in order."""
    return await database.fetch(READ_WISHES, monitor, after, None if entities is None else list(entities))
