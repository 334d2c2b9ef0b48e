"""Quarantine: a process beside a worker's, which runs the suspects of processes that died. See `core.blame`.

It is started when there are suspects that this worker could run, claims nothing else, and ends when none is left. If a
suspect ends it, that is on record at once, and it is started again, after a pause that grows while it keeps dying.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import structlog

from tidemill.core.errors import StoreError
from tidemill.engine.containment.cancellation import is_ending
from tidemill.engine.roles.supervisor import ChildSpec, Supervisor, describe_exit, pause_after
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import expire_lease
from tidemill.store.streams.streams import end_leases

log = structlog.get_logger("tidemill.quarantine")

SAFETY_POLL = 30.0
RETRY_SECONDS = 1.0
LONGEST_PAUSE = 3.0  # each start takes processor time from the work beside it


class Quarantine:
    """Runs suspects whenever `find` says that one is due: the seconds until then, or None.

    `find` is called again at every `wake`. Without a process to start, `take` is called instead.
    """

    def __init__(
        self,
        spec: ChildSpec | None,
        find: Callable[[], Awaitable[float | None]],
        *,
        take: Callable[[], None],
        grace: float,
        silence: float,
        database: Database | None,
    ) -> None:
        self._spec = spec
        self._find = find
        self._take = take
        self._wake = asyncio.Event()
        self._stopped = False
        self._deaths = 0
        self._finding: asyncio.Future[float] | None = None
        announce = None if database is None else announcer(database)
        self._supervisor = Supervisor([] if spec is None else [spec], grace=grace, on_death=announce, silence=silence)

    def wake(self) -> None:
        """Check for suspects now."""
        self._wake.set()

    def stop(self) -> None:
        """Ask the process to end; `run` returns when it has."""
        self._stopped = True
        self._supervisor.stop()
        self._wake.set()
        if self._finding is not None:
            self._finding.cancel()  # It waits for as long as the database is away.

    async def run(self) -> None:
        """Run suspects whenever there are some, until stopped."""
        while not self._stopped:
            self._wake.clear()
            self._finding = asyncio.ensure_future(self._seconds())
            try:
                wait = await self._finding
            except asyncio.CancelledError:
                if is_ending():
                    raise
                return
            self._finding = None
            if wait <= 0:
                wait = await self._run_suspects()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _run_suspects(self) -> float:
        """Run the suspects that are due now; returns how long to wait before the next ones."""
        if self._spec is None:
            self._take()
            return RETRY_SECONDS
        log.warning("suspects run in quarantine", role=self._spec.name)
        status = await self._supervisor.live(self._spec)
        if status == 0 or self._stopped:
            self._deaths = 0
            return RETRY_SECONDS
        self._deaths += 1
        log.error("a suspect ended its quarantine process", role=self._spec.name, why=describe_exit(status))
        return min(LONGEST_PAUSE, pause_after(self._deaths))

    async def _seconds(self) -> float:
        try:
            seconds = await self._find()
        except Exception as error:
            if not is_transient(error):
                raise
            return RETRY_SECONDS
        return SAFETY_POLL if seconds is None else min(seconds, SAFETY_POLL)


def announcer(database: Database) -> Callable[[int, str], Awaitable[None]]:
    """Tells the database of a child's death and why it died, so that its work need not wait for its lease to lapse."""

    async def announce(pid: int, why: str) -> None:
        try:
            await expire_lease(database, socket.gethostname(), pid, why)
            await end_leases(database, socket.gethostname(), pid)
        except StoreError as error:
            log.warning("a death could not be announced: the lease will lapse by itself", pid=pid, error=str(error))

    return announce
