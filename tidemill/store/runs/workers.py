"""Read access to run workers."""

from __future__ import annotations

from tidemill.store.database import Database

#: The number of living run workers that can drive runs of a kind.
COUNT_RUN_WORKERS = """
SELECT count(*) FROM tidemill.worker WHERE ended_at IS NULL AND lease_until > now() AND $1 = ANY (tasks)
"""


#: The runs that hold the slots of a limited kind.
SLOT_HOLDERS = """
SELECT s.run_id FROM tidemill.run_slot AS s JOIN tidemill.run AS r ON r.id = s.run_id
WHERE s.kind = $1 AND r.state = 'running' AND (r.seq > 0 OR r.owner IS NOT NULL) ORDER BY s.run_id
"""


async def slot_holders(database: Database, kind: str) -> list[int]:
    """The runs of a kind that have begun and not ended, if its number of concurrent runs is limited; else none."""
    return [row[0] for row in await database.fetch(SLOT_HOLDERS, kind)]


async def count_run_workers(database: Database, kind: str) -> int:
    """How many living processes can drive runs of this kind."""
    return (await database.fetch(COUNT_RUN_WORKERS, kind))[0][0]
