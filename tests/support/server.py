"""The PostgreSQL that the tests share, and a fresh database on it for each of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tidemill.engine.roles.maintenance import Maintenance
from tidemill.store.connection.url import database_of, with_database
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.embedded.server import EmbeddedServer
from tidemill.store.migrate import migrate

URL_VARIABLE = "TIDEMILL_TEST_DATABASE_URL"


class TestServer:
    """A running server with a migrated template, from which databases are cloned quickly."""

    __test__ = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._names = itertools.count(1)
        self._prefix = f"tidemill_test_{os.getpid()}"
        self._template = f"{self._prefix}_template"
        self._admin = psycopg.connect(url, autocommit=True)
        self._hand = ThreadPoolExecutor(1, thread_name_prefix="test-databases")
        self._spare: Future[str] | None = None

    def prepare(self) -> None:
        """Make the template, and the first database."""
        self._admin.execute(f"CREATE DATABASE {self._template}".encode())
        asyncio.run(_migrate(with_database(self._url, self._template)))
        self._spare = self._hand.submit(self._create, self._template)

    def create(self, *, migrated: bool = True) -> str:
        """The URL of a new database; the next one is made while this one is used."""
        if not migrated:
            return self._hand.submit(self._create, "template1").result()
        assert self._spare is not None
        ready, self._spare = self._spare, self._hand.submit(self._create, self._template)
        return ready.result()

    def drop(self, url: str) -> None:
        """Drop a database and end its connections."""
        self._hand.submit(self._drop, url).result()

    def close(self) -> None:
        """Leave nothing behind."""
        if self._spare is not None:
            self.drop(self._spare.result())
        self.drop(with_database(self._url, self._template))
        self._hand.shutdown()
        self._admin.close()

    def _create(self, source: str) -> str:
        name = f"{self._prefix}_{next(self._names)}"
        self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {source} STRATEGY file_copy".encode())
        return with_database(self._url, name)

    def _drop(self, url: str) -> None:
        self._admin.execute(f"DROP DATABASE IF EXISTS {database_of(url)} WITH (FORCE)".encode())


@contextmanager
def shared_server() -> Iterator[TestServer]:
    """The server that `TIDEMILL_TEST_DATABASE_URL` names, or an embedded one in a directory of its own."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        server = TestServer(url)
        server.prepare()
        try:
            yield server
        finally:
            server.close()
        return
    with private_server() as embedded:
        with psycopg.connect(embedded.dsn, autocommit=True) as connection:
            # Tests crash processes, never the machine: nothing is lost without waiting for the disk.
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        server = TestServer(embedded.dsn)
        server.prepare()
        yield server
        server.close()


@contextmanager
def private_server() -> Iterator[EmbeddedServer]:
    """An embedded server for one test that treats it badly; removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="tm-"))
    embedded = EmbeddedServer(directory / ".tidemill")
    try:
        embedded.ensure()
        yield embedded
    finally:
        embedded.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def _migrate(url: str) -> None:
    async with Database(DatabaseSettings(url=url)) as database:
        await migrate(database)
        await Maintenance(database).clean_up()  # Its partitions are there already, for every test.
