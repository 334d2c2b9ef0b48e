"""The connections of applications: one driver at a time, on one database for all tests, whose rows are removed."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.callers import CALLERS, Caller
from tests.support.server import TestServer

TABLES = ("job", "batch", "unique_window", "concurrency_key", "run", "run_input", "inbox", "event_log", "state_blob")


def driver(name: str) -> Any:
    if "Async" in name and importlib.util.find_spec("greenlet") is None:
        return pytest.param(name, marks=pytest.mark.skip("SQLAlchemy's async side needs greenlet: not installed"))
    return name


@pytest.fixture(scope="module")
def shared_url(server: TestServer) -> Iterator[str]:
    """One database for all tests of a file: there are many, and what they leave behind is easily removed."""
    url = server.create()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE purchase (id integer)")
    yield url
    server.drop(url)


@pytest.fixture
def database_url(shared_url: str) -> str:
    with psycopg.connect(shared_url) as connection:
        for table in (*(f"tidemill.{each}" for each in TABLES), "purchase"):
            connection.execute(f"DELETE FROM {table}".encode())
    return shared_url


@pytest.fixture(params=[driver(name) for name in CALLERS])
async def caller(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Caller]:
    """The application's connection, one driver at a time."""
    async with CALLERS[request.param](database_url) as connection:
        yield connection
