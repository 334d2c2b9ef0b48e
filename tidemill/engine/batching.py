"""Micro-batches: calls that arrive within a short time are combined into one, for tasks of streams and for jobs.

`Batched` can be used by itself, for a model that several plans share:

    embed = Batched(model.encode, max_size=32, max_wait="5ms")
    ...
    vector = await embed(text)                  # in any task of any plan

The function gets a list and returns a list of the same length; an exception in that list fails one call. When the
function raises, it is called again with each half, until the items are found that make it raise: only these fail.
`RetryAfter`, `Snooze` and errors of the network (`OSError`, which includes timeouts) are not the fault of an item and
fail all. A plain function runs in a thread. A call that does not end when all of its callers have given up is written
off, and the next one begins.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.retry import RetryAfter, Snooze
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS
from tidemill.engine.worker.threads import WorkThreads

#: Errors that say nothing about a single item.
_OF_ALL = (RetryAfter, Snooze, OSError, PayloadError)


class BatchEntry(NamedTuple):
    """An item that waits for a call."""

    item: Any
    answer: asyncio.Future[Any]
    due_at: float
    alone: bool
    on_begin: Callable[[], None] | None


class Batch(msgspec.Struct, frozen=True):
    """Call a task with several messages or jobs at once: up to `max_size`, waiting at most `max_wait` for more."""

    max_size: int = 32
    max_wait: Duration = 0.005
    max_concurrency: int = 1
    """How many such calls may run at once."""

    def __post_init__(self) -> None:
        if self.max_size < 1 or self.max_concurrency < 1:
            raise ConfigError("batch max_size and max_concurrency: at least 1 is needed to do anything")
        msgspec.structs.force_setattr(self, "max_wait", parse_duration(self.max_wait, what="batch max_wait"))


class Batched:
    """Combines single calls into batches."""

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        *,
        max_size: int = 32,
        max_wait: Duration = 0.005,
        max_concurrency: int = 1,
        name: str = "",
        threads: WorkThreads | None = None,
        on_ignored: Callable[[str], None] | None = None,
    ) -> None:
        """`on_ignored` is told the name when a call has not ended 5 s after all of its callers were cancelled."""
        self._function = function
        self._threaded = not inspect.iscoroutinefunction(function)
        self._max_size = max_size
        self._max_wait = parse_duration(max_wait, what="max_wait")
        self._free = max_concurrency
        self._name = name or getattr(function, "__name__", "batch")
        self._threads = threads or WorkThreads(max_concurrency, f"batch-{self._name}")
        self._on_ignored = on_ignored
        self._waiting: deque[BatchEntry] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def __call__(
        self, item: Any, *, first: bool = False, alone: bool = False, on_begin: Callable[[], None] | None = None
    ) -> Any:
        """The result for one item. `first` puts it ahead of the waiting ones; `alone` gives it a call of its own.

        `on_begin` is called when its call begins.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        entry = BatchEntry(item, answer, loop.time() + self._max_wait, alone, on_begin)
        if first:
            self._waiting.appendleft(entry)
        else:
            self._waiting.append(entry)
        if len(self._waiting) >= self._max_size:
            self._begin()
        elif self._timer is None and self._free:
            self._timer = loop.call_later(self._max_wait, self._begin)
        return await answer

    def _begin_soon(self) -> None:
        """Start a call now if the batch is full, else when its first item has waited long enough."""
        if len(self._waiting) >= self._max_size:
            self._begin()
        elif self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._waiting[0].due_at, self._begin)

    def _begin(self) -> None:
        """Start as many calls as may run; other items wait for a call to end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._free and self._waiting:
            if not (entries := self._take()):
                return
            self._free -= 1
            call = asyncio.get_running_loop().create_task(self._call(entries), name=f"batch {self._name}")
            self._calls.add(call)
            call.add_done_callback(self._ended)
            for entry in entries:
                if entry.on_begin is not None:
                    entry.on_begin()
                entry.answer.add_done_callback(partial(self._left, call, entries))

    def _take(self) -> list[BatchEntry]:
        """The items of the next call."""
        entries: list[BatchEntry] = []
        while self._waiting and len(entries) < self._max_size:
            if entries and self._waiting[0].alone:
                break
            entry = self._waiting.popleft()
            if not entry.answer.done():  # The caller may have been cancelled.
                entries.append(entry)
                if entry.alone:
                    break
        return entries

    def _ended(self, call: asyncio.Task[None]) -> None:
        """A call has ended, or is written off: another may begin."""
        if call in self._calls:
            self._calls.discard(call)
            self._free += 1
            self._begin_soon()

    def _left(self, call: asyncio.Task[None], entries: list[BatchEntry], answer: asyncio.Future[Any]) -> None:
        """Give up a call when all of its callers have: one that hangs must not keep the others from theirs."""
        if answer.cancelled() and all(entry.answer.done() for entry in entries):
            call.cancel()
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._check_ended, call)

    def _check_ended(self, call: asyncio.Task[None]) -> None:
        if call in self._calls:
            if self._on_ignored is not None:
                self._on_ignored(f"batch {self._name}")
            self._ended(call)

    async def _call(self, entries: list[BatchEntry]) -> None:
        try:
            await self._run(entries)
        except BaseException:
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(asyncio.CancelledError())
            raise

    async def _run(self, entries: list[BatchEntry]) -> None:
        """Call the function; if it raises, call it with each half, until the items are found that make it raise."""
        entries = [entry for entry in entries if not entry.answer.done()]
        if not entries:
            return
        items = [entry.item for entry in entries]
        try:
            if self._threaded:
                results = await self._threads.run(partial(self._function, items), self._name)
            else:
                results = await self._function(items)
            self._answer(entries, results)
            return
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001 - it is the answer of the items
            error = raised
        if len(entries) == 1 or isinstance(error, _OF_ALL):
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        half = len(entries) // 2
        await self._run(entries[:half])
        await self._run(entries[half:])

    def _answer(self, entries: list[BatchEntry], results: Any) -> None:
        if not isinstance(results, Sequence) and not hasattr(results, "__len__"):
            results = list(results or ())
        if len(results) != len(entries):
            raise PayloadError(f"{self._name}: was given {len(entries)} items and returned {len(results)} results")
        for entry, result in zip(entries, results, strict=True):
            if entry.answer.done():
                continue
            if isinstance(result, BaseException):
                entry.answer.set_exception(result)
            else:
                entry.answer.set_result(result)
