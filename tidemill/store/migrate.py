"""Migrations: numbered SQL files up and down, a ledger, and a lock so that one process migrates at a time.

A chain is a folder of `NNNN_name.sql` with `NNNN_name.down.sql` beside it. Tidemill owns one chain; a host
application may run its own second chain with its own ledger:

    await migrate(database, Chain(Path("migrations"), ledger="shop_schema_version"))

Only maintenance migrates. Workers wait for the version that their code needs, and refuse to work on
a schema newer than they know.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from pathlib import Path

import asyncpg
import msgspec

from tidemill.core.errors import ConfigError, SchemaError, StoreError
from tidemill.store.database import Database, Executor, in_schema

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")
_LEDGER_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    up: Path
    down: Path


class Chain(msgspec.Struct, frozen=True):
    """A folder of migrations and the ledger table that records which of them are applied."""

    folder: Path
    ledger: str = "schema_version"

    def migrations(self) -> list[Migration]:
        """All migrations in order; a gap, a duplicate or a missing way down is an error."""
        if not _LEDGER_NAME.match(self.ledger):
            raise ConfigError(f"{self.ledger!r} is not usable as a ledger table's name")
        if not self.folder.is_dir():
            raise ConfigError(f"there is no migrations folder at {self.folder}")
        found = []
        for up in sorted(self.folder.glob("*.sql")):
            match = _FILE_NAME.match(up.name)
            if match is None:
                if not up.name.endswith(".down.sql"):
                    raise ConfigError(f"{up.name}: a migration is called NNNN_name.sql")
                continue
            down = up.with_suffix(".down.sql")
            if not down.exists():
                raise ConfigError(f"{up.name} has no {down.name} beside it")
            found.append(Migration(int(match[1]), match[2], up, down))
        if [migration.version for migration in found] != list(range(1, len(found) + 1)):
            raise ConfigError(f"the migrations in {self.folder} are not numbered 0001, 0002, ... without gaps")
        return found

    @property
    def latest(self) -> int:
        migrations = self.migrations()
        return migrations[-1].version if migrations else 0


OWN_CHAIN = Chain(Path(__file__).with_name("migrations"))

CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS tidemill.{ledger} (
    version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())
"""


async def applied_version(database: Database, chain: Chain = OWN_CHAIN, *, patience: float | None = 30.0) -> int:
    """The newest applied version; 0 for an empty database."""
    try:
        row = await database.fetchrow(_ledger_sql(database, chain), patience=patience)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return 0
    return int(row["version"] or 0) if row else 0


async def migrate(
    database: Database, chain: Chain = OWN_CHAIN, *, to: int | None = None, patience: float | None = 30.0
) -> list[Migration]:
    """Apply what is missing, up to version `to`; returns what was applied."""
    migrations = chain.migrations()
    target = chain.latest if to is None else to
    if not 0 <= target <= chain.latest:
        raise SchemaError(f"there is no version {target}; this code knows 0 to {chain.latest}")
    done: list[Migration] = []
    async with database.transaction(patience=patience) as connection:
        current = await _lock_chain(connection, database, chain)
        for migration in migrations:
            if current < migration.version <= target:
                await _execute(connection, database, migration.up)
                await connection.execute(
                    f"INSERT INTO {database.schema}.{chain.ledger} (version, name) VALUES ($1, $2)",
                    migration.version,
                    migration.name,
                )
                done.append(migration)
    return done


async def downgrade(database: Database, chain: Chain = OWN_CHAIN, *, to: int) -> list[Migration]:
    """Undo everything above version `to`, newest first; returns what was undone."""
    if to < 0:
        raise SchemaError("a schema version is 0 or more")
    undone: list[Migration] = []
    async with database.transaction(patience=30.0) as connection:
        await _lock_chain(connection, database, chain)
        for migration in reversed(chain.migrations()):
            if migration.version <= to:
                break
            removed = await connection.fetchval(
                f"DELETE FROM {database.schema}.{chain.ledger} WHERE version = $1 RETURNING version",
                migration.version,
            )
            if removed is not None:
                await _execute(connection, database, migration.down)
                undone.append(migration)
    return undone


async def wait_for_schema(database: Database, chain: Chain = OWN_CHAIN, *, patience: float | None = None) -> None:
    """Wait until the schema is the one that this code needs; a newer one is an error."""
    loop = asyncio.get_running_loop()
    give_up = None if patience is None else loop.time() + patience
    pause = 0.05
    while True:
        version = await applied_version(database, chain, patience=patience)
        check_known(database, version, chain)
        if version == chain.latest:
            return
        if give_up is not None and loop.time() > give_up:
            raise SchemaError(
                f"the database at {database.where} is at schema version {version}, and this code needs "
                f"{chain.latest}: run `tidemill db migrate`, or start maintenance"
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def check_known(database: Database, version: int, chain: Chain = OWN_CHAIN) -> None:
    """Refuse a schema that is newer than this code."""
    if version > chain.latest:
        raise SchemaError(
            f"the database at {database.where} is at schema version {version}, but this code knows only "
            f"{chain.latest}: install a newer tidemill, or run `tidemill db downgrade --to {chain.latest}` "
            "with the newer one"
        )


async def _lock_chain(connection: Executor, database: Database, chain: Chain) -> int:
    key = zlib.crc32(f"{database.schema}.{chain.ledger}".encode())
    await connection.execute("SELECT pg_advisory_xact_lock($1)", key)
    try:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database.schema}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"the role may not create the schema {database.schema} in {database.where}: grant it CREATE on the "
            f"database, or create the schema for it ({error})"
        ) from error
    await connection.execute(database.sql(CREATE_LEDGER).format(ledger=chain.ledger))
    current = await connection.fetchval(_ledger_sql(database, chain)) or 0
    check_known(database, current, chain)
    return current


async def _execute(connection: Executor, database: Database, file: Path) -> None:
    sql = await asyncio.to_thread(file.read_text, encoding="utf-8")
    try:
        await connection.execute(in_schema(sql, database.schema))
    except asyncpg.PostgresError as error:
        raise StoreError(f"migration {file.name} failed and was rolled back: {error}") from error


def _ledger_sql(database: Database, chain: Chain) -> str:
    return f"SELECT max(version) AS version FROM {database.schema}.{chain.ledger}"
