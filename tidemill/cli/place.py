"""Where a command works: the options that every command has, and the way to the database they name."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import asyncpg
from cyclopts import Group, Parameter

from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.settings import Settings, load_settings
from tidemill.store.database import Database
from tidemill.store.migrate import wait_for_schema

PATIENCE = 6.0
SCHEMA_PATIENCE = 2.0


@Parameter(name="*", group=Group("Database", sort_key=9))
@dataclass(frozen=True)
class Place:
    """Options of every command."""

    database_url: Annotated[str | None, Parameter(help="Your own PostgreSQL; unset means the embedded one.")] = None
    directory: Annotated[str | None, Parameter(help="Where the embedded PostgreSQL keeps its data.")] = None
    schema: Annotated[str | None, Parameter(help="The schema that all tables live in.")] = None

    def arguments(self) -> dict[str, str]:
        """What was given, as settings."""
        given = {"database_url": self.database_url, "directory": self.directory, "schema": self.schema}
        return {name: value for name, value in given.items() if value is not None}

    def options(self) -> list[str]:
        """What was given, as it stands on a command line."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.arguments().items()]

    def settings(self, **more: Any) -> Settings:
        return load_settings(**self.arguments(), **more)


HERE = Place()


@asynccontextmanager
async def opened(settings: Settings, *, create: bool = False, schema: bool = True) -> AsyncIterator[Database]:
    """A database that answers and, unless told otherwise, has its schema; made only if `create`."""
    if not create:
        require_database(settings)
    database = Database(settings.database(), application="tidemill cli")
    try:
        await open_soon(database)
        if schema:
            await wait_for_schema(database, patience=SCHEMA_PATIENCE)
        yield database
    finally:
        await database.close()


async def open_soon(database: Database) -> None:
    """Open it, or say within seconds what is in the way."""
    try:
        await database.open(patience=PATIENCE)
    except (asyncpg.InterfaceError, ValueError) as error:
        raise ConfigError(f"the database URL cannot be used: {error}") from error
    except asyncpg.PostgresError as error:
        raise StoreError(f"the database at {database.where} refuses: {error}") from error


def require_database(settings: Settings) -> None:
    """An embedded database is made by those who run it, never by those who only look."""
    directory = Path(settings.directory)
    if settings.database_url is None and not (directory / "data").exists() and not _is_in_the_way(directory):
        raise StoreError(
            f"there is no database here yet ({directory.absolute()}): run `tidemill up app.py`, "
            "or say where it is with --directory or --database-url"
        )


def operator() -> str:
    """Who gives this command: `user@host`, as the audit trail names them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _is_in_the_way(directory: Path) -> bool:
    """Whether something stands there that cannot be a database; the attempt to open it says what."""
    return directory.exists() and not directory.is_dir()
