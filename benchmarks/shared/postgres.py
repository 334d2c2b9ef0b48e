"""The one PostgreSQL server of a run, and a fresh database on it for each measurement.

`TIDEMILL_BENCH_DATABASE_URL` names a server; without it our embedded one is started in `.bench/pg`.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncpg

from benchmarks.shared.venv import ROOT

DATABASE_URL = "TIDEMILL_BENCH_DATABASE_URL"


class Server:
    """A server on which we may create and drop databases named `bench_*`."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @contextmanager
    def database(self, owner: str) -> Iterator[str]:
        """The URL of an empty database for `owner`, dropped afterwards.

        Dropped at once, because autovacuum would otherwise work on it during the next measurement.
        """
        name = f"bench_{owner}"
        drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"
        self._run(drop, f"CREATE DATABASE {name}", "CHECKPOINT")
        try:
            url = urlsplit(self._dsn)
            yield f"{url.scheme}://{url.netloc}/{name}?{url.query}"
        finally:
            self._run(drop)

    def describe(self) -> str:
        """The version, and whether commits are durable: without that no figure counts."""
        version, fsync, synchronous_commit = asyncio.run(
            self._fetch(
                "SELECT current_setting('server_version'), current_setting('fsync'), "
                "current_setting('synchronous_commit')"
            )
        )
        return f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {synchronous_commit}"

    def _run(self, *statements: str) -> None:
        asyncio.run(self._execute(statements))

    async def _execute(self, statements: tuple[str, ...]) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def _fetch(self, statement: str) -> asyncpg.Record:
        connection = await asyncpg.connect(self._dsn)
        try:
            row = await connection.fetchrow(statement)
        finally:
            await connection.close()
        assert row is not None
        return row


@contextmanager
def running() -> Iterator[Server]:
    """The server named in the environment, or our embedded one, stopped at the end."""
    if dsn := os.environ.get(DATABASE_URL):
        server = Server(dsn)
        _say_what(server)
        yield server
        return
    from tidemill.store.embedded.server import EmbeddedServer

    embedded = EmbeddedServer(ROOT / ".bench" / "pg")
    embedded.ensure()
    try:
        server = Server(embedded.dsn)
        _say_what(server)
        yield server
    finally:
        embedded.stop()


def _say_what(server: Server) -> None:
    print(server.describe(), file=sys.stderr, flush=True)
