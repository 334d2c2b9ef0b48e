"""Looking at runs: those of one kind with what they wait for, and who is there to drive them. Changes nothing."""

from __future__ import annotations

import asyncpg

from tidemill.store.database import Database

#: Runs of one kind, newest first, with how many answers and unfinished jobs each waits for.
LIST_OF_KIND = """
SELECT r.id, r.workflow, r.kind, r.state, r.key, r.seq, r.owner, r.awake, r.note, r.created_at, r.ended_at,
       (SELECT count(*) FROM tidemill.run_input AS i WHERE i.run_id = r.id) AS asks,
       (SELECT count(*) FROM tidemill.job AS j WHERE j.run_id = r.id) AS jobs
FROM tidemill.run AS r
WHERE r.kind = $1 AND ($2::text IS NULL OR r.state = $2) AND ($3::text IS NULL OR r.workflow = $3)
  AND ($4::bigint IS NULL OR r.id < $4)
ORDER BY r.id DESC LIMIT $5
"""

#: How many living keepers can drive runs of a kind.
COUNT_KEEPERS = """
SELECT count(*) FROM tidemill.worker WHERE ended_at IS NULL AND lease_until > now() AND $1 = ANY (tasks)
"""


async def list_runs_of_kind(
    database: Database,
    kind: str,
    *,
    state: str | None = None,
    workflow: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[asyncpg.Record]:
    """Runs of one kind, newest first."""
    return await database.fetch(LIST_OF_KIND, kind, state, workflow, before, limit)


async def count_keepers(database: Database, kind: str) -> int:
    """How many living processes could drive runs of this kind."""
    return (await database.fetch(COUNT_KEEPERS, kind))[0][0]
