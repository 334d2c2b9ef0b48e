"""Tables with one partition a day: those of the days to come are made, those that are too old are dropped."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import asyncpg

from tidemill.store.database import Database

LOCK_PATIENCE_MS = 200

LIST_PARTITIONS = """
SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'tidemill.{table}'::regclass
"""


async def keep_daily(
    database: Database, table: str, column: str, today: date, *, keep_days: int, days_ahead: int = 3
) -> None:
    """Keep the partitions of a table by its time `column`; what had no day's partition ages in the default one."""
    names = {row["name"] for row in await database.fetch(LIST_PARTITIONS.format(table=table))}
    for offset in range(days_ahead + 1):
        day = today + timedelta(days=offset)
        name = f"{table}_{day:%Y%m%d}"
        if name not in names:
            first, last = (_midnight(each).isoformat() for each in (day, day + timedelta(days=1)))
            await _change(
                database,
                f"CREATE TABLE IF NOT EXISTS tidemill.{name} PARTITION OF tidemill.{table} "
                f"FOR VALUES FROM ('{first}') TO ('{last}')",
            )
    oldest = today - timedelta(days=keep_days)
    for name in names:
        found = re.fullmatch(rf"{table}_(\d{{4}})(\d{{2}})(\d{{2}})", name)
        if found is not None and date(int(found[1]), int(found[2]), int(found[3])) < oldest:
            await _change(database, f"DROP TABLE IF EXISTS tidemill.{name}")
    await database.fetch(f"DELETE FROM tidemill.{table}_default WHERE {column} < $1", _midnight(oldest))


async def _change(database: Database, statement: str) -> None:
    """Change the partitions unless somebody is in the way; the next round tries again."""
    async with database.acquire() as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_PATIENCE_MS}")
                await connection.execute(database.sql(statement))
        except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError):
            return  # Busy; or rows of that day are in the default partition, where they then stay.


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
