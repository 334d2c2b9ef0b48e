"""Where a command works: the options that say it, and the way to the database or the running server they name."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import asyncpg
from cyclopts import Group, Parameter

from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.settings import Settings, load_settings
from tidemill.store.database import Database
from tidemill.store.migrate import wait_for_schema

if TYPE_CHECKING:
    from tidemill.cli.client import Remote

PATIENCE = 6.0
SCHEMA_PATIENCE = 2.0
SERVER, TOKEN, TOKEN_FILE = "TIDEMILL_SERVER", "TIDEMILL_TOKEN", "TIDEMILL_TOKEN_FILE"

T = TypeVar("T")

_DATABASE = Group("Database", sort_key=9)
_SERVER = Group("Server", sort_key=10)


@Parameter(name="*", group=_DATABASE)
@dataclass(frozen=True)
class Place:
    """Options of every command."""

    database_url: Annotated[str | None, Parameter(help="Your own PostgreSQL; unset means the embedded one.")] = None
    directory: Annotated[str | None, Parameter(help="Where the embedded PostgreSQL keeps its data.")] = None
    schema: Annotated[str | None, Parameter(help="The schema that all tables live in.")] = None
    server: Annotated[str | None, Parameter(show=False)] = None

    @property
    def server_url(self) -> str | None:
        """The server that is named: by an option, or in the environment unless options name a database."""
        if self.server is not None and self.given():
            raise ConfigError("say either --server, or which database: not both")
        return self.server or (None if self.given() else os.environ.get(SERVER) or None)

    def given(self) -> dict[str, str]:
        """Which database was named, as settings."""
        given = {"database_url": self.database_url, "directory": self.directory, "schema": self.schema}
        return {name: value for name, value in given.items() if value is not None}

    def arguments(self) -> dict[str, str]:
        """The same for who works on the database itself: an error if a server was named."""
        if self.server_url is not None:
            how = "leave out --server" if self.server else f"unset {SERVER}, or name the database with an option"
            raise ConfigError(f"this command works on the database itself, and not through a server: {how}")
        return self.given()

    def options(self) -> list[str]:
        """What was given, as it stands on a command line."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.arguments().items()]

    def settings(self, **more: Any) -> Settings:
        return load_settings(**self.arguments(), **more)


@Parameter(name="*", group=_DATABASE)
@dataclass(frozen=True)
class Reach(Place):
    """Options of the commands that work through a running server as well."""

    server: Annotated[
        str | None,
        Parameter(group=_SERVER, help=f"Work through this running server instead; or set {SERVER}."),
    ] = None
    token_file: Annotated[
        str | None,
        Parameter(group=_SERVER, help=f"A file with the token for it; or set {TOKEN}, or {TOKEN_FILE}."),
    ] = None
    plain_http: Annotated[
        bool, Parameter(group=_SERVER, help="Send the token without TLS: whoever is on the way can read it.")
    ] = False

    def ask(self, stored: Callable[[Database], Awaitable[T]], served: Callable[[Remote], T]) -> T:
        """What the database has or does, or the server if one is named."""
        if self.server_url is None:
            return with_database(self, stored)
        with self.remote() as server:
            return served(server)

    def remote(self) -> Remote:
        """The server that is named."""
        from tidemill.cli.client import Remote, read_token  # Here, for most commands have a database.

        token = read_token(self.token_file, os.environ.get(TOKEN), os.environ.get(TOKEN_FILE))
        return Remote(self.server_url or "", token, plain_http=self.plain_http)


HERE = Place()
ANYWHERE = Reach()


def with_database(place: Place, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do something with the open database."""

    async def go() -> T:
        async with opened(place.settings()) as database:
            return await work(database)

    return asyncio.run(go())


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
