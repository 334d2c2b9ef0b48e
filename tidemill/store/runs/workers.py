"""Read access to run workers."""

from __future__ import annotations

from tidemill.store.database import Database

#: The number of living run workers that can drive runs of a kind.
COUNT_RUN_WORKERS = """
SELECT count(*) FROM tidemill.worker WHERE ended_at IS NULL AND lease_until > now() AND $1 = ANY (tasks)
"""


async def count_run_workers(database: Database, kind: str) -> int:
    """How many living processes can drive runs of this kind."""
    return (await database.fetch(COUNT_RUN_WORKERS, kind))[0][0]
