"""The reports of jobs that run in the cluster, on their way to the worker: an actor of the worker's that keeps them.

A Ray task that streams its reports costs twice as much as one that only returns. So a job returns what it has to say,
and only one that runs for longer sends reports here while it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import ray
import structlog
from ray.exceptions import RayError

log = structlog.get_logger("tidemill.ray")

LOST_AFTER = 5.0  # seconds

#: A job and its attempt.
Key = tuple[int, int]


class Mailbox:
    """Runs as an actor: jobs put their reports here, and the worker takes them."""

    def __init__(self) -> None:
        self._reports: list[tuple[Key, bytes]] = []
        self._filled = asyncio.Event()

    async def put(self, key: Key, report: bytes) -> None:
        self._reports.append((key, report))
        self._filled.set()

    async def take(self) -> list[tuple[Key, bytes]]:
        """All reports, once there are any."""
        await self._filled.wait()
        self._filled.clear()
        taken, self._reports = self._reports, []
        return taken


class JobReports:
    """The reports of one job, as the worker gets them."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._count = 0
        self._news = asyncio.Event()

    def take(self, report: bytes) -> None:
        self._count += 1
        self._tell(report)
        self._news.set()

    async def wait_for(self, count: int) -> None:
        """Return when so many have come, or when they do not come: the mailbox may have been lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOST_AFTER):
                while self._count < count:
                    self._news.clear()
                    await self._news.wait()


class MailboxReader:
    """Takes reports from the mailbox while jobs run, and gives each to its job."""

    def __init__(self) -> None:
        self.name = f"tidemill-reports-{uuid4().hex}"
        self._actor: Any = None
        self._jobs: dict[Key, JobReports] = {}
        self._reading: asyncio.Task[None] | None = None

    def open(self, key: Key, tell: Callable[[bytes], None]) -> JobReports:
        """The reports of a job from now on."""
        if self._actor is None:
            # It needs no processor, and starts again if its node is lost: only the reports of that moment are lost.
            made: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Mailbox)
            self._actor = made.options(name=self.name, runtime_env={}).remote()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="tidemill-ray-reports")
        self._jobs[key] = JobReports(tell)
        return self._jobs[key]

    def close(self, key: Key) -> None:
        self._jobs.pop(key, None)

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        while True:
            try:
                reports = await self._actor.take.remote()
            except RayError as error:  # The jobs go on; their ends do not pass through here.
                log.warning("the reports of jobs in the cluster cannot be read", error=str(error))
                await asyncio.sleep(LOST_AFTER)
                continue
            for key, report in reports:
                if (job := self._jobs.get(tuple(key))) is not None:
                    job.take(report)
