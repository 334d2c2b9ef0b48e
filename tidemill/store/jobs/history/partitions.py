"""Daily partitions of the history: created ahead of time, dropped when they are old enough."""

from __future__ import annotations

from datetime import date

from tidemill.store.database import Database
from tidemill.store.maintenance import partitions

#: The table of finished jobs, and the column that it is partitioned by.
HISTORY = ("job_history", "finished_at")

#: Deletes keys whose window has ended, and concurrency keys that no unfinished job uses.
FORGET_WINDOWS = "DELETE FROM tidemill.unique_window WHERE until < now() - interval '1 minute'"
FORGET_KEYS = """
DELETE FROM tidemill.concurrency_key AS c WHERE key = ANY (ARRAY(
    SELECT key FROM tidemill.concurrency_key AS u
    WHERE NOT EXISTS (SELECT FROM tidemill.job WHERE concurrency_key = u.key) LIMIT 1000 FOR UPDATE SKIP LOCKED))
  AND NOT EXISTS (SELECT FROM tidemill.job WHERE concurrency_key = c.key)
"""
#: Deletes rate keys whose bucket has been empty for long.
FORGET_RATE_KEYS = "DELETE FROM tidemill.rate_key WHERE empty_at < now() - interval '1 hour'"
#: Deletes workers that ended long ago.
FORGET_WORKERS = """
DELETE FROM tidemill.worker WHERE ended_at < now() - make_interval(secs => $1)
  AND NOT EXISTS (SELECT FROM tidemill.job WHERE worker_id = worker.id)
  AND NOT EXISTS (SELECT FROM tidemill.run WHERE owner = worker.id) -- runs are freed by their ended owner
"""


async def make_partitions(database: Database, today: date, *, days_ahead: int = 3) -> list[str]:
    """Create the history's partitions for today and the days ahead; returns the new ones."""
    return await partitions.make_daily(database, *HISTORY, today, days_ahead=days_ahead)


async def drop_partitions(database: Database, today: date, *, keep_days: int) -> list[str]:
    """Drop the days older than `keep_days`; unfinished jobs are in another table and are not touched."""
    return await partitions.drop_daily(database, *HISTORY, today, keep_days=keep_days)


async def list_partitions(database: Database) -> list[str]:
    return await partitions.list_partitions(database, HISTORY[0])


async def forget_leftovers(database: Database, *, ended_workers_after: float = 86_400.0) -> None:
    """Delete rows that are no longer used: ended windows, unused keys, workers that ended long ago."""
    await database.fetch(FORGET_WINDOWS)
    await database.fetch(FORGET_KEYS)
    await database.fetch(FORGET_RATE_KEYS)
    await database.fetch(FORGET_WORKERS, ended_workers_after)


async def analyze_history(database: Database) -> None:
    """Update the planner's statistics: PostgreSQL never analyses a partitioned parent by itself."""
    await database.run(lambda connection: connection.execute(database.sql("ANALYZE tidemill.job_history")))
