"""The pool opens few connections: one that is given back soon is used in place of a new one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.support.cli import PATIENCE
from tidemill.store.connection import pool_turns
from tidemill.store.database import Database


def size_of(database: Database) -> int:
    pool = database._pool
    assert isinstance(pool, asyncpg.Pool)
    return pool.get_size()


async def test_a_connection_that_is_given_back_is_used_in_place_of_a_third(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_turns, "OPENING_SECONDS", PATIENCE)
    async with database.acquire() as first:
        assert await first.fetchval("SELECT 1") == 1
        async with database.acquire():
            third = asyncio.create_task(database.fetchrow("SELECT 3"))
            await asyncio.sleep(0)
            assert not third.done()
        assert tuple(await third or ()) == (3,)
    assert size_of(database) <= 2


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
    monkeypatch.setattr(pool_turns, "OPENING_SECONDS", 0.5)
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
    monkeypatch.setattr(pool_turns, "OPENING_SECONDS", 10 * PATIENCE)
    async with database.acquire():
        async with database.acquire():
            third = asyncio.create_task(database.fetchrow("SELECT 3"))
            fourth = asyncio.create_task(database.fetchrow("SELECT 4"))
            await asyncio.sleep(0)
        third.cancel()  # In the moment in which it was given the connection.
        async with asyncio.timeout(PATIENCE):
            assert tuple(await fourth or ()) == (4,)
