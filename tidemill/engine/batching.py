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

The next call begins before the callers of the last one continue, so a device does not wait for them. With
`max_concurrency=2` it does not wait for the preparation of a batch either.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.retry import RetryAfter, Snooze
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS
from tidemill.engine.containment.cancellation import end
from tidemill.engine.worker.threads import WorkThreads

#: Errors that say nothing about a single item.
_OF_ALL = (RetryAfter, Snooze, OSError, PayloadError)
_TIMER_SLACK = 0.001  # A timer of the event loop may fire a little early.


class BatchAnswer(Protocol):
    """Takes the result of an item: a future, or what a caller without a task puts in its place."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class BatchEntry:
    """An item that waits for a call."""

    __slots__ = ("alone", "answer", "call", "due_at", "item", "on_begin")

    def __init__(
        self, item: Any, answer: BatchAnswer, due_at: float, alone: bool, on_begin: Callable[[], None] | None
    ) -> None:
        self.item = item
        self.answer = answer
        self.due_at = due_at
        self.alone = alone
        self.on_begin = on_begin
        self.call: BatchCall | None = None


class BatchCall(NamedTuple):
    """A call that runs, with its items."""

    task: asyncio.Task[None]
    entries: list[BatchEntry]


#: What to write where a batch is asked for.
A_BATCH = "a Batch, such as Batch(32, '5ms')"


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
        on_ignored: Callable[[str], None] | None = None,
        on_exhausted: Callable[[], None] = lambda: None,
        most_lost: int | None = None,
    ) -> None:
        """`on_ignored` is called with the name when a call has not ended 5 s after all of its callers were cancelled.

        Calls of a plain function run in threads of their own, which are replaced when they do not come back;
        `on_exhausted` is called when `most_lost` have not.
        """
        self._function = function
        self._max_size = max_size
        self._max_wait = parse_duration(max_wait, what="max_wait")
        self._max_concurrency = max_concurrency
        self._name = name or getattr(function, "__name__", "batch")
        self._on_ignored = on_ignored
        self._waiting: deque[BatchEntry] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._threads = None
        if not inspect.iscoroutinefunction(function):
            self._threads = WorkThreads(max_concurrency, f"batch-{self._name}", on_exhausted, most_lost)

    async def __call__(
        self, item: Any, *, first: bool = False, alone: bool = False, on_begin: Callable[[], None] | None = None
    ) -> Any:
        """The result for one item. `first` puts it ahead of the waiting ones; `alone` gives it a call of its own.

        `on_begin` is called when its call begins.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        entry = self.submit(item, answer, first=first, alone=alone, on_begin=on_begin)
        try:
            return await answer
        except asyncio.CancelledError:
            if entry.call is not None:
                self._left(entry.call)
            raise

    def submit(
        self,
        item: Any,
        answer: BatchAnswer,
        *,
        first: bool = False,
        alone: bool = False,
        on_begin: Callable[[], None] | None = None,
    ) -> BatchEntry:
        """Add an item without waiting for its result, which `answer` gets."""
        entry = BatchEntry(item, answer, time.monotonic() + self._max_wait, alone, on_begin)
        if first:
            self._waiting.appendleft(entry)
        else:
            self._waiting.append(entry)
        if len(self._waiting) >= self._max_size:
            if self._has_room():
                self._begin()
        elif self._timer is None and len(self._calls) < self._max_concurrency:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait, self._begin)
        return entry

    def _has_room(self) -> bool:
        """Whether a call may begin. A full batch also waits for a thread, which then need not wait for the batch."""
        ahead = 1 if self._threads is not None and len(self._waiting) >= self._max_size else 0
        return len(self._calls) < self._max_concurrency + ahead

    async def stop(self) -> None:
        """Begin no more calls, and cancel those that run."""
        self._waiting.clear()
        await end(self._calls, CANCEL_SECONDS)
        if self._threads is not None:
            self._threads.close()

    def _begin(self) -> None:
        """Start the calls that may run: of a full batch, or when the first item has waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._has_room():
            wait = self._waiting[0].due_at - time.monotonic()
            if len(self._waiting) < self._max_size and wait > _TIMER_SLACK:
                self._timer = loop.call_later(wait, self._begin)
                return
            if not (entries := self._take()):
                return
            task = loop.create_task(self._call(entries), name=f"batch {self._name}")
            self._calls.add(task)
            task.add_done_callback(self._ended)
            call = BatchCall(task, entries)
            for entry in entries:
                entry.call = call

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
            self._begin()

    def _left(self, call: BatchCall) -> None:
        """Give up a call when all of its callers have: one that hangs must not keep the others from theirs."""
        if not call.task.done() and all(entry.answer.done() for entry in call.entries):
            call.task.cancel()
            asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._check_ended, call.task)

    def _check_ended(self, call: asyncio.Task[None]) -> None:
        if call in self._calls:
            if self._on_ignored is not None:
                self._on_ignored(f"batch {self._name}")
            self._ended(call)

    async def _call(self, entries: list[BatchEntry]) -> None:
        try:
            await self._run(entries, asyncio.current_task())
        except BaseException:
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(asyncio.CancelledError())
            raise

    async def _run(self, entries: list[BatchEntry], call: asyncio.Task[None] | None = None) -> None:
        """Call the function; if it raises, call it with each half, until the items are found that make it raise.

        `call` has ended with the result of the function, and the next one begins before this one's items are answered.
        """
        entries = [entry for entry in entries if not entry.answer.done()]
        if not entries:
            return
        items = [entry.item for entry in entries]
        callbacks = [entry.on_begin for entry in entries if entry.on_begin is not None] if call is not None else []
        try:
            if self._threads is not None:
                results = await self._threads.run(partial(self._function, items), self._name, on_begin=callbacks)
            else:
                for tell in callbacks:
                    tell()
                results = await self._function(items)
            results = self._checked(results, len(entries))
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001 - it is the answer of the items
            error = raised
        else:
            if call is not None:
                self._ended(call)
            _answer(entries, results)
            return
        if len(entries) == 1 or isinstance(error, _OF_ALL):
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        half = len(entries) // 2
        await self._run(entries[:half])
        await self._run(entries[half:])

    def _checked(self, results: Any, number: int) -> Iterable[Any]:
        """The results, if there are as many as items."""
        if not hasattr(results, "__len__"):
            results = list(results or ())
        if len(results) != number:
            raise PayloadError(f"{self._name}: was given {number} items and returned {len(results)} results")
        return results


def _answer(entries: Sequence[BatchEntry], results: Iterable[Any]) -> None:
    for entry, result in zip(entries, results, strict=True):
        if entry.answer.done():
            continue
        if isinstance(result, StopIteration):  # A future cannot hold a StopIteration.
            entry.answer.set_exception(RuntimeError(f"an item gave StopIteration: {result}"))
        elif isinstance(result, BaseException):
            entry.answer.set_exception(result)
        else:
            entry.answer.set_result(result)
