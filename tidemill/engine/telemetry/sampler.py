"""The sampler: stores a sample of its host every few seconds, for a day.

Every Tidemill process on a host runs one, and the host's row in the database decides which of them samples; the others
poll whether it still does. When it exits or dies, another takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psutil
import structlog

from tidemill.core.codec import encode
from tidemill.core.errors import StoreError
from tidemill.engine.roles.role import Life, Role
from tidemill.engine.telemetry.hosts import HostReader, HostSample
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.telemetry.hosts import KEPT, leave_sampling, may_sample, write_sample

log = structlog.get_logger("tidemill.telemetry")

LEASE = 3  # how many samples may be missing before another process takes over
WARM_UP = 1.0
LAST_TURN = 1.0  # how long a turn may take once the process ends


class Sampler:
    """The work of a role that samples this host, unless another process does."""

    channels: Mapping[str, None] = {}

    def __init__(
        self,
        database: Database,
        *,
        every: float = 5.0,
        host: str | None = None,
        kept: float = KEPT,
        reader: HostReader | None = None,
    ) -> None:
        self.samples = 0
        self.leading = False
        self._has_written = False
        self._database = database
        self._every = every
        self._host = host or socket.gethostname()
        self._kept = kept
        self._reader = reader
        self._name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._pids = {os.getpid()}

    async def work(self, life: Life) -> None:
        """Sample the host, or wait to take over, until stopped."""
        life.ready()
        try:
            while True:
                try:
                    await self._turn(life)
                except Exception as error:
                    if not (is_transient(error) or isinstance(error, psutil.Error | OSError)):
                        raise
                    log.warning("the host could not be sampled", host=self._host, error=str(error))
                if not await life.wait(self._every * (1 if self.leading else LEASE)):
                    return
        finally:
            if self._has_written:
                with contextlib.suppress(StoreError):
                    await leave_sampling(self._database, self._host, self._name)

    async def _turn(self, life: Life) -> None:
        lease = self._every * LEASE
        if not self.leading:
            if not await may_sample(self._database, self._host, self._name, lease=lease):
                return
            await self._read()  # CPU use is relative to the previous reading
            if not await life.wait(min(WARM_UP, self._every)):
                return
        sample = await self._read()
        self._has_written = True  # also if the write is cancelled: its row would keep others away until it lapses
        found = await write_sample(self._database, self._host, self._name, encode(sample), lease=lease, kept=self._kept)
        self.leading = found is not None
        if found is not None:
            self.samples += 1
            self._pids = {os.getpid(), *found}

    async def _read(self) -> HostSample:
        return await asyncio.to_thread(self._measure)

    def _measure(self) -> HostSample:
        if self._reader is None:  # created here, because it may search for a GPU
            self._reader = HostReader()
        return self._reader.read(self._pids)


@asynccontextmanager
async def sampling(
    database: Database, *, every: float, when: Callable[[], Coroutine[Any, Any, object]]
) -> AsyncIterator[None]:
    """Sample this host inside the block, once `when` returns; not at all if `every` is 0."""
    if every <= 0:
        yield
        return
    role = Role(Sampler(database, every=every), database)

    async def run() -> None:
        try:
            if await role.life.unless_stopped(when()):
                await role.run()
        except Exception as error:  # noqa: BLE001 - a worker must not end because its host cannot be measured
            log.error("the sampler failed: this process no longer samples its host", error=repr(error))

    task = asyncio.create_task(run(), name="tidemill-sampler")
    try:
        yield
    finally:
        role.stop()
        await asyncio.wait([task], timeout=LAST_TURN)
        task.cancel()
        await asyncio.wait([task])
