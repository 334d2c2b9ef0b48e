"""Opens the database of a command or a role, or says what is in the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.settings import Settings
from tidemill.store.database import Database
from tidemill.store.migrate import wait_for_schema

PATIENCE = 6.0
SCHEMA_PATIENCE = 2.0
#: How a supervisor hands `--database-url` to its children: arguments of a process are visible to every user.
GIVEN_DATABASE_URL = "TIDEMILL_GIVEN_DATABASE_URL"


def database_options(given: Mapping[str, str]) -> list[str]:
    """The options of a command line that name a database; its URL is in `database_environment`."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if name != "database_url"]


def database_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The URL of a database, which may hold a password, for an environment, which only its own user can read."""
    url = given.get("database_url")
    return {} if url is None else {GIVEN_DATABASE_URL: url}


@asynccontextmanager
async def opened(settings: Settings, *, create: bool = False, schema: bool = True) -> AsyncIterator[Database]:
    """An open database with its schema (unless `schema` is false); created only if `create`."""
    if not create:
        require_database(settings)
    database = Database(settings.database(), label="tidemill cli")
    try:
        await open_or_fail(database)
        if schema:
            await wait_for_schema(database, patience=SCHEMA_PATIENCE)
        yield database
    finally:
        await database.close()


async def open_or_fail(database: Database, *, patience: float | None = PATIENCE) -> None:
    """Open it, or say within seconds what is in the way; a role has no limit (None), and waits for a server."""
    try:
        await database.open(patience=patience)
    except (asyncpg.InterfaceError, ValueError) as error:
        raise ConfigError(f"the database URL cannot be used: {error}") from error
    except asyncpg.PostgresError as error:
        raise StoreError(f"the database at {database.where} refuses: {error}") from error


def require_database(settings: Settings) -> None:
    """Raise if there is no embedded database: commands that run work create it, commands that only look do not."""
    directory = Path(settings.directory)
    if settings.database_url is None and not (directory / "data").exists() and not _is_in_the_way(directory):
        raise StoreError(
            f"there is no database here yet ({directory.absolute()}): run `tidemill up app.py`, "
            "or say where it is with --directory or --database-url"
        )


def _is_in_the_way(directory: Path) -> bool:
    """Whether something else is at this path; the attempt to open it says what."""
    return directory.exists() and not directory.is_dir()
