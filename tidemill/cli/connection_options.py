"""Where a command works: the options that name a database or a running server, and the connection to it."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Group, Parameter

from tidemill.cli.open_database import GIVEN_DATABASE_URL, opened
from tidemill.core.errors import ConfigError
from tidemill.engine.settings import Settings, load_settings

if TYPE_CHECKING:
    from tidemill.app import App
    from tidemill.ops.operator.http_client import HttpClient
    from tidemill.ops.operator.operation import A, Operation, Operator, R

SERVER, TOKEN, TOKEN_FILE = "TIDEMILL_SERVER", "TIDEMILL_TOKEN", "TIDEMILL_TOKEN_FILE"

T = TypeVar("T")

_DATABASE = Group("Database", sort_key=9)
_SERVER = Group("Server", sort_key=10)


@Parameter(name="*", group=_DATABASE)
@dataclass(frozen=True)
class ConnectionOptions:
    """Options of every command."""

    database_url: Annotated[str | None, Parameter(help="Your own PostgreSQL; unset means the embedded one.")] = None
    directory: Annotated[str | None, Parameter(help="Where the embedded PostgreSQL keeps its data.")] = None
    schema: Annotated[str | None, Parameter(help="The schema of the installation.")] = None
    application: Annotated[
        str | None, Parameter(help="The application to work on, where the database has several.")
    ] = None
    server: Annotated[str | None, Parameter(show=False)] = None

    @property
    def server_url(self) -> str | None:
        """The server that is named: by an option, or in the environment unless options name a database."""
        if self.server is not None and self.given():
            raise ConfigError("give --server or a database, not both")
        return self.server or (None if self.given() else os.environ.get(SERVER) or None)

    def given(self) -> dict[str, str]:
        """Which database was named, as settings."""
        given = {
            "database_url": self.database_url or os.environ.get(GIVEN_DATABASE_URL),
            "directory": self.directory,
            "schema": self.schema,
            "application": self.application,
        }
        return {name: value for name, value in given.items() if value is not None}

    def arguments(self) -> dict[str, str]:
        """The same for a command that works on the database itself: an error if a server was named."""
        if self.server_url is not None:
            how = "leave out --server" if self.server else f"unset {SERVER}, or name the database with an option"
            raise ConfigError(f"this command works on the database itself, and not through a server: {how}")
        return self.given()

    def settings(self, **more: Any) -> Settings:
        return load_settings(**self.arguments(), **more)


@Parameter(name="*", group=_DATABASE)
@dataclass(frozen=True)
class ServerOptions(ConnectionOptions):
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
        bool, Parameter(group=_SERVER, help="Send the token without TLS, where others on the network can read it.")
    ] = False

    @asynccontextmanager
    async def operator(self, app: str | App | None = None) -> AsyncIterator[Operator]:
        """Where operations are done: on the database, or by the server that is named.

        `app` is the application or where it is, for operations that need its code and have no server.
        """
        if self.server_url is not None:
            from tidemill.ops.operator.remote import Remote

            client = self._client()
            try:
                yield Remote(client)
            finally:
                client.close()
            return
        from tidemill.core.accounts import Caller
        from tidemill.ops.operator.local import Local

        if isinstance(app, str):
            from tidemill.cli.run.role_process import application

            app = application(app, self.arguments())
        declared = None if app is None else app.declarations
        async with opened(self.settings() if declared is None else declared.settings) as database:
            yield Local(database, Caller(operator(), "admin"), declared)

    def do(self, operation: Operation[A, R], args: A, *, app: str | App | None = None) -> R:
        """Do one operation."""
        return self.run(lambda at: at.do(operation, args), app=app)

    def run(self, work: Callable[[Operator], Awaitable[T]], *, app: str | App | None = None) -> T:
        """Do several operations, on one connection."""

        async def go() -> T:
            async with self.operator(app) as at:
                return await work(at)

        return asyncio.run(go())

    def _client(self) -> HttpClient:
        from tidemill.ops.operator.http_client import HttpClient, read_token

        token = read_token(self.token_file, os.environ.get(TOKEN), os.environ.get(TOKEN_FILE))
        return HttpClient(self.server_url or "", token, plain_http=self.plain_http)


@Parameter(name="*", group=_DATABASE)
@dataclass(frozen=True)
class TokenOptions(ServerOptions):
    """Options of a command for which --application also says what a token is for: a server takes it, too."""

    application: Annotated[str | None, Parameter(help="The only application that it is for; by default all.")] = None

    def given(self) -> dict[str, str]:
        given = super().given()
        return {} if given.keys() == {"application"} and (self.server or os.environ.get(SERVER)) else given


HERE = ConnectionOptions()
ANYWHERE = ServerOptions()
ALL_APPLICATIONS = TokenOptions()


def operator() -> str:
    """The person who gives this command: `user@host`, as the audit trail names them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
