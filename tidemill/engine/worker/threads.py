"""Runs plain functions in threads and passes on every way they can end.

A future cannot carry a `StopIteration` from a thread: the waiting code would hang.

A thread cannot be stopped: a function that hangs keeps its thread after its timeout. `WorkThreads` writes such a thread
off, starts another in its place, and says so, because the function may overlap with its own retry.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any
from weakref import WeakSet

import structlog

from tidemill.engine.containment.blocked_time import TimeLimit

log = structlog.get_logger("tidemill.threads")

MOST_NAMED = 2  # One line of `tidemill workers` has other remarks beside them.
STEP_THREADS = 32
"""How many plain steps run at once in a process."""


def caught(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call a function; returns its result or the exception that it raised."""
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - raised again in the waiting code
        return None, error


async def in_thread(call: Callable[[], Any]) -> Any:
    """Call in a thread with the caller's context variables; returns or raises what the call did."""
    context = copy_context()
    result, error = await asyncio.get_running_loop().run_in_executor(None, lambda: context.run(caught, call))
    if error is not None:
        raise error
    return result


_pools: WeakSet[WorkThreads] = WeakSet()


def lost_threads() -> list[str]:
    """What runs in the threads of this process that did not come back."""
    return sorted(call for pool in list(_pools) for call in pool.lost)


def lost_threads_text(lost: Sequence[str]) -> str | None:
    """The same for people, if there is any."""
    if not lost:
        return None
    named = sorted(set(lost))[:MOST_NAMED]
    more = ["…"] if len(set(lost)) > len(named) else []
    number = f"{len(lost)} threads have" if len(lost) > 1 else "1 thread has"
    return f"{number} not come back: {', '.join([*named, *more])}"


class _Call:
    """A call in a thread: whether it has begun and was given up, and what it returned or raised."""

    __slots__ = ("ended", "given_up", "has_begun", "lock", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.has_begun = self.given_up = False
        self.ended: tuple[Any, BaseException | None] | None = None
        self.lock = threading.Lock()


class WorkThreads:
    """A pool of threads for the plain functions of one place. Threads that do not come back are replaced.

    `on_exhausted` is called when `most_lost` threads are lost, by default as many as the pool has: the process should
    be replaced.
    """

    def __init__(
        self, size: int, name: str, on_exhausted: Callable[[], None] = lambda: None, most_lost: int | None = None
    ) -> None:
        self.size = size
        self._most_lost = most_lost or size
        self._name = name
        self.on_exhausted = on_exhausted
        self._executor = ThreadPoolExecutor(size, thread_name_prefix=name)
        self._lost: set[_Call] = set()
        _pools.add(self)

    @property
    def lost(self) -> list[str]:
        """What runs in the threads that did not come back."""
        return sorted(call.what for call in self._lost)

    async def run(
        self,
        call: Callable[[], Any],
        what: str,
        timeout: float | None = None,
        on_begin: Sequence[Callable[[], None]] = (),
    ) -> Any:
        """Call in a thread with the caller's context variables; returns or raises what the call did.

        The timeout begins when there is a thread for it, and `on_begin` is called then. Raises `TimeoutError`.
        """
        loop, context, mine, begun = asyncio.get_running_loop(), copy_context(), _Call(what), asyncio.Event()

        def body() -> None:
            mine.has_begun = True
            if timeout is not None:
                loop.call_soon_threadsafe(begun.set)
            for each in on_begin:
                loop.call_soon_threadsafe(each)
            ended = context.run(caught, call)
            with mine.lock:
                mine.ended = ended
            if mine.given_up:
                loop.call_soon_threadsafe(self._came_back, mine)

        future = loop.run_in_executor(self._executor, body)
        try:
            if timeout is not None:
                await begun.wait()
            async with TimeLimit(timeout):
                await future
        except BaseException as error:
            future.cancel()
            self._give_up(mine)
            if not isinstance(error, TimeoutError):
                raise
        if mine.ended is None or mine.given_up:
            raise TimeoutError(f"{what} took longer than {timeout:g} s")
        result, error = mine.ended  # Also when a busy event loop learns of it after the timeout.
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Start no more calls."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _give_up(self, call: _Call) -> None:
        """Replace the thread of a call that was cancelled or timed out and has not ended."""
        with call.lock:
            if call.ended is not None or not call.has_begun:
                return
            call.given_up = True
        self._lost.add(call)
        log.warning("a thread did not come back in time: it may overlap with a retry", call=call.what, pool=self._name)
        self._executor._max_workers += 1
        self._executor._adjust_thread_count()
        if len(self._lost) == self._most_lost:
            log.error("THREADS LOST: too many", pool=self._name, calls=self.lost)
            self.on_exhausted()

    def _came_back(self, call: _Call) -> None:
        self._lost.discard(call)
        self._executor._max_workers -= 1
