"""Time in which the event loop is blocked counts against the work that blocks it, and not against its neighbours."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from tidemill.engine.containment.blocked_time import TimeLimit, watch_stalls
from tidemill.engine.worker.threads import WorkThreads


@pytest.fixture(autouse=True)
async def watched() -> None:
    watch_stalls(asyncio.get_running_loop())


async def limited(seconds: float, slices: int, slice: float = 0.1) -> str:
    """Work that yields all the time and takes less than its limit."""
    async with TimeLimit(seconds):
        for _ in range(slices):
            await asyncio.sleep(slice)
    return "done"


async def block(after: float, seconds: float) -> None:
    await asyncio.sleep(after)
    time.sleep(seconds)


async def test_work_is_not_timed_out_for_the_time_in_which_other_work_blocks_the_loop() -> None:
    done, _ = await asyncio.gather(limited(1.5, 5), block(0.2, 3.0))
    assert done == "done"


async def test_several_stalls_in_a_row_are_all_taken_into_account() -> None:
    blocks = [block(0.2, 0.8), block(1.4, 0.8), block(2.8, 0.8)]
    done, *_ = await asyncio.gather(limited(1.5, 5), *blocks)
    assert done == "done"


async def test_a_call_in_a_thread_that_returns_while_the_loop_is_blocked_has_not_timed_out() -> None:
    threads = WorkThreads(1, "test")
    try:
        call = threads.run(partial(time.sleep, 0.5), "a call", 1.0)
        await asyncio.gather(call, block(0.2, 3.0))
        assert threads.lost == []
    finally:
        threads.close()


async def test_work_that_waits_for_longer_than_its_limit_is_timed_out() -> None:
    with pytest.raises(TimeoutError):
        await limited(0.2, 100)


async def test_work_that_blocks_the_loop_itself_again_and_again_is_timed_out() -> None:
    rounds = 0

    async def hog() -> None:
        nonlocal rounds
        async with TimeLimit(1.0):
            while rounds < 40:
                rounds += 1
                time.sleep(0.6)
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await hog()
    assert rounds < 20, "what it blocks counts against it"


async def test_work_that_ends_in_time_leaves_no_timer_behind() -> None:
    assert await limited(0.3, 1) == "done"
    await asyncio.sleep(0.5)  # Its limit would cancel this task now.
