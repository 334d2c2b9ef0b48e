"""Threads of plain functions: those that do not come back are replaced, counted and named."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.waiting import PATIENCE, eventually, turns
from tidemill.engine.worker.threads import WorkThreads


async def test_functions_that_hang_take_no_thread_from_others() -> None:
    threads, may_end = WorkThreads(2, "test"), threading.Event()
    try:
        for _ in range(5):
            with pytest.raises(TimeoutError, match=r"hangs took longer than 0\.05 s"):
                await threads.run(may_end.wait, "hangs", 0.05)
        assert threads.lost == ["hangs"] * 5
        assert await threads.run(lambda: 42, "quick", 5.0) == 42
    finally:
        may_end.set()
    await eventually(lambda: threads.lost == [])
    threads.close()


async def test_a_timeout_begins_when_there_is_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, first_may_end, second_may_end = WorkThreads(1, "test"), threading.Event(), threading.Event()
    first = asyncio.create_task(threads.run(first_may_end.wait, "first"))
    begun = threading.Event()
    second = asyncio.create_task(threads.run(lambda: begun.set() or second_may_end.wait(), "second", 900.0))
    await turns()
    loop = asyncio.get_running_loop()
    now, later = loop.time, 1_000.0
    monkeypatch.setattr(loop, "time", lambda: now() + later)  # Longer than the timeout has passed.
    await turns()
    assert not second.done()
    first_may_end.set()
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    await turns()
    assert not second.done()
    second_may_end.set()
    assert (await first, await second) == (True, True)
    threads.close()


async def test_a_pool_says_when_it_has_lost_as_many_threads_as_it_has() -> None:
    said: list[bool] = []
    threads, may_end = WorkThreads(2, "test", lambda: said.append(True)), threading.Event()
    for n in range(1, 4):
        with pytest.raises(TimeoutError):
            await threads.run(may_end.wait, "hangs", 0.02)
        assert len(said) == (n >= 2)
    may_end.set()
    threads.close()


async def test_a_call_that_is_cancelled_before_it_begins_is_not_lost() -> None:
    threads, may_end = WorkThreads(1, "test"), threading.Event()
    first = asyncio.create_task(threads.run(may_end.wait, "first"))
    waiting = asyncio.create_task(threads.run(lambda: None, "waiting"))
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert threads.lost == []
    may_end.set()
    await first
    threads.close()


async def test_an_exception_is_passed_on_and_a_stop_iteration_does_not_hang() -> None:
    threads = WorkThreads(1, "test")
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0, "fails")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(lambda: next(iter(())), "ends")
    threads.close()
