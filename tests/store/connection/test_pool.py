"""The pool opens few connections: one that is given back soon is used in place of a new one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from tests.support import eventually, value
from tests.support.cli import PATIENCE
from tidemill.store.connection import pool as pools
from tidemill.store.connection.pool import Pool
from tidemill.store.database import Database


def pool_of(database: Database) -> Pool:
    pool = database._pool
    assert pool is not None
    return pool


def size_of(database: Database) -> int:
    return pool_of(database).size


async def test_a_connection_that_is_given_back_is_used_in_place_of_a_second(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_of(database), "opening_seconds", PATIENCE)
    async with database.acquire() as first:
        assert await first.fetchval("SELECT 1") == 1
        second = asyncio.create_task(database.fetchrow("SELECT 2"))
        await asyncio.sleep(0)
        assert not second.done()
    assert tuple(await second or ()) == (2,)
    assert size_of(database) == 1


async def test_connections_of_a_burst_are_closed_while_others_are_in_use(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = asyncio.Barrier(4)

    async def work() -> None:
        async with database.acquire():
            await together.wait()

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(work() for _ in range(4)))
        monkeypatch.setattr(pools, "SPARE_SECONDS", 0)
        assert size_of(database) > 1
        while size_of(database) > 1:
            assert tuple(await database.fetchrow("SELECT 1") or ()) == (1,)
    assert tuple(await database.fetchrow("SELECT 1") or ()) == (1,)


async def test_work_that_keeps_its_connections_gets_as_many_as_it_needs(database: Database) -> None:
    together = asyncio.Barrier(6)

    async def work() -> int | None:
        async with database.transaction() as connection, asyncio.timeout(PATIENCE):
            await together.wait()
            return await connection.fetchval("SELECT 1")

    assert await asyncio.gather(*(work() for _ in range(6))) == [1] * 6


async def test_calls_that_wait_together_open_one_connection_at_a_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SHORTEST_OPENING", 0.5)
    monkeypatch.setattr(pools, "LONGEST_OPENING", 0.5)
    together = asyncio.Event()
    working: list[int] = []

    async def work(number: int) -> None:
        async with database.acquire():
            working.append(number)
            if len(working) == 3:
                together.set()
            await together.wait()

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(work(number) for number in range(8)))
    assert len(working) == 8
    assert size_of(database) == 3


async def test_a_call_that_is_cancelled_leaves_its_turn_to_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_of(database), "opening_seconds", 10 * PATIENCE)
    async with database.acquire():
        second = asyncio.create_task(database.fetchrow("SELECT 2"))
        third = asyncio.create_task(database.fetchrow("SELECT 3"))
        await asyncio.sleep(0)
    second.cancel()  # In the moment in which it was given the connection.
    async with asyncio.timeout(PATIENCE):
        assert tuple(await third or ()) == (3,)


async def test_a_statement_that_was_parsed_and_not_executed_leaves_no_transaction_open(database: Database) -> None:
    async def wrong_argument() -> None:
        with pytest.raises(asyncpg.DataError):
            await database.fetch("SELECT state FROM tidemill.run WHERE id = $1", "seven")  # It has no such type.

    async def cancel_between_the_two() -> None:
        async with database.acquire() as connection:
            prepared = await connection.prepare("SELECT state FROM tidemill.run WHERE id = $1")
            raise asyncio.CancelledError(prepared)

    for leave_open in (wrong_argument, cancel_between_the_two):
        with suppress(asyncio.CancelledError):
            await leave_open()
        async with database.transaction() as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert await value(database, "SELECT count(*) FROM pg_locks WHERE relation = 'tidemill.run'::regclass") == 0
        assert size_of(database) == 1


async def test_a_statement_that_is_cancelled_has_ended_when_its_connection_is_used_again(database: Database) -> None:
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
    async with Database(database.settings) as other:
        cancelled = asyncio.create_task(other.fetch("SELECT pg_sleep(600)"))
        await eventually(lambda: value(database, sleeping))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        async with asyncio.timeout(PATIENCE):
            assert await value(other, "SELECT 2") == 2
        assert await value(database, sleeping) == 0
        assert size_of(other) == 1
