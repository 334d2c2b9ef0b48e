"""Moves a database to another server; nothing that was acknowledged stays behind.

Every table is locked against writes while it is copied and checked. Before the locks are released, the old database
becomes read-only and all other sessions on it are ended: a write that waited for its lock was never acknowledged. A
process that connects again finds a database that is read-only, and waits.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import asyncpg

from tidemill.core.errors import ConfigError, StoreError
from tidemill.store.connection.libpq_files import login_of
from tidemill.store.connection.url import to_any
from tidemill.store.database import Connection, Database
from tidemill.store.maintenance.backup import BackupReport, restore, write_backup

#: How often and how long to wait for the locks: a transaction may hold some and want others.
LOCK_TRIES, LOCK_TIMEOUT = 10, "5s"

#: How often to look, at intervals of 0.1 s, whether the sessions that were told to end have ended.
LOOKS_FOR_ENDED = 100

LOCKABLE = """
SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1
"""

#: All other client sessions, under any application name: each of them may write.
SESSIONS = """
SELECT coalesce(nullif(application_name, ''), usename) AS name, pid FROM pg_stat_activity
WHERE datname = current_database() AND usename IS NOT NULL
      AND coalesce(backend_type, 'client backend') = 'client backend' AND pid <> ALL ($1::int[])
      AND application_name <> ALL ($2::text[]) AND backend_start < $3 ORDER BY 1, 2
"""

OWNER = """
SELECT pg_get_userbyid(datdba) AS name, pg_has_role(current_user, datdba, 'MEMBER') AS is_own
FROM pg_database WHERE datname = current_database()
"""


async def move(database: Database, target: Database, *, live: bool, label: str) -> BackupReport:
    """Copy everything into an empty database, check it, and make the old one read-only.

    Unless it is `live`, other sessions than those with this `label` are an error.
    """
    connection, closing = await database.connect_to_listen(), await database.connect_to_listen()
    try:
        await _check_owner(connection, database)
        pids = [connection.get_server_pid(), closing.get_server_pid()]
        if not live and (users := await _sessions(closing, pids, labels=[label])):
            names = ", ".join(dict.fromkeys(row["name"] for row in users))
            raise ConfigError(
                f"the database at {database.where} is in use by {names}: stop every process first, or move it under "
                "them with --live"
            )
        locked = await _lock_tables(connection)
        try:
            with tempfile.TemporaryDirectory(prefix="tidemill-move-") as folder:
                await write_backup(connection, database, Path(folder))
                report = await restore(target, Path(folder))
            await _close(closing, pids)
        finally:
            await locked.rollback()
        return report
    finally:
        await connection.close()
        await closing.close()


async def reopen(database: Database) -> bool:
    """Let a database that was moved be written to again; returns whether it was read-only."""
    connection = await asyncpg.connect(to_any(database.direct_dsn), timeout=10, **login_of(database.direct_dsn))
    try:
        was_closed = await connection.fetchval("SHOW default_transaction_read_only") == "on"
        await connection.execute("SET default_transaction_read_only = off")
        await _set_read_only(connection, "RESET default_transaction_read_only")
        return was_closed
    finally:
        await connection.close()


async def _check_owner(connection: Connection, database: Database) -> None:
    owner = await connection.fetchrow(OWNER)
    if owner is not None and not owner["is_own"]:
        raise ConfigError(
            f"only {owner['name']}, who owns the database at {database.where}, can make it read-only, which a move "
            "does: connect as that user"
        )


async def _lock_tables(connection: Connection) -> Any:
    """A transaction that locks every table against writes, before its snapshot is taken."""
    for tries_left in reversed(range(LOCK_TRIES)):
        names = [row["name"] for row in await connection.fetch(LOCKABLE)]
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        try:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            if names:
                await connection.execute(f"LOCK TABLE {', '.join(names)} IN SHARE MODE")
            if names == [row["name"] for row in await connection.fetch(LOCKABLE)]:
                return transaction
            await transaction.rollback()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.UndefinedTableError) as error:
            await transaction.rollback()
            if not tries_left:
                raise StoreError(
                    f"the tables could not be locked: {error}; a transaction has been open for long, which "
                    "`tidemill db check` shows"
                ) from error
    raise StoreError("the tables could not be locked: new ones were made all the time")


async def _close(connection: Connection, pids: list[int]) -> None:
    """Make the database read-only for new sessions, and end all others."""
    await _set_read_only(connection, "SET default_transaction_read_only = on")
    try:
        closed_at = await connection.fetchval("SELECT clock_timestamp()")
        for _ in range(LOOKS_FOR_ENDED):
            if not (left := await _sessions(connection, pids, before=closed_at)):
                return
            for row in left:
                await connection.execute("SELECT pg_terminate_backend($1)", row["pid"])
            await asyncio.sleep(0.1)
        raise StoreError(f"sessions that may write did not end: {', '.join(row['name'] for row in left)}")
    except (asyncpg.PostgresError, StoreError) as error:
        await _set_read_only(connection, "RESET default_transaction_read_only")
        raise StoreError(f"nothing was moved, and the copy must not be used: {error}") from error


async def _set_read_only(connection: Connection, change: str) -> None:
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} {change}")


async def _sessions(
    connection: Connection, pids: list[int], *, labels: list[str] | None = None, before: Any = None
) -> list[Any]:
    now = await connection.fetchval("SELECT clock_timestamp()") if before is None else before
    return await connection.fetch(SESSIONS, pids, labels or [], now)
