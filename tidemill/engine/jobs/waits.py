"""Waiting for jobs or batches to end: one LISTEN connection and one query for all waits of a process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from tidemill.store.change_log import ChangeListener
from tidemill.store.database import Database
from tidemill.store.jobs.read import find_unfinished

SAFETY_POLL = 5.0
LINGER = 10.0  # The connection is kept this long after the last wait, since the next one often follows soon.


class JobWaits:
    """Wakes up the callers that wait for jobs, or for what `find_unfinished` finds."""

    def __init__(
        self,
        database: Database,
        find_unfinished: Callable[[Database, list[int]], Awaitable[set[int]]] = find_unfinished,
    ) -> None:
        self._database = database
        self._find_unfinished = find_unfinished
        self._waiting: defaultdict[int, list[asyncio.Future[None]]] = defaultdict(list)
        self._changes: ChangeListener | None = None
        self._task: asyncio.Task[None] | None = None

    async def ended(self, job_id: int) -> None:
        """Return when a job has ended, or does not exist."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job_id].append(ended)
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name="tidemill-job-waits")
        elif self._changes is not None:
            self._changes.wake()
        try:
            await ended
        finally:
            if self._waiting[job_id]:
                self._waiting[job_id] = [each for each in self._waiting[job_id] if each is not ended]
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        try:
            while True:
                await self._watch_while_needed()
                if not self._waiting:  # A wait may have begun while the connection was closed.
                    return
        except Exception as error:  # noqa: BLE001 - raised in the waiting code
            for each in self._futures(list(self._waiting)):
                each.set_exception(error)
        finally:
            self._changes = self._task = None

    async def _watch_while_needed(self) -> None:
        async with ChangeListener(self._database) as changes:
            self._changes, loop = changes, asyncio.get_running_loop()
            idle_since = loop.time()
            while loop.time() - idle_since < LINGER:
                if self._waiting:
                    await self._wake_finished()
                    idle_since = loop.time()
                await changes.wait(SAFETY_POLL if self._waiting else LINGER)

    async def _wake_finished(self) -> None:
        """Wake up the waits for jobs that have ended."""
        ids = list(self._waiting)
        unfinished = await self._find_unfinished(self._database, ids)
        for each in self._futures(job_id for job_id in ids if job_id not in unfinished):
            each.set_result(None)

    def _futures(self, ids: Iterable[int]) -> list[asyncio.Future[None]]:
        found = [each for job_id in ids for each in self._waiting.get(job_id, ())]
        return [each for each in found if not each.done()]
