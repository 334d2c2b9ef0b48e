"""Time in which an event loop did not turn counts against the work that blocked it, and not against its neighbours.

A thread outside of the loop (the watchdog's, or `watch_stalls`) asks the loop to turn, repeatedly, and counts how
long it does not. `BlockedTime` is how much of that other work is to blame for; `TimeLimit` is a timeout that is
extended by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

STALL_SECONDS = 0.25
"""A loop that turns later than this has stalled: less is the work of an ordinary iteration."""
LONGEST_CHECK = 0.5
"""For how long one check may blame what it finds: if it comes later, the process was suspended."""
CHECK_SECONDS = 0.1
LOOK_FOR_END = 10.0
"""How often a thread that counts nothing looks whether its loop is closed."""
CANCEL_SECONDS = 5.0
"""Within which work that was cancelled at its limit has to end."""


class LoopStalls:
    """For how long one event loop has not turned, all in all, and by which task of it."""

    def __init__(self) -> None:
        self.is_waiting = False
        """Whether the loop was asked to turn and has not yet."""
        self.loop_thread: int | None = None
        self.has_limits = threading.Event()
        """Set while work with a time limit runs: else there is nothing to count for."""
        self._limits = 0
        self._seconds = 0.0
        self._by_task: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()
        self._asked_at = 0.0
        self._counted_until = 0.0
        self._lock = threading.Lock()

    def limit_begins(self) -> None:
        if not self._limits:
            self.has_limits.set()
        self._limits += 1

    def limit_ends(self) -> None:
        self._limits -= 1
        if not self._limits:
            self.has_limits.clear()

    def ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the loop to turn, in another thread."""
        with self._lock:
            if self.is_waiting:
                return
            self.is_waiting, self._asked_at = True, time.monotonic()
        loop.call_soon_threadsafe(self.turned)

    def blame(self, task: asyncio.Task[Any] | None, blamed_until: float) -> float:
        """Count a stall against the work of a task, in another thread; returns until when that was done."""
        with self._lock:
            now = time.monotonic()
            if not self.is_waiting or now - self._asked_at < STALL_SECONDS:
                return blamed_until
            self._count(self._asked_at, now)
            seconds = now - max(self._asked_at, blamed_until)
            if task is not None and seconds <= LONGEST_CHECK:
                self._by_task[task] = self._by_task.get(task, 0.0) + seconds
            return now

    def turned(self, due_at: float | None = None) -> None:
        """Note that the loop turns now, on the loop. `due_at` is when it should have."""
        with self._lock:
            now = time.monotonic()
            since = self._asked_at if self.is_waiting else now
            self._count(since if due_at is None else min(since, due_at), now)
            self.is_waiting = False
            self.loop_thread = threading.get_ident()

    def by_others(self, task: asyncio.Task[Any] | None) -> float:
        """How long the loop has been blocked so far by other work than that of a task."""
        return self._seconds - (self._by_task.get(task, 0.0) if task is not None and self._by_task else 0.0)

    def _count(self, since: float, now: float) -> None:
        if now - since >= STALL_SECONDS:
            self._seconds += max(0.0, now - max(since, self._counted_until))
            self._counted_until = now


_stalls: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopStalls] = WeakKeyDictionary()


def stalls_of(loop: asyncio.AbstractEventLoop) -> LoopStalls:
    """What is known of the stalls of an event loop."""
    found = _stalls.get(loop)
    return _stalls.setdefault(loop, LoopStalls()) if found is None else found


def watch_stalls(loop: asyncio.AbstractEventLoop) -> None:
    """Count the stalls of a loop that has no watchdog while it has time limits, until it is closed."""
    stalls = stalls_of(loop)

    def watch() -> None:
        blamed_until = 0.0
        while not loop.is_closed():
            if not stalls.has_limits.wait(LOOK_FOR_END):
                continue
            blamed_until = stalls.blame(asyncio.current_task(loop), blamed_until)
            with contextlib.suppress(RuntimeError):  # The loop has just been closed.
                stalls.ask(loop)
            time.sleep(CHECK_SECONDS)

    threading.Thread(target=watch, name="tidemill-stalls", daemon=True).start()


class BlockedTime:
    """How long other work has blocked the event loop since a piece of work began. May be read in any thread."""

    __slots__ = ("_before", "_task", "stalls")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        """A piece of work that this task runs; by default the current one."""
        self._task = asyncio.current_task() if task is None else task
        self.stalls = stalls_of(asyncio.get_running_loop())
        self._before = self.stalls.by_others(self._task)

    @property
    def seconds(self) -> float:
        return self.stalls.by_others(self._task) - self._before

    def turned(self, late: float) -> None:
        """Note on the loop that it runs again now, this many seconds late."""
        self.stalls.turned(time.monotonic() - late)


class TimeLimit:
    """`asyncio.timeout` for a piece of work: time in which other work blocks the event loop does not count.

    async with TimeLimit(8.0) as limit:    # an `asyncio.Timeout`
        await work

    `on_ignored` is called when the work has not ended 5 s after its limit cancelled it. Time between `pause` and
    `resume` does not count either.
    """

    __slots__ = (
        "_blocked", "_context", "_due_at", "_ends_at", "_loop", "_on_ignored", "_paused_at", "_pauses", "_seconds",
        "_timeout", "_timer",
    )  # fmt: skip

    def __init__(self, seconds: float | None, on_ignored: Callable[[], None] | None = None) -> None:
        self._seconds = seconds
        self._on_ignored = on_ignored
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._paused_at = 0.0

    async def __aenter__(self) -> asyncio.Timeout:
        await self._timeout.__aenter__()
        if self._seconds is not None:
            self._loop = asyncio.get_running_loop()
            self._blocked = BlockedTime()
            self._blocked.stalls.limit_begins()
            self._context = copy_context()  # Other work may resume it.
            self._ends_at = self._loop.time() + self._seconds
            self._wait_until(self._ends_at)
        return self._timeout

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._blocked.stalls.limit_ends()
        return await self._timeout.__aexit__(kind, error, trace)

    def pause(self) -> None:
        """Stop the clock, as often as it is resumed afterwards: the work waits for other work."""
        self._pauses += 1
        if self._pauses == 1 and self._timer is not None and not self._timeout.expired():
            self._paused_at = self._loop.time()
            self._timer.cancel()

    def resume(self) -> None:
        """Start the clock again."""
        self._pauses -= 1
        if self._pauses == 0 and self._timer is not None and not self._timeout.expired():
            self._ends_at += self._loop.time() - self._paused_at
            self._wait_until(self._ends_at + self._blocked.seconds)

    def _wait_until(self, due_at: float) -> None:
        self._due_at = due_at
        self._timer = self._loop.call_at(due_at, self._check, context=self._context)

    def _check(self) -> None:
        now = self._loop.time()
        self._blocked.turned(now - self._due_at)  # The loop comes here before it notes that it turns again.
        ends_at = self._ends_at + self._blocked.seconds
        if ends_at > now:
            self._wait_until(ends_at)
        elif not self._timeout.expired():
            self._timeout.reschedule(now)
            if self._on_ignored is not None:
                self._ends_at = now + CANCEL_SECONDS - self._blocked.seconds
                self._wait_until(now + CANCEL_SECONDS)
        elif self._on_ignored is not None:
            self._on_ignored()
