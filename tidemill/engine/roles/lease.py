"""The lease of a process: renewed by a thread of its own, so that a busy event loop does not look like a dead process.

    lease = Lease(database, describe, lease_seconds=15, heartbeat_seconds=3, watchdog=Watchdog(database, work))
    worker_id = await lease.take(on_lost)         # registers the process; renews from now on
    await lease.stop_renewing()
    await lease.end("stopped")                    # what it owned goes to others at once

`on_lost` is called on the event loop when another process has ended the lease. If the loop is stuck and does not end
the process, the thread does, with status 70.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec
import structlog

from tidemill.core.errors import StoreError
from tidemill.engine.application.lifespan import lifespan_trouble
from tidemill.engine.containment.exit_status import EXIT_FENCED, exit_now
from tidemill.engine.containment.watchdog import Watchdog
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.worker.threads import lost_threads, lost_threads_text
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import WorkerCard, end_worker, register_worker, renew_lease
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.lease")

WATCH_SECONDS = 0.1
IDLE_WATCH_SECONDS = 0.5  # each look wakes two threads; work that begins meanwhile is found that much later
STUCK_SECONDS = 10.0
RETRY_SECONDS = 0.5
IDLE_SHARE = 3  # an idle process renews this often during its lease


class ProcessStatus(msgspec.Struct, frozen=True):
    """How a process is, as it is written with each renewal. An idle process renews less often."""

    status: str = "running"
    running: int = 0
    models: list[str] | None = None
    is_busy: bool = True
    trouble: str | None = None
    """What is wrong with it, if its watchdog has found nothing worse."""
    lost_threads: int = 0
    """How many threads of its other processes have not come back."""
    held: list[int] | None = None
    """The longest of the jobs that it runs."""


class RenewedLease(Protocol):
    """A lease as a role needs it; the simulation has its own."""

    async def take(self, on_lost: Callable[[str], None]) -> int:
        """Register the process, and renew its lease from now on; returns its number."""
        ...

    async def stop_renewing(self) -> None: ...

    async def end(self, reason: str) -> None:
        """Give up the lease: what it covers goes to others."""
        ...


class Lease:
    """A lease in PostgreSQL."""

    def __init__(
        self,
        database: Database,
        describe: Callable[[], WorkerCard],
        *,
        lease_seconds: float = 15.0,
        heartbeat_seconds: float = 3.0,
        process_status: Callable[[], ProcessStatus] = ProcessStatus,
        watchdog: Watchdog | None = None,
        after_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.worker_id = 0
        self._database = database
        self._describe = describe
        self._seconds = lease_seconds
        self._heartbeat = heartbeat_seconds
        self._process_status = process_status
        self._watchdog = watchdog
        self._after_end = after_end
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._wake_thread: Callable[[], object] = int

    async def take(self, on_lost: Callable[[str], None]) -> int:
        self.worker_id = await register_worker(self._database, self._describe(), lease_seconds=self._seconds)
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tidemill-lease", daemon=True)
        self._thread.start()
        return self.worker_id

    async def stop_renewing(self) -> None:
        if self._thread is not None:
            self._stopped.set()
            with contextlib.suppress(RuntimeError):  # The thread has ended.
                self._wake_thread()
            await asyncio.to_thread(self._thread.join, timeout=5.0)

    async def end(self, reason: str) -> None:
        await end_worker(self._database, self.worker_id, reason)
        if self._after_end is not None:
            await self._after_end()

    def _run(self) -> None:
        try:
            asyncio.run(self._renew_until_stopped())
        except Exception as error:  # noqa: BLE001 - a process whose lease cannot be renewed must end, whatever broke
            log.error("the lease cannot be renewed", error=repr(error), worker=self.worker_id)
            self._lease_lost(f"cannot renew its lease: {error!r}")

    async def _renew_until_stopped(self) -> None:
        connection: Connection | None = None
        stopping = asyncio.Event()
        self._wake_thread = partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set)
        renew_at, written, trouble = 0.0, ProcessStatus(status=""), None
        while not self._stopped.is_set():
            if self._watchdog is not None:
                if await self._watchdog.check(self.worker_id, self._loop, connection):
                    return
                trouble = self._watchdog.trouble
            process_status = self._process_status()
            lost = lost_threads()
            troubles = (trouble, lifespan_trouble(), process_status.trouble, lost_threads_text(lost))
            found = "; ".join(each for each in troubles if each) or None
            count = process_status.lost_threads + len(lost)
            process_status = msgspec.structs.replace(process_status, trouble=found, lost_threads=count)
            is_changed = (process_status.status, found) != (written.status, written.trouble)
            if time.monotonic() >= renew_at or is_changed:
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._database.connect(patience=1.0)
                    alive = await asyncio.wait_for(self._renew(connection, process_status), self._seconds)
                except Exception as error:
                    if not (is_transient(error) or isinstance(error, StoreError)):
                        raise
                    if connection is not None:
                        connection.terminate()
                    connection, alive = None, True
                written = process_status
                renew_at = time.monotonic() + (RETRY_SECONDS if connection is None else self._pause(process_status))
                if not alive:
                    self._lease_lost("was silent for longer than its lease")
                    return
            is_idle = trouble is None and not process_status.is_busy
            await wait_for_event(stopping, IDLE_WATCH_SECONDS if is_idle else WATCH_SECONDS)
        if connection is not None:
            connection.terminate()

    async def _renew(self, connection: Connection, process_status: ProcessStatus) -> bool:
        return await renew_lease(
            self._database,
            connection,
            self.worker_id,
            lease_seconds=self._seconds,
            status=process_status.status,
            running=process_status.running,
            models=process_status.models,
            trouble=process_status.trouble,
            lost_threads=process_status.lost_threads,
            held=process_status.held,
        )

    def _pause(self, process_status: ProcessStatus) -> float:
        return self._heartbeat if process_status.is_busy else max(self._heartbeat, self._seconds / IDLE_SHARE)

    def _lease_lost(self, why: str) -> None:
        """Tell the event loop that this process counts as dead; end the process if the loop is stuck."""
        log.error("fenced off: the lease is lost", worker=self.worker_id, why=why)
        self._loop.call_soon_threadsafe(self._on_lost, why)
        if not self._stopped.wait(STUCK_SECONDS):
            log.error("the lease is lost and the event loop is stuck: ending the process", worker=self.worker_id)
            exit_now(EXIT_FENCED)


def describe_process(
    queues: Iterable[str] = (),
    tasks: Iterable[str] = (),
    *,
    max_concurrency: int = 0,
    host: str = "",
    versions: Mapping[str, str] | None = None,
    events: Iterable[str] = (),
    signatures: Iterable[str] = (),
    is_quarantine: bool = False,
) -> WorkerCard:
    """What a process registers about itself. One that `is_quarantine` ends with the process that has started it."""
    return WorkerCard(
        host=host or socket.gethostname(),
        pid=os.getpid(),
        queues=tuple(queues),
        tasks=tuple(tasks),
        max_concurrency=max_concurrency,
        versions={"tidemill": VERSION, "python": platform.python_version(), **(versions or {})},
        events=tuple(events),
        signatures=tuple(signatures),
        parent_pid=os.getppid() if is_quarantine else None,
    )
