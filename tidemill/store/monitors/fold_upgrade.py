"""States of the next version of a fold, stored separately until they are complete, then swapped in at once."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from tidemill.store.database import Database

#: Entities whose state of the next version is missing.
NOT_REBUILT = """
SELECT e.entity, e.folded FROM tidemill.monitor_entity AS e
WHERE e.monitor = $1 AND NOT EXISTS (
    SELECT FROM tidemill.monitor_rebuild AS r WHERE r.monitor = $1 AND r.entity = e.entity AND r.version = $2)
ORDER BY e.entity LIMIT $3
"""
#: Stores states of the next version.
KEEP_REBUILT = """
INSERT INTO tidemill.monitor_rebuild (monitor, version, entity, folded, at, id, count, state)
SELECT $1, $2, * FROM unnest($3::text[], $4::bigint[], $5::float8[], $6::text[], $7::bigint[], $8::json[])
ON CONFLICT DO NOTHING
"""

#: Replaces the old states. One that the old version has taken further meanwhile is made again from the log when it is
#: evaluated, as after a reset: what has happened until then has been reported.
PUT_IN_PLACE = """
UPDATE tidemill.monitor_entity AS e
SET version = $2, problem = NULL, due_at = $3, state = CASE WHEN r.folded = e.folded THEN r.state END,
    at = CASE WHEN r.folded = e.folded THEN r.at ELSE e.at END,
    id = CASE WHEN r.folded = e.folded THEN r.id ELSE e.id END,
    count = CASE WHEN r.folded = e.folded THEN r.count ELSE e.count END
FROM tidemill.monitor_rebuild AS r
WHERE r.monitor = $1 AND r.version = $2 AND e.monitor = $1 AND e.entity = r.entity
"""


class Rebuilt(msgspec.Struct, frozen=True):
    """The state of an entity in the next version."""

    entity: str
    folded: int
    at: float | None
    id: str | None
    count: int
    state: bytes | None


async def not_rebuilt(database: Database, monitor: str, version: str, limit: int) -> list[asyncpg.Record]:
    return await database.fetch(NOT_REBUILT, monitor, version, limit)


async def keep_rebuilt(database: Database, monitor: str, version: str, states: Sequence[Rebuilt]) -> None:
    columns = [[getattr(state, field) for state in states] for field in Rebuilt.__struct_fields__]
    columns[-1] = database.seal_each(columns[-1])
    await database.fetch(KEEP_REBUILT, monitor, version, *columns)


async def take_over(database: Database, monitor: str, version: str) -> bool:
    """Make a version the current one, if its states are complete."""
    async with database.transaction() as connection:
        tick_at = await connection.fetchval(
            database.sql("SELECT tick_at FROM tidemill.monitor WHERE name = $1 FOR UPDATE"), monitor
        )
        if await connection.fetch(database.sql(NOT_REBUILT), monitor, version, 1):
            return False
        # Wait for writers of states of the previous version.
        await connection.fetch(
            database.sql("SELECT FROM tidemill.monitor_shard WHERE monitor = $1 FOR UPDATE"), monitor
        )
        await connection.execute(database.sql(PUT_IN_PLACE), monitor, version, tick_at)
        await connection.execute(
            database.sql("UPDATE tidemill.monitor SET version = $2, resets = resets + 1 WHERE name = $1"),
            monitor,
            version,
        )
        await connection.execute(
            database.sql("UPDATE tidemill.monitor_shard SET owner = NULL WHERE monitor = $1"), monitor
        )
        await connection.execute(database.sql("DELETE FROM tidemill.monitor_rebuild WHERE monitor = $1"), monitor)
        await connection.execute(database.sql("DELETE FROM tidemill.monitor_checkpoint WHERE monitor = $1"), monitor)
        await connection.execute(database.sql("SELECT pg_notify('tidemill_monitors', $1)"), monitor)
    return True
