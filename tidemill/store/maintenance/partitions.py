"""Tables partitioned by time: partitions are created ahead of time, and old ones are dropped.

A statement that waits for a partition's lock blocks all later ones. So a change that cannot get its lock quickly is
left to the next round of maintenance.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import asyncpg

from tidemill.store.database import Database

LOCK_PATIENCE_MS = 200

#: The partitions of a table.
LIST_PARTITIONS = """
SELECT c.relname AS name FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'tidemill.{table}'::regclass ORDER BY 1
"""

#: Whether rows were stored in the default partition because their day's partition did not exist yet.
IS_IN_DEFAULT = """
SELECT EXISTS (SELECT FROM tidemill.{table}_default WHERE {column} >= $1 AND {column} < $2) AS found
"""


async def keep_daily(
    database: Database, table: str, column: str, today: date, *, keep_days: int, days_ahead: int = 3
) -> None:
    """Maintain a table's daily partitions by its time `column`: create those ahead, drop those that are too old."""
    await make_daily(database, table, column, today, days_ahead=days_ahead)
    await drop_daily(database, table, column, today, keep_days=keep_days)


async def make_daily(database: Database, table: str, column: str, today: date, *, days_ahead: int = 3) -> list[str]:
    """Create the missing partitions for today and the days ahead; returns the new ones.

    A day that has rows in the default partition gets none: its rows stay there until they are old enough to be deleted.
    """
    existing, made = set(await list_partitions(database, table)), list[str]()
    for offset in range(days_ahead + 1):
        day = today + timedelta(days=offset)
        name = f"{table}_{day:%Y%m%d}"
        if name in existing:
            continue
        first, last = _midnight(day), _midnight(day + timedelta(days=1))
        row = await database.fetchrow(IS_IN_DEFAULT.format(table=table, column=column), first, last)
        if row and row["found"]:
            continue
        bounds = f"FOR VALUES FROM ('{first.isoformat()}') TO ('{last.isoformat()}')"
        if await make_partition(database, table, name, bounds):
            made.append(name)
    return made


async def drop_daily(database: Database, table: str, column: str, today: date, *, keep_days: int) -> list[str]:
    """Drop the days older than `keep_days`; returns their partitions."""
    oldest, dropped = today - timedelta(days=keep_days), list[str]()
    for name in await list_partitions(database, table):
        found = re.fullmatch(rf"{table}_(\d{{4}})(\d{{2}})(\d{{2}})", name)
        is_old = found is not None and date(int(found[1]), int(found[2]), int(found[3])) < oldest
        if is_old and await drop_partition(database, name):
            dropped.append(name)
    await database.fetch(f"DELETE FROM tidemill.{table}_default WHERE {column} < $1", _midnight(oldest))
    return dropped


async def list_partitions(database: Database, table: str) -> list[str]:
    return [row["name"] for row in await database.fetch(LIST_PARTITIONS.format(table=table))]


async def make_partition(database: Database, table: str, name: str, bounds: str) -> bool:
    """Create a partition; False if its lock is not available now."""
    return await _change(database, f"CREATE TABLE IF NOT EXISTS tidemill.{name} PARTITION OF tidemill.{table} {bounds}")


async def drop_partition(database: Database, name: str) -> bool:
    """Drop a partition; False if its lock is not available now."""
    return await _change(database, f"DROP TABLE IF EXISTS tidemill.{name}")


async def _change(database: Database, statement: str) -> bool:
    async with database.acquire() as connection:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_PATIENCE_MS}")
                await connection.execute(database.sql(statement))
        except (asyncpg.LockNotAvailableError, asyncpg.CheckViolationError):
            return False  # Locked; or the default partition has just got rows of this day, which stay there.
        except (asyncpg.DuplicateTableError, asyncpg.UniqueViolationError, asyncpg.UndefinedTableError):
            return False  # Another process has just made the same change.
    return True


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
