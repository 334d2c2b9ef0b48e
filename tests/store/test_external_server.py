"""A server of one's own, by URL: a round trip, and the mistakes one can make."""

from __future__ import annotations

import asyncio
import traceback

import psycopg
import pytest

from tests.support import running_maintenance, running_scheduler, running_worker
from tests.support.external import PASSWORD, External
from tests.support.ports import free_port
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.errors import StoreError
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import applied_version


@pytest.fixture
def url(external: External) -> str:
    """A fresh database on the external server."""
    with psycopg.connect(external.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS round_trip WITH (FORCE)")
        connection.execute("CREATE DATABASE round_trip")
    return external.url("round_trip")


async def test_the_same_program_runs_on_a_server_of_ones_own(url: str) -> None:
    app = App("shop", database_url=url, **PATIENT)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(every=0.1)
    async def tick() -> str:
        return "tock"

    async with running_maintenance(app), running_worker(app), running_scheduler(app):
        assert (await app.wait(await app.enqueue(double, 21), timeout=150)).result == 42
        refs = await app.enqueue_many(double, ({"n": n} for n in range(500)))
        assert (await app.wait(refs[-1], timeout=150)).result == 998
        plain = await asyncio.to_thread(app.enqueue_sync, double, 4)
        assert (await app.wait(plain, timeout=120)).result == 8
    await app.close()
    await asyncio.to_thread(app.close_sync)
    async with Database(DatabaseSettings(url=url)) as database:
        assert await applied_version(database) > 0


async def assert_refused(url: str, *named: str) -> None:
    database = Database(DatabaseSettings(url=url))
    with pytest.raises(StoreError) as caught:
        await database.open(patience=0.3)
    await database.close()
    for text in named:
        assert text in str(caught.value)
    told = "".join(traceback.format_exception_only(caught.value))
    assert PASSWORD not in told
    assert "wrong" not in told or "password" in told


async def test_a_wrong_password_is_said_at_once(external: External) -> None:
    await assert_refused(external.url(password="wrong"), "refused the login", "shop")


async def test_an_unknown_database_is_named(external: External) -> None:
    await assert_refused(external.url("no_such_database"), "no_such_database", "create it, or check the database URL")


async def test_a_port_where_nobody_listens_is_named(external: External) -> None:
    port = free_port()
    await assert_refused(external.url(port=port), f"127.0.0.1:{port}/postgres", "does not answer")


async def test_a_host_that_does_not_exist_is_named() -> None:
    await assert_refused("postgresql://shop@no-such-host.invalid/shop", "no-such-host.invalid:5432/shop")


async def test_an_address_that_is_not_postgresql_is_named(external: External) -> None:
    async def shut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(shut, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await assert_refused(external.url(port=port), f"127.0.0.1:{port}")
    server.close()


async def test_a_user_who_may_not_make_the_schema_is_told(external: External, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        connection.execute("REVOKE CREATE ON DATABASE round_trip FROM PUBLIC")
    app = App("guest", database_url=f"postgresql://guest:guest@127.0.0.1:{external.port}/round_trip")
    with pytest.raises(StoreError, match="permission denied"):
        async with running_maintenance(app):
            pass
