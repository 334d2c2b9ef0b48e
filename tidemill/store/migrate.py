"""Migrations: numbered SQL files up and down, a ledger, and a lock so that one process migrates at a time.

A chain is a folder of `NNNN_name.sql` with `NNNN_name.down.sql` beside it. Tidemill's own chain runs once per
application, in the schema of that application's tables; the installation's schema comes first because it also has
the shared tables. A host application may have its own chain, in a schema that it names:

    await migrate(database, Chain(Path("migrations"), schema="shop"))

The files of a host's chain run unchanged, with only that schema in the `search_path`.

Indexes of tables that may be large are in `NNNN_name.online.sql`, and built afterwards while everything goes on.

Only maintenance migrates. Workers wait for the version that their code needs. Older and newer code share a schema as
long as the older one can: a migration says in its first line which code goes on with what it makes,

    -- needs_at_least: 48

the code whose newest migration is number 48, or later. Without that line it is the migration's own number, and older
code refuses to start.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import msgspec
import structlog

from tidemill.core.errors import ConfigError, SchemaError, StoreError
from tidemill.store.database import LIST_APPLICATIONS, Database, Executor
from tidemill.store.database_errors import CLASHES, NO_TABLE
from tidemill.store.maintenance.online_indexes import build_online, build_small, read_indexes
from tidemill.store.schemas import check_schema_name, in_schema, schema_of

log = structlog.get_logger("tidemill.migrate")

#: Seconds of waiting for the schema after which a process says so.
SAY_AFTER = 3.0

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql\Z")
_NEEDS = re.compile(r"-- needs_at_least: (\d+)\s*\n")

#: How long a migration waits for a table before it lets the statements behind it go first.
_LOCK_TIMEOUT = "2s"


class Migration(msgspec.Struct, frozen=True):
    version: int
    name: str
    up: Path
    down: Path

    def needs_at_least(self) -> int:
        """The version that code must know to work with the schema that this migration makes."""
        declared = _NEEDS.match(self.up.read_text(encoding="utf-8"))
        needed = int(declared[1]) if declared else self.version
        if not 0 < needed <= self.version:
            raise ConfigError(f"{self.up.name}: needs_at_least is a version from 1 to {self.version}")
        return needed


class Chain(msgspec.Struct, frozen=True):
    """A folder of migrations, and the schema of their tables and their ledger; None for Tidemill's own."""

    folder: Path
    schema: str | None = None

    def migrations(self) -> list[Migration]:
        """All migrations in order; a gap, a duplicate or a missing down file is an error."""
        return list(_own_migrations()) if self.folder == _OWN_FOLDER else self._read()

    def _read(self) -> list[Migration]:
        if self.schema is not None:
            check_schema_name(self.schema)
        if not self.folder.is_dir():
            raise ConfigError(f"there is no migrations folder at {self.folder}")
        found = []
        for up in sorted(self.folder.glob("*.sql")):
            match = _FILE_NAME.match(up.name)
            if match is None:
                if not up.name.endswith((".down.sql", ".online.sql") if self.schema is None else ".down.sql"):
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


_OWN_FOLDER = Path(__file__).with_name("migrations")
OWN_CHAIN = Chain(_OWN_FOLDER)


@functools.cache
def _own_migrations() -> list[Migration]:
    """The migrations of the package, read once: every role asks for the latest one when it starts."""
    return OWN_CHAIN._read()


def applications_since() -> int:
    """The first version in which an installation knows its applications."""
    return next(migration.version for migration in OWN_CHAIN.migrations() if migration.name == "applications")


#: The ledger of applied migrations.
CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS tidemill.schema_version (
    version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE tidemill.schema_version ADD COLUMN IF NOT EXISTS needs_at_least integer
"""
#: The newest applied version, and the one that code must know; a ledger from before has no mark.
READ_VERSION = """
SELECT max(version) AS version,
       max(coalesce((to_jsonb(v) ->> 'needs_at_least')::integer, version)) AS needs_at_least
FROM tidemill.schema_version AS v
"""
ADD_VERSION = "INSERT INTO tidemill.schema_version (version, name, needs_at_least) VALUES ($1, $2, $3)"
DROP_VERSION = "DELETE FROM tidemill.schema_version WHERE version = $1 RETURNING version"

#: Registers and removes applications of an installation.
ADD_APPLICATION = "INSERT INTO installation.application (name, schema) VALUES ($1, $2)"
DROP_APPLICATION = "DELETE FROM installation.application WHERE schema = $1"
#: Whether a schema exists, and whether it has tables.
SCHEMA_EXISTS = "SELECT to_regnamespace($1) IS NOT NULL"
HAS_TABLES = "SELECT EXISTS (SELECT FROM pg_class WHERE relnamespace = to_regnamespace($1))"


class SchemaVersion(msgspec.Struct, frozen=True):
    """How far a schema was migrated, and the version that code must know to work with it."""

    version: int
    needs_at_least: int


async def schema_version(
    database: Database, chain: Chain = OWN_CHAIN, *, schema: str | None = None, patience: float | None = 30.0
) -> SchemaVersion:
    """The version of the application's schema, or of the given one; 0 for an empty database."""
    place = schema or chain.schema or database.schema
    try:
        return await database.run(lambda connection: _read_version(connection, place), patience=patience)
    except NO_TABLE:
        return SchemaVersion(0, 0)


async def applied_version(database: Database, chain: Chain = OWN_CHAIN, *, schema: str | None = None) -> int:
    """The newest applied version in the application's schema, or in the given one; 0 for an empty database."""
    return (await schema_version(database, chain, schema=schema)).version


async def _read_version(connection: Executor, place: str) -> SchemaVersion:
    (row,) = await connection.fetch(in_schema(READ_VERSION, place))
    return SchemaVersion(row["version"] or 0, row["needs_at_least"] or 0)


class ChainVersion(msgspec.Struct, frozen=True):
    """How far a chain has been applied in one schema."""

    application: str | None
    schema: str
    migrations: str
    version: int
    needed: int


async def chain_versions(database: Database, chains: Sequence[Chain] = ()) -> list[ChainVersion]:
    """The versions of all applications in the database, and of these chains of the current application."""
    name = database.application
    places = {**(database.applications or {}), **({name: database.schema} if name else {})}
    found = list[ChainVersion]()
    for each, place in (places or {None: database.installation}).items():
        current = await schema_version(database, schema=place)
        check_known(database, current)
        found.append(ChainVersion(each, place, "tidemill", current.version, OWN_CHAIN.latest))
    return found + [
        ChainVersion(name, str(chain.schema), chain.folder.name, await applied_version(database, chain), chain.latest)
        for chain in chains
    ]


async def migrate(
    database: Database, chain: Chain = OWN_CHAIN, *, to: int | None = None, patience: float | None = 30.0
) -> list[Migration]:
    """Apply missing migrations up to version `to`; returns those that were applied.

    Tidemill's own chain is applied for the database's application, which is added to the installation if it is new, or
    for every application if none is named.
    """
    target = chain.latest if to is None else to
    if not 0 <= target <= chain.latest:
        raise SchemaError(f"there is no version {target}; this code knows 0 to {chain.latest}")
    if chain.schema is not None:
        _check_is_not_ours(database, chain.schema)
    give_up = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return await _migrate_once(database, chain, target, patience)
        except (asyncpg.LockNotAvailableError, *CLASHES) as error:
            if give_up is not None and time.monotonic() > give_up:
                raise StoreError(f"the migration found no moment in which the tables are free: {error}") from error
            log.info("the migration waits for other transactions", error=str(error))


async def _migrate_once(database: Database, chain: Chain, target: int, patience: float | None) -> list[Migration]:
    if chain.schema is not None:
        async with database.transaction(patience=patience) as connection:
            return await _up(connection, database, chain, chain.schema, target)
    async with database.transaction(patience=patience) as connection:
        installation, name = database.installation, database.settings.application
        await _lock(connection, installation)
        known = await _applications(connection, database)
        new = name is not None and name not in known
        places = set(known.values() if name is None else [known.get(name) or _free_place(known, name, installation)])
        done = await _up(
            connection, database, chain, installation, target if places <= {installation} else chain.latest
        )
        for place in sorted(places - {installation}):
            if new and await connection.fetchval(HAS_TABLES, place):
                raise ConfigError(
                    f"the application {name!r} would have its tables in the schema {place} of {database.where}, which "
                    "has others already: choose another name for the application"
                )
            done += await _up(connection, database, chain, place, target)
        if new and (await _read_version(connection, installation)).version >= applications_since():
            await connection.execute(database.sql(ADD_APPLICATION), name, *places)
    await database.locate(patience=patience)
    return done


async def build_indexes(database: Database) -> list[str]:
    """Build what migrations have left to be built while everything goes on; returns the names of the indexes.

    As with `migrate`, for the database's application or for every application if none is named.
    """
    name, known = database.application, database.applications or {}
    places = {database.installation, *([known[name]] if name in known else () if name else known.values())}
    built: list[str] = []
    for place in sorted(places):
        current = await applied_version(database, schema=place)
        applied = [migration.up for migration in OWN_CHAIN.migrations() if migration.version <= current]
        built += await build_online(database, await asyncio.to_thread(read_indexes, applied, place))
    return built


async def downgrade(database: Database, chain: Chain = OWN_CHAIN, *, to: int) -> list[Migration]:
    """Undo everything above version `to`, newest first; returns the migrations that were undone.

    Version 0 also removes an application that has its own schema from the installation.
    """
    if to < 0:
        raise SchemaError("a schema version is 0 or more")
    place, undone = chain.schema or database.schema, list[Migration]()
    own = chain.schema is None
    async with database.transaction(patience=30.0) as connection:
        await _lock(connection, database.installation if own else place)
        if not await connection.fetchval(SCHEMA_EXISTS, place):
            return []
        others = [name for name, where in (await _applications(connection, database)).items() if where != place]
        if own and place == database.installation and to < applications_since() and others:
            raise SchemaError(
                f"the installation has other applications, which need version {applications_since()}: remove them "
                f"first with `tidemill db downgrade --to 0 --application NAME` ({', '.join(others)})"
            )
        current = await _current(connection, database, chain, place)
        if current > chain.latest:
            raise SchemaError(_newer(database, current, chain))
        for migration in reversed(chain.migrations()):
            if migration.version <= to:
                break
            if await connection.fetchval(in_schema(DROP_VERSION, place), migration.version) is not None:
                await _execute(connection, database, chain, place, migration.down)
                undone.append(migration)
        if own and to == 0 and place != database.installation:
            await connection.execute(database.sql(DROP_APPLICATION), place)
            await connection.execute(f"DROP SCHEMA {place} CASCADE")
    await database.locate(patience=30.0)
    return undone


async def wait_for_schema(database: Database, *, patience: float | None = None) -> None:
    """Wait until the schema has the version that this code needs; one that needs newer code is an error."""
    loop = asyncio.get_running_loop()
    give_up = None if patience is None else loop.time() + patience
    say_at: float | None = loop.time() + SAY_AFTER
    pause = 0.05
    while True:
        # Without a chosen application only the shared tables can be read; later statements ask for the application.
        schema = database.schema if database.application else database.installation
        current = await schema_version(database, schema=schema, patience=patience)
        check_known(database, current)
        if current.version >= OWN_CHAIN.latest:
            return
        if give_up is not None and loop.time() > give_up:
            raise SchemaError(_missing(database, current.version, OWN_CHAIN))
        if give_up is None and say_at is not None and loop.time() >= say_at:
            log.warning("waiting for the schema", why=_missing(database, current.version, OWN_CHAIN))
            say_at = None
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 1.0)
        await database.locate(patience=patience)


def check_known(database: Database, current: SchemaVersion, chain: Chain = OWN_CHAIN) -> None:
    """Reject a schema that needs newer code than this."""
    if current.needs_at_least > chain.latest:
        raise SchemaError(_newer(database, current.version, chain))


def _newer(database: Database, version: int, chain: Chain) -> str:
    return (
        f"the database at {database.where} is at schema version {version}, but this code knows only {chain.latest}: "
        f"install a newer tidemill, or run `tidemill db downgrade --to {chain.latest}` with the newer one"
    )


def _missing(database: Database, version: int, chain: Chain) -> str:
    name, known = database.settings.application, database.applications
    if known and name is not None and name not in known:
        return (
            f"the database at {database.where} has no application {name!r}, only {', '.join(known)}: run `tidemill db "
            f"migrate --application {name}` to add it, or start its maintenance"
        )
    return (
        f"the database at {database.where} is at schema version {version}, and this code needs {chain.latest}: "
        "run `tidemill db migrate` or `tidemill maintenance`"
    )


def _free_place(known: dict[str, str], name: str, installation: str) -> str:
    """The schema of a new application; the first one gets the installation's schema."""
    place = schema_of(name, installation) if known else installation
    if place in known.values():
        raise ConfigError(
            f"the applications {name!r} and {next(other for other in known if known[other] == place)!r} would share "
            f"the schema {place}: choose names that differ in letters or digits"
        )
    return place


def _check_is_not_ours(database: Database, schema: str) -> None:
    if schema in {database.installation, *(database.applications or {}).values()}:
        raise ConfigError(
            f"the schema {schema} has Tidemill's own tables: give the application's migrations another one, "
            "`app.migrations(folder, schema=...)`"
        )


async def _applications(connection: Executor, database: Database) -> dict[str, str]:
    if await connection.fetchval("SELECT to_regclass($1)", f"{database.installation}.application") is None:
        return {}
    return {row[0]: row[1] for row in await connection.fetch(database.sql(LIST_APPLICATIONS))}


async def _lock(connection: Executor, place: str) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", zlib.crc32(f"{place}.schema_version".encode()))


async def _up(connection: Executor, database: Database, chain: Chain, place: str, target: int) -> list[Migration]:
    """Apply a chain in one schema, up to a version."""
    await _lock(connection, place)
    current = await _current(connection, database, chain, place)
    missing = [migration for migration in chain.migrations() if current < migration.version <= target]
    await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
    for migration in missing:
        await _execute(connection, database, chain, place, migration.up)
        await build_small(connection, await asyncio.to_thread(read_indexes, [migration.up], place))
        needs = await asyncio.to_thread(migration.needs_at_least)
        await connection.execute(in_schema(ADD_VERSION, place), migration.version, migration.name, needs)
    await connection.execute("SET LOCAL lock_timeout = 0")
    return missing


async def _current(connection: Executor, database: Database, chain: Chain, place: str) -> int:
    """The version of a schema, which is created if it is missing; one that needs newer code is an error."""
    try:
        if not await connection.fetchval(SCHEMA_EXISTS, place):  # the role may be unable to create one
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {place}")
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            f"the role may not create the schema {place} in {database.where}: grant it CREATE on the "
            f"database, or create the schema for it ({error})"
        ) from error
    await connection.execute(in_schema(CREATE_LEDGER, place))
    current = await _read_version(connection, place)
    check_known(database, current, chain)
    return current.version


async def _execute(connection: Executor, database: Database, chain: Chain, place: str, file: Path) -> None:
    """Run a file: ours with the schema names filled in, a host's unchanged, in its own schema."""
    sql = await asyncio.to_thread(file.read_text, encoding="utf-8")
    try:
        if chain.schema is None:
            await connection.execute(in_schema(sql, place, database.installation))
        else:
            await connection.execute(f"SET LOCAL search_path = {place}")
            await connection.execute(sql)
    except (asyncpg.LockNotAvailableError, *CLASHES):
        raise
    except asyncpg.PostgresError as error:
        raise StoreError(f"migration {file.name} failed and was rolled back: {error}") from error
