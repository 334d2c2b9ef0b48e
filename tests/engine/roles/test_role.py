"""The life of a role: stops and wake-ups are never lost, whenever they come."""

from __future__ import annotations

import asyncio

from tidemill.engine.roles.role import Life

LONG = 3600.0


async def test_a_stop_ends_every_wait_that_follows_it() -> None:
    life = Life()
    life.stop()
    async with asyncio.timeout(150):
        assert [await life.wait(LONG) for _ in range(3)] == [False, False, False]


async def test_a_wake_up_between_two_waits_ends_the_second_one_and_no_third() -> None:
    life = Life()
    life.wake()
    async with asyncio.timeout(150):
        assert await life.wait(LONG)
    assert await life.wait(0.01)
    third = asyncio.ensure_future(life.wait(LONG))
    await asyncio.sleep(0)
    assert not third.done()
    life.stop()
    assert not await third
