"""Looking at runs: who is there to drive them. Changes nothing."""

from __future__ import annotations

from tidemill.store.database import Database

#: How many living keepers can drive runs of a kind.
COUNT_KEEPERS = """
SELECT count(*) FROM tidemill.worker WHERE ended_at IS NULL AND lease_until > now() AND $1 = ANY (tasks)
"""


async def count_keepers(database: Database, kind: str) -> int:
    """How many living processes could drive runs of this kind."""
    return (await database.fetch(COUNT_KEEPERS, kind))[0][0]
