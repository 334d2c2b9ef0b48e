"""Waiting for runs: one LISTEN connection for all waits on a database, and no statement while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import structlog

from tidemill.engine.event_wait import wait_for_event
from tidemill.store.change_log import ChangeListener
from tidemill.store.database import Database

log = structlog.get_logger("tidemill.runs")

SAFETY_POLL = 5.0
POLL_WITHOUT_WAKE_UPS = 0.5
LINGER = 2.0  # The connection is kept this long after the last wait, since the next one often follows soon.
FIRST_GAP, LONGEST_GAP = 0.01, 0.5

_WAITS: WeakKeyDictionary[Database, RunWaits] = WeakKeyDictionary()


class RunWait:
    """One wait, which polls again after each change; on a busy database at most every half second."""

    def __init__(self, safety_poll: float) -> None:
        self.event = asyncio.Event()
        self._safety_poll = safety_poll
        self._gap = FIRST_GAP

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

    async def close(self) -> None:
        """Stop listening, because the database is about to be closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
                        watch.event.set()


def run_waits(database: Database) -> RunWaits:
    """The waits on this database."""
    return _WAITS.setdefault(database, RunWaits(database))
