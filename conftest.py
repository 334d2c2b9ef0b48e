"""Fixtures of all tests: a real PostgreSQL, a fresh database and an application on it, brokers, a browser.

TIDEMILL_TEST_DATABASE_URL   a server to use (its user is a superuser); unset: an embedded one
TMPDIR                       where databases and other files are made; unset: in memory, if there is enough of it
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from hypothesis import HealthCheck, settings

from generate_protobuf import generate_protobuf
from tests.support.brokers import Kafka, Nats, Redis, require_kafka, require_nats, require_redis
from tests.support.external import External, external_server
from tests.support.server import TestServer, shared_server
from tests.support.task_app import TABLES
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.engine.settings import Settings
from tidemill.store.database import Database, DatabaseSettings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sys.dont_write_bytecode = False  # What pytest makes of a test module is kept for the next time.
generate_protobuf()  # Tests see the .proto files as they are now.

MEMORY, ENOUGH = "/dev/shm", 8 * 2**30


def memory_is_roomy() -> bool:
    """Whether files can be kept in memory: a database is made and dropped there ten times as quickly as on a disk."""
    if not os.access(MEMORY, os.W_OK):
        return False
    found = os.statvfs(MEMORY)
    free = min(found.f_bavail * found.f_frsize, psutil.virtual_memory().available)
    return free > ENOUGH and not found.f_flag & os.ST_NOEXEC


if "TMPDIR" not in os.environ and memory_is_roomy():
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

# Whoever starts the tests in the background may have them ignore Ctrl-C; the processes of tests heed it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples every time, however slow the machine is; others are looked for with --hypothesis-profile=default.
STEADY = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("sample", STEADY, max_examples=25)
settings.register_profile("all", STEADY, max_examples=100)


def pytest_configure(config: pytest.Config) -> None:
    """Try all examples of a property with `-m long`, and a sample of them otherwise (see tests/support/examples.py)."""
    settings.load_profile("all" if config.option.markexpr == "long" else "sample")


#: The folders whose tests say what holds on every supported version of PostgreSQL.
CONTRACTS = ("tests/invariants", "tests/store")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark contracts that use the shared PostgreSQL for `-m contract`, and properties of which `-m long` tries more."""
    tries_all = settings.get_current_profile_name() == "all"
    for item in items:
        if tries_all and getattr(getattr(item, "function", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.long)
        inside = any(item.path.is_relative_to(config.rootpath / folder) for folder in CONTRACTS)
        if inside and "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.contract)


@pytest.fixture(scope="session")
def server() -> Iterator[TestServer]:
    """The PostgreSQL that all tests share."""
    with shared_server() as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def _settled_memory() -> None:
    """What earlier modules have left is not gone through by every later collection: there is a lot of it."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set for their own Tidemill is none of a test's business."""
    for field in msgspec.structs.fields(Settings):
        monkeypatch.delenv(f"TIDEMILL_{field.name.upper()}", raising=False)


@pytest.fixture
def database_url(server: TestServer) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture(scope="module")
def module_database_url(server: TestServer) -> Iterator[str]:
    """The URL of a migrated database that the tests of one file share."""
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def empty_database_url(server: TestServer) -> Iterator[str]:
    """The URL of a fresh database without a schema."""
    url = server.create(migrated=False)
    yield url
    server.drop(url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The fresh database, opened."""
    async with Database(DatabaseSettings(url=database_url), label="test") as opened:
        yield opened


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    """An application on the fresh database, with no tasks yet."""
    app = App("test", database_url=database_url, grace_seconds=5, **PATIENT)
    yield app
    await app.close()
    app.close_sync()


@pytest.fixture
async def executions(database: Database) -> Database:
    """The fresh database with the tables that the tasks of `tests.support.task_app` write to."""
    await database.run(lambda connection: connection.execute(TABLES))
    return database


@pytest.fixture(scope="session")
def external() -> Iterator[External]:
    """Debian's PostgreSQL on a loopback port, with a password; shared by the tests that need it."""
    with external_server() as server:
        yield server


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A broker that is started for the tests of one file."""
    require_kafka()
    broker = Kafka()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    require_nats()
    broker = Nats()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    require_redis()
    broker = Redis()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of one file: while it is there, nothing else in this process can run an event loop."""
    from tests.support.console import open_browser

    with open_browser() as browser:
        yield browser
