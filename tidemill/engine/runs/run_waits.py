"""Waiting for runs: one LISTEN connection for all waits on a database, and no statement while nothing changes.

row = await run_waits(database).end_of(database, 7)       # one statement reads all runs that are waited for

Changes are announced a few times a second at most. A run that ends in the process that waits for it is read at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import structlog

from tidemill.core.errors import StoreError
from tidemill.engine.event_wait import wait_for_event
from tidemill.store.change_log import ChangeListener
from tidemill.store.database import Database
from tidemill.store.runs.runs import no_such_run, read_ends

log = structlog.get_logger("tidemill.runs")

SAFETY_POLL = 5.0
POLL_WITHOUT_WAKE_UPS = 0.5
LINGER = 2.0  # The connection is kept this long after the last wait, since the next one often follows soon.
FIRST_GAP, LONGEST_GAP = 0.01, 0.5
READING_SHARE = 0.2  # At most this share of the time is spent on reading which runs have ended.

_WAITS: WeakKeyDictionary[Database, RunWaits] = WeakKeyDictionary()


class RunWait:
    """One wait, which polls again after each change; on a busy database at most every half second."""

    def __init__(self, safety_poll: float) -> None:
        self.event = asyncio.Event()
        self.has_changes = False
        self._safety_poll = safety_poll
        self._gap = FIRST_GAP

    def wake(self) -> None:
        """Something in the database has changed."""
        self.has_changes = True
        self.event.set()

    async def changed(self) -> None:
        """Return when something has changed, or when it is time for a safety poll."""
        await wait_for_event(self.event, self._safety_poll)
        self.event.clear()
        await asyncio.sleep(self._gap)
        self._gap = min(self._gap * 1.5, LONGEST_GAP)

    def reset(self) -> None:
        """Something was found: poll again soon."""
        self._gap = FIRST_GAP


class RunWaits:
    """The waits on one database."""

    def __init__(self, database: Database) -> None:
        self._poll = SAFETY_POLL if database.can_listen else POLL_WITHOUT_WAKE_UPS
        self._watches: set[RunWait] = set()
        self._task: asyncio.Task[None] | None = None
        self._ends: dict[int, set[asyncio.Future[Any]]] = {}
        self._unread: set[int] = set()  # runs whose wait has just begun, or that have just ended in this process
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[None] | None = None
        self._reading: RunWait | None = None

    @asynccontextmanager
    async def watching(self, database: Database) -> AsyncIterator[RunWait]:
        """A wait that is notified of changes while the block runs."""
        watch = RunWait(self._poll)
        self._watches.add(watch)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(database), name="tidemill-run-waits")
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    async def end_of(self, database: Database, run_id: int) -> Any:
        """Wait until a run no longer runs; returns its state, result, error and note."""
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(run_id, set()).add(waiting)
        self._read_soon(run_id)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_ends(database), name="tidemill-run-ends")
        try:
            return await waiting
        finally:
            self._forget(run_id, waiting)

    def ended_here(self, run_id: int) -> None:
        """A run has ended in this process: its wait is over, if there is one."""
        if run_id in self._ends and self._loop is asyncio.get_running_loop():
            self._read_soon(run_id)

    def _read_soon(self, run_id: int) -> None:
        self._unread.add(run_id)
        if self._reading is not None:
            self._reading.event.set()

    async def close(self) -> None:
        """Stop listening, because the database is about to be closed."""
        tasks = [task for task in (self._task, self._reader) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, run_id: int, waiting: asyncio.Future[Any]) -> None:
        waits = self._ends.get(run_id)
        if waits is not None:
            waits.discard(waiting)
            if not waits:
                del self._ends[run_id]

    async def _read_ends(self, database: Database) -> None:
        """Read which runs have ended, as long as an end is waited for: all of them after a change, with pauses, and at
        once those that may have ended."""
        error: Exception = StoreError("the connections to the database were closed before the run ended")
        try:
            async with self.watching(database) as watch:
                self._reading = watch
                rest_until, is_poll = 0.0, False
                while self._ends:
                    watch.event.clear()
                    began = time.monotonic()
                    unread, self._unread = self._unread & self._ends.keys(), set[int]()
                    if is_poll or (watch.has_changes and began >= rest_until):
                        watch.has_changes = False
                        await self._read(database, list(self._ends))
                        pause = (time.monotonic() - began) / READING_SHARE
                        rest_until = began + min(max(FIRST_GAP, pause), LONGEST_GAP)
                    elif unread:
                        await self._read(database, list(unread))
                    if self._ends:
                        left = rest_until - time.monotonic() if watch.has_changes else self._poll
                        is_poll = not await wait_for_event(watch.event, max(0.0, left)) and not watch.has_changes
        except Exception as found:  # noqa: BLE001 - the waits raise it
            error = found
        finally:
            self._reading = None
            for waiting in [each for waits in self._ends.values() for each in waits]:
                _fail(waiting, error)

    async def _read(self, database: Database, ids: list[int]) -> None:
        for row in await read_ends(database, ids):
            for waiting in self._ends.pop(row["id"], ()):
                if row["state"] is None:
                    _fail(waiting, no_such_run(row["id"]))
                elif not waiting.done():
                    waiting.set_result(row)

    async def _listen(self, database: Database) -> None:
        try:
            while True:
                await self._listen_while_needed(database)
                if not self._watches:  # A wait may have begun while the connection was closed.
                    return
        except Exception as error:  # noqa: BLE001 - the safety poll goes on without it
            if self._watches:
                log.warning("changes cannot be followed: waits poll", error=str(error))

    async def _listen_while_needed(self, database: Database) -> None:
        async with ChangeListener(database) as changes:
            quiet = 0.0
            while self._watches or quiet < LINGER:
                changed = await changes.wait(LINGER)
                quiet = 0.0 if self._watches else quiet + LINGER
                if changed:
                    for watch in self._watches:
                        watch.wake()


def _fail(waiting: asyncio.Future[Any], error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)


def end_waits_here(run_id: int) -> None:
    """End the waits of this process for a run that has ended in it."""
    for waits in list(_WAITS.values()):
        waits.ended_here(run_id)


def run_waits(database: Database) -> RunWaits:
    """The waits on this database."""
    return _WAITS.setdefault(database, RunWaits(database))
