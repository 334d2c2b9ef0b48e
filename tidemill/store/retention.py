"""History by the day: partitions made ahead of time, and dropped when they are old enough."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import asyncpg

from tidemill.store.database import Database

LOCK_PATIENCE_MS = 200

_PARTITION = re.compile(r"job_history_(\d{4})(\d{2})(\d{2})\Z")

LIST_PARTITIONS = """
SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'tidemill.job_history'::regclass ORDER BY 1
"""

#: What landed in the default partition because its day's partition was not there yet.
COUNT_DEFAULT = "SELECT count(*) AS n FROM tidemill.job_history_default WHERE finished_at >= $1 AND finished_at < $2"

#: Keys whose window has ended, and gates that no unfinished job uses.
FORGET_WINDOWS = "DELETE FROM tidemill.unique_window WHERE until < now() - interval '1 minute'"
FORGET_GATES = """
DELETE FROM tidemill.concurrency AS c WHERE key = ANY (ARRAY(
    SELECT key FROM tidemill.concurrency AS u
    WHERE NOT EXISTS (SELECT FROM tidemill.job WHERE concurrency_key = u.key) LIMIT 1000 FOR UPDATE SKIP LOCKED))
  AND NOT EXISTS (SELECT FROM tidemill.job WHERE concurrency_key = c.key)
"""
FORGET_WORKERS = """
DELETE FROM tidemill.worker WHERE ended_at < now() - make_interval(secs => $1)
  AND NOT EXISTS (SELECT FROM tidemill.job WHERE worker_id = worker.id)
  AND NOT EXISTS (SELECT FROM tidemill.run WHERE owner = worker.id) -- who frees them looks for an owner that has ended
"""


async def make_partitions(database: Database, today: date, *, days_ahead: int = 3) -> list[str]:
    """Make sure that there is a partition for today and the days to come; returns the new ones."""
    existing = set(await list_partitions(database))
    made = []
    for offset in range(days_ahead + 1):
        day = today + timedelta(days=offset)
        name = f"job_history_{day:%Y%m%d}"
        if name in existing:
            continue
        first, last = _midnight(day), _midnight(day + timedelta(days=1))
        statement = database.sql(
            f"CREATE TABLE IF NOT EXISTS tidemill.{name} PARTITION OF tidemill.job_history "
            f"FOR VALUES FROM ('{first.isoformat()}') TO ('{last.isoformat()}')"
        )
        row = await database.fetchrow(COUNT_DEFAULT, first, last)
        if row and row["n"]:
            continue  # Its rows are in the default partition already: they stay there, and age out from there.
        if not await _change(database, statement):
            continue
        made.append(name)
    return made


async def drop_partitions(database: Database, today: date, *, keep_days: int) -> list[str]:
    """Drop the days that are older than wanted; live rows are in another table and are not touched."""
    dropped = []
    for name in await list_partitions(database):
        match = _PARTITION.match(name)
        if match is None or date(int(match[1]), int(match[2]), int(match[3])) >= today - timedelta(days=keep_days):
            continue
        statement = database.sql(f"DROP TABLE IF EXISTS tidemill.{name}")
        if await _change(database, statement):
            dropped.append(name)
    oldest = _midnight(today - timedelta(days=keep_days))
    await database.fetch("DELETE FROM tidemill.job_history_default WHERE finished_at < $1", oldest)
    return dropped


async def _change(database: Database, statement: str) -> bool:
    """Change the partitions, unless somebody reads them for long: who waits for them makes all others wait.

    False means that it could not be done now; the next round of housekeeping tries again.
    """
    async with database.acquire() as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_PATIENCE_MS}")
                await connection.execute(statement)
        except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError):
            # Busy; or a job has just finished into the default partition, where its day's rows then stay.
            return False
    return True


async def forget_leftovers(database: Database, *, ended_workers_after: float = 86_400.0) -> None:
    """Remove what outlived its use: ended windows, unused gates, workers long gone."""
    await database.fetch(FORGET_WINDOWS)
    await database.fetch(FORGET_GATES)
    await database.fetch(FORGET_WORKERS, ended_workers_after)


async def analyze_history(database: Database) -> None:
    """Give the planner fresh figures: a partitioned parent is never analysed by itself."""
    await database.run(lambda connection: connection.execute(database.sql("ANALYZE tidemill.job_history")))


async def list_partitions(database: Database) -> list[str]:
    return [row["name"] for row in await database.fetch(LIST_PARTITIONS)]


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
