"""What lists of states need besides the states: running builds, the current code, and whether a driver runs."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database, Executor

#: Queued and running build jobs of these tasks.
LIST_BUILD_JOBS = """
SELECT task, unique_key, id, state, queue, started_at, note FROM tidemill.job
WHERE task = ANY ($1::text[]) AND unique_key IS NOT NULL
"""

#: Takes their unique keys from running build jobs, so that a further job for the same state can be stored.
FREE_KEYS = """
WITH held AS (
    SELECT id, unique_key FROM tidemill.job
    WHERE task = $1 AND unique_key = ANY ($2::text[]) AND state = 'running' ORDER BY unique_key FOR UPDATE)
UPDATE tidemill.job AS j SET unique_key = NULL FROM held WHERE j.id = held.id
RETURNING held.unique_key, j.args::text AS args
"""

#: The code of each stage that the pipeline's driver runs.
LIST_NEWEST_CODES = """
SELECT DISTINCT ON (stage) stage, code FROM tidemill.state_code WHERE pipeline = $1 ORDER BY stage, seen_at DESC
"""

#: Whether a process holds the lead of a pipeline, as taken by `TAKE_LEAD`.
IS_KEPT = """
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, 7)) AS kept
"""


#: The queues that living workers serve.
SERVED_QUEUES = """
SELECT DISTINCT queue FROM tidemill.worker, unnest(queues) AS queue WHERE ended_at IS NULL AND lease_until > now()
"""


async def served_queues(database: Database) -> set[str]:
    """The queues that living workers serve."""
    return {row["queue"] for row in await database.fetch(SERVED_QUEUES)}


async def list_build_jobs(database: Database, tasks: Sequence[str]) -> list[asyncpg.Record]:
    """The unfinished jobs that build states."""
    return await database.fetch(LIST_BUILD_JOBS, list(tasks))


async def free_keys(database: Database, connection: Executor, task: str, keys: Sequence[str]) -> dict[str, bytes]:
    """Take these unique keys from the jobs that are running; returns the arguments of those jobs by their keys."""
    rows = await connection.fetch(database.sql(FREE_KEYS), task, list(keys))
    return {row["unique_key"]: row["args"].encode() for row in rows}


async def newest_codes(database: Database, pipeline: str) -> dict[str, str]:
    """The code of each stage that the pipeline's driver runs."""
    return {row["stage"]: row["code"] for row in await database.fetch(LIST_NEWEST_CODES, pipeline)}


async def is_kept(database: Database, pipeline: str) -> bool:
    """Whether a process drives this pipeline."""
    row = await database.fetchrow(IS_KEPT, f"{database.schema}:{pipeline}")
    return row is not None and row["kept"]
