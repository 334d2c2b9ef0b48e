"""Turns at the server's connections: the first request goes first, and none is lost with one that gives up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.server.fair_pool import ASKED_AT, FairDatabase
from tidemill.store.database import DatabaseSettings, Executor

WITHIN = 60.0


class Line:
    """Those who ask a server's database with one connection."""

    def __init__(self, database: FairDatabase) -> None:
        self.database = database
        self.served: list[str] = []
        self._asking: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def held(self, leaving: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """While the connection is taken, those who ask queue; then `leaving` is done, and they are served."""
        taken, let_go = asyncio.Event(), asyncio.Event()

        async def hold(_: Executor) -> None:
            taken.set()
            await let_go.wait()

        async def leave() -> None:
            await self.database.run(hold)
            leaving()

        holding = asyncio.create_task(leave())
        await taken.wait()
        yield
        let_go.set()
        async with asyncio.timeout(WITHIN):
            await holding

    async def ask(self, name: str, *, asked_at: float = 0.0) -> None:
        """Queue a caller, for a request that came then."""

        async def ask() -> None:
            ASKED_AT.set(asked_at)
            await self.database.fetch("SELECT 1")
            self.served.append(name)

        self._asking[name] = asyncio.create_task(ask())
        await asyncio.sleep(0)

    def give_up(self, name: str) -> None:
        self._asking.pop(name).cancel()

    async def end(self) -> list[str]:
        """Who was served, in this order, once all have been."""
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(*self._asking.values())
        return self.served


@pytest.fixture
async def line(database_url: str) -> AsyncIterator[Line]:
    async with FairDatabase(DatabaseSettings(url=database_url, pool_size=1), label="test server") as database:
        yield Line(database)  # pyright: ignore[reportArgumentType] - `open` gives itself


async def test_a_request_that_asks_once_more_goes_before_those_that_came_after_it(line: Line) -> None:
    now = time.monotonic()
    async with line.held():
        await line.ask("came later", asked_at=now + 1000)
        await line.ask("came still later", asked_at=now + 2000)
        await line.ask("came first", asked_at=now - 1)
    assert await line.end() == ["came first", "came later", "came still later"]


async def test_a_stream_that_was_asked_for_long_ago_does_not_come_first_for_ever(line: Line) -> None:
    now = time.monotonic()
    async with line.held():
        await line.ask("waits for a minute", asked_at=now - 60)
        await line.ask("streams since yesterday", asked_at=now - 86_400)
    assert await line.end() == ["waits for a minute", "streams since yesterday"]


async def test_a_turn_is_not_lost_with_a_caller_that_gives_up(line: Line) -> None:
    async with line.held(leaving=lambda: line.give_up("is called, and gives up at that moment")):
        for name in ("is called, and gives up at that moment", "gives up", "stays"):
            await line.ask(name)
        line.give_up("gives up")
    assert await line.end() == ["stays"]
    await line.ask("comes then")
    assert await line.end() == ["stays", "comes then"]


@pytest.mark.parametrize("ill", ["SELECT pg_terminate_backend(pg_backend_pid())", "BEGIN; SELECT 1 / 0"])
async def test_the_caller_after_one_that_failed_has_a_good_connection(line: Line, ill: str) -> None:
    tried = 0

    async def fail(connection: Executor) -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            await connection.execute(ill)

    async def look(connection: Executor) -> Any:
        return await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL AND $1", True)

    async with line.held():
        asking: list[Awaitable[Any]] = [asyncio.create_task(line.database.run(work)) for work in (fail, look, look)]
    async with asyncio.timeout(WITHIN):
        _, *seen = await asyncio.gather(*asking, return_exceptions=True)
    assert seen == [True, True]
    async with line.database.acquire() as connection:
        assert not connection.is_in_transaction()


async def test_a_transaction_has_its_turn_though_others_ask_all_the_time(line: Line) -> None:
    written = asyncio.Event()

    async def read() -> None:
        while not written.is_set():
            await line.database.fetch("SELECT 1")

    reading = [asyncio.create_task(read()) for _ in range(3)]
    async with asyncio.timeout(WITHIN), line.database.transaction() as connection:
        assert await connection.fetchval("SELECT 1") == 1
    written.set()
    async with asyncio.timeout(WITHIN):
        await asyncio.gather(*reading)
    await line.ask("comes then")
    assert await line.end() == ["comes then"]
