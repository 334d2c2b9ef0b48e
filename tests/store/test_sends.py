"""Ticks that a process sends at the same time are stored together, each once and in order."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import eventually
from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database
from tidemill.store.runs.inbox import send_to_run
from tidemill.store.runs.runs import start_run

INBOX = "SELECT run_id, data FROM tidemill.inbox ORDER BY id"


async def runs(database: Database, count: int) -> list[int]:
    return [(await start_run(database, workflow="W", version="1", input=b"{}"))[0] for _ in range(count)]


def tick(number: int) -> bytes:
    return b'{"kind":"received","n":%d}' % number


async def inbox(database: Database) -> list[tuple[int, bytes]]:
    return [(row["run_id"], bytes(row["data"])) for row in await database.fetch(INBOX)]


async def test_what_is_sent_at_once_arrives_once_and_in_order(database: Database) -> None:
    one, other = await runs(database, 2)
    await asyncio.gather(*(send_to_run(database, (one, other)[n % 2], tick(n)) for n in range(100)))
    arrived = await inbox(database)
    assert sorted(data for _, data in arrived) == sorted(tick(n) for n in range(100))
    assert [data for number, data in arrived if number == other] == [tick(n) for n in range(1, 100, 2)]


async def test_runs_are_woken_by_what_is_sent_to_them_together(database: Database) -> None:
    numbers = await runs(database, 3)
    await database.fetch("UPDATE tidemill.run SET awake = false")
    await asyncio.gather(*(send_to_run(database, number, tick(1)) for number in numbers))
    assert await database.fetch("SELECT id FROM tidemill.run WHERE NOT awake") == []


async def test_a_locked_run_does_not_hold_back_what_is_sent_to_others(database: Database) -> None:
    locked, *others = await runs(database, 5)
    async with database.transaction() as holder:
        await holder.fetch(database.sql("SELECT FROM tidemill.run WHERE id = $1 FOR UPDATE"), locked)
        waiting = [asyncio.create_task(send_to_run(database, number, tick(1))) for number in (locked, *others)]

        async def have_arrived() -> bool:
            return {number for number, _ in await inbox(database)} == set(others)

        await eventually(have_arrived)
    await asyncio.gather(*waiting)
    assert sorted(number for number, _ in await inbox(database)) == sorted([locked, *others])


async def test_a_run_that_has_ended_refuses_and_the_others_receive(database: Database) -> None:
    ended, *others = await runs(database, 4)
    await database.fetch("UPDATE tidemill.run SET state = 'succeeded', ended_at = now() WHERE id = $1", ended)
    results = await asyncio.gather(
        *(send_to_run(database, number, tick(1)) for number in (ended, *others)), return_exceptions=True
    )
    assert isinstance(results[0], NotFoundError)
    assert results[1:] == [None] * len(others)
    assert sorted(number for number, _ in await inbox(database)) == sorted(others)


async def test_a_tick_that_is_refused_fails_alone(database: Database) -> None:
    numbers = await runs(database, 3)
    bad, *good = (send_to_run(database, n, data) for n, data in zip(numbers, (b"{", tick(1), tick(2)), strict=True))
    results = await asyncio.gather(bad, *good, return_exceptions=True)
    assert isinstance(results[0], Exception)
    assert results[1:] == [None, None]
    with pytest.raises(NotFoundError):
        await send_to_run(database, max(numbers) + 1, tick(1))
