"""The parts of a monitor's source: how far each has been read. Written with the events, by the owner of the share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.core.errors import LeaseLostError
from tidemill.store.database import Database, Executor
from tidemill.store.monitors.monitors import HOLD_SHARDS, SHARDS

#: The positions of these parts.
READ_PARTS = "SELECT part, position FROM tidemill.monitor_source_position WHERE monitor = $1 AND part = ANY ($2)"

#: Moves the positions of parts, and the time up to which they have been read, which never decreases.
MOVE_PARTS = """
INSERT INTO tidemill.monitor_source_position AS p (monitor, part, position, heard_at)
SELECT $1, * FROM unnest($2::int[], $3::bigint[], $4::float8[])
ON CONFLICT (monitor, part) DO UPDATE
SET position = excluded.position, heard_at = greatest(p.heard_at, excluded.heard_at)
"""


def share_of_part(part: int) -> int:
    """The share whose owner reads a part."""
    return part % SHARDS


async def read_parts(database: Database, monitor: str, parts: Sequence[int]) -> dict[int, int]:
    """The positions of those parts that have been read before."""
    return {row["part"]: row["position"] for row in await database.fetch(READ_PARTS, monitor, list(parts))}


async def move_parts(
    database: Database,
    connection: Executor,
    monitor: str,
    owner: int,
    positions: Mapping[int, int],
    read_until: Mapping[int, float],
) -> None:
    """Move the positions of parts, or raise `LeaseLostError` if the owner has lost one of them."""
    parts = sorted(positions)
    shares = sorted({share_of_part(part) for part in parts})
    if await connection.fetchval(database.sql(HOLD_SHARDS), monitor, owner, shares) != len(shares):
        raise LeaseLostError(f"monitor {monitor}: another process has taken over parts of its source")
    await connection.execute(
        database.sql(MOVE_PARTS),
        monitor,
        parts,
        [positions[part] for part in parts],
        [read_until.get(part) for part in parts],
    )
