"""A server that is read-only is treated as one that is away: everything waits, connects again, and goes on."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest
from psycopg import sql

from tests.support.external import External, standby_of
from tests.support.shop import Ask, Go, shop
from tidemill import App
from tidemill.core.errors import StoreError
from tidemill.store.connection.url import to_any
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate


async def work_through(app: App) -> None:
    """A job and a run from beginning to end."""
    async with app.running():
        run = await app.start(Ask)
        assert await (await app.enqueue("double", number=21)) == 42
        await run.send_event(Go(answer=7))
        assert await run == 7


async def test_work_that_is_sent_to_a_standby_waits_until_it_is_promoted(external: External) -> None:
    with psycopg.connect(external.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE failed_over")
    async with Database(DatabaseSettings(url=external.url("failed_over"), application="shop")) as primary:
        await migrate(primary)
    with standby_of(external) as standby:
        url = standby.url("failed_over")
        with pytest.raises(StoreError, match=r"does not answer \(it is read-only: a standby"):
            await Database(DatabaseSettings(url=url)).open(patience=0.1)
        async with Database(DatabaseSettings(url=to_any(url))) as reading:
            assert await reading.fetch("SELECT pg_is_in_recovery()") == [(True,)]
        app = shop(url)
        working = asyncio.create_task(work_through(app))
        enqueueing = asyncio.create_task(shop(url).enqueue("double", number=1))
        await asyncio.to_thread(standby.promote)
        await working
        assert (await enqueueing).id > 0
        await app.close()


async def test_everything_goes_on_when_a_read_only_database_can_be_written_to_again(
    app: App, database: Database, database_url: str
) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    app.workflow(Ask)
    async with app.running():
        run = await app.start(Ask)
        assert await (await app.enqueue(double.call(number=1))) == 2
        with psycopg.connect(database_url, autocommit=True) as admin:
            name = admin.info.dbname
            closing = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
            admin.execute(closing.format(sql.Identifier(name)))
            ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND pid <> %s"
            admin.execute(ended, (name, admin.info.backend_pid))
            enqueueing = asyncio.create_task(app.enqueue(double.call(number=2)))
            sending = asyncio.create_task(run.send_event(Go(answer=7)))
            with pytest.raises(StoreError, match="it is read-only"):  # Meanwhile the others have tried, too.
                await Database(DatabaseSettings(url=database_url)).open(patience=0.1)
            opening = sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only")
            admin.execute(opening.format(sql.Identifier(name)))
        assert await (await enqueueing) == 4
        await sending
        assert await run == 7


async def test_a_pooled_connection_to_a_read_only_server_is_not_used_again(database: Database) -> None:
    writing = "INSERT INTO tidemill.inbox (run_id, data) VALUES (99, '{}')"
    async with database.acquire() as connection:
        await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        async with database.transaction() as connection:
            await connection.execute(writing)
    async with database.transaction() as connection:
        await connection.execute(writing)
