"""The watchdog: finds the work that keeps a process from working, names it, and if need be ends the process.

It runs in the lease's thread, outside of the event loop, so that it holds for code that never yields. An event loop
that has not turned for 5 s is reported with the work that blocks it and its stack: in the log, and with the lease, as
`tidemill workers` and the console show. The process is ended only when this work has broken a limit of its own (its
timeout, its budget, the grace period after a cancel request) or has blocked the loop for longer than `stall_limit`; and
when work that cannot be stopped has broken one. Before that, one transaction stores the outcome of this work and
gives back everything else that the process holds. If it is not known which work it is, all of it runs in quarantine.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import msgspec
import structlog

from tidemill.core.duration import format_duration
from tidemill.engine.containment.blocked_time import CANCEL_SECONDS, LONGEST_CHECK, stalls_of
from tidemill.engine.containment.exit_status import EXIT_BLOCKED, exit_now
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import END_WORKER, EXPIRE_OWN_LEASE

log = structlog.get_logger("tidemill.watchdog")

STALL_LIMIT = 60.0
REPORT_SECONDS = 5.0
BLOCKED_SECONDS = 1.0  # seconds after which a loop that does not run counts as blocked
WRITE_SECONDS = 10.0
RETRY_SECONDS = 0.1
STACK_LINES = 40


class Culprit(msgspec.Struct, frozen=True):
    """A piece of work that keeps its process from working."""

    name: str
    """For people: job 12 (task send), step crash of run r7."""
    work: Any
    limit_at: float | None = None
    """When it breaks a limit of its own, by the monotonic clock."""
    limit: str = ""
    """This limit, for people: its timeout of 3s."""
    task: asyncio.Task[Any] | None = None
    """The task that runs it, if it runs on the event loop."""


class EndedFor(msgspec.Struct, frozen=True):
    """Why a process is ended: which limit was broken, the same in words, and its name in records of errors."""

    kind: str
    why: str
    name: str = "BlockedEventLoop"
    exit_status: int = EXIT_BLOCKED

    def reason(self, culprit: Culprit) -> str:
        """The reason that is stored with the process."""
        return f"{self.name}: {culprit.name}"


class CancelWatch:
    """Finds work that does not end though it was cancelled at its limit. Time that the process slept does not count."""

    def __init__(self) -> None:
        self._over: dict[str, float] = {}  # for how long each is over its limit, by its name
        self._checked_at = 0.0

    def find(self, running: Iterable[Culprit], now: float) -> tuple[Culprit, EndedFor] | None:
        """The first that should have ended, and why its process is ended. Called at every check of the watchdog."""
        passed, self._checked_at = min(now - self._checked_at, LONGEST_CHECK), now
        over = [each for each in running if each.limit_at is not None and now > each.limit_at]
        self._over = {each.name: self._over.get(each.name, 0.0) + passed for each in over}
        for each in over:
            if self._over[each.name] > CANCEL_SECONDS:
                why = f"it ran longer than {each.limit} and did not end when it was cancelled"
                return each, EndedFor("timeout", why, "SwallowedCancellation")
        return None


class WatchedWork(Protocol):
    """What a watchdog needs to know of the work of a process. All of it is called in the lease's thread."""

    def find(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        """The piece of work that a task of the event loop belongs to."""
        ...

    def overdue(
        self, now: float, loop: asyncio.AbstractEventLoop, *, is_blocked: bool
    ) -> tuple[Culprit, EndedFor] | None:
        """The piece of work that has broken a limit and cannot be stopped, if there is one."""
        ...

    async def is_cancelled(self, connection: Connection, culprit: Culprit) -> bool:
        """Whether the end of this piece of work was requested."""
        ...

    async def write_end(self, connection: Connection, worker_id: int, culprit: Culprit, ended: EndedFor) -> None:
        """Write the outcome of the culprit, and give back all other work, in the transaction that ends the process."""
        ...

    async def report(self, connection: Connection, ended: EndedFor) -> None:
        """Count the end of the process."""
        ...


class Watchdog:
    """Watches the event loop and the work of one process."""

    def __init__(
        self, database: Database, work: WatchedWork, *, stall_limit: float = STALL_LIMIT, grace_seconds: float = 30.0
    ) -> None:
        self.trouble: str | None = None
        """What is wrong with the process now, for people."""
        self._database = database
        self._work = work
        self._stall_limit = stall_limit
        self._grace = grace_seconds
        self._loop_thread: int | None = None
        self._checked_at = 0.0
        self._blamed_until = 0.0
        self._blocked_for = 0.0
        self._blocked_at = -BLOCKED_SECONDS
        self._cancelled_at: float | None = None
        self._connection: Connection | None = None
        self._look_for_cancel_at = 0.0

    async def check(
        self, worker_id: int, loop: asyncio.AbstractEventLoop, connection: Connection | None = None
    ) -> bool:
        """Report what blocks the process; True when the process was ended. A connection saves the time to make one."""
        self._connection = connection
        now = time.monotonic()
        stalls = stalls_of(loop)
        culprit = self._find(loop) if stalls.is_waiting else None
        self._blamed_until = stalls.blame(None if culprit is None else culprit.task, self._blamed_until)
        self._measure(now, loop)
        is_blocked = self._blocked_for >= BLOCKED_SECONDS
        if is_blocked:
            self._blocked_at = now
        # A loop that turns again needs a moment to see what has ended meanwhile.
        was_blocked = now - self._blocked_at < BLOCKED_SECONDS
        if (found := self._work.overdue(now, loop, is_blocked=is_blocked or was_blocked)) is not None:
            await self._end(worker_id, *found)
            return True
        if not is_blocked:
            if self.trouble is not None:
                log.warning("the event loop runs again", worker=worker_id, was=self.trouble)
            self.trouble, self._cancelled_at = None, None
            return False
        if self._blocked_for >= REPORT_SECONDS and self.trouble is None:
            self._report(worker_id, culprit)
        ended = await self._is_over(now, culprit)
        if ended is not None and stalls.is_waiting:
            await self._end(worker_id, culprit, ended)
        return ended is not None

    # -- the event loop ---------------------------------------------------------------------------

    def _measure(self, now: float, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the loop to turn, at each check, and count how long it does not."""
        passed, self._checked_at = min(now - self._checked_at, LONGEST_CHECK), now
        stalls = stalls_of(loop)
        self._loop_thread = stalls.loop_thread
        self._blocked_for = self._blocked_for + passed if stalls.is_waiting else 0.0
        stalls.ask(loop)

    def _find(self, loop: asyncio.AbstractEventLoop) -> Culprit | None:
        try:
            return self._work.find(asyncio.current_task(loop))
        except RuntimeError:  # The loop has turned and changed what was being read.
            return None

    def _report(self, worker_id: int, culprit: Culprit | None) -> None:
        name = "unknown work" if culprit is None else culprit.name
        self.trouble = f"its event loop has been blocked by {name} since {time.strftime('%H:%M:%S')}"
        log.error("EVENT LOOP BLOCKED", by=name, worker=worker_id, stack=self._stack())

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._loop_thread or threading.main_thread().ident or 0)
        lines = traceback.format_stack(frame) if frame is not None else []
        return "".join(lines[-STACK_LINES:])

    async def _is_over(self, now: float, culprit: Culprit | None) -> EndedFor | None:
        """Whether the process has to be ended because its loop is blocked."""
        if culprit is not None:
            if culprit.limit_at is not None and now >= culprit.limit_at:
                return EndedFor("timeout", f"it ran longer than {culprit.limit} and blocked the event loop")
            if await self._should_have_ended(now, culprit):
                why = f"it had not ended {format_duration(self._grace)} after its end was requested"
                return EndedFor("cancel", why)
        if self._blocked_for >= self._stall_limit:
            return EndedFor("blocked", f"it blocked the event loop for {format_duration(self._stall_limit)}")
        return None

    async def _should_have_ended(self, now: float, culprit: Culprit) -> bool:
        """Whether the grace period is over since its end was requested, which the blocked loop cannot know."""
        if self._cancelled_at is None and now >= self._look_for_cancel_at:
            self._look_for_cancel_at = now + BLOCKED_SECONDS
            try:
                async with asyncio.timeout(WRITE_SECONDS), self._connected() as connection:
                    if await self._work.is_cancelled(connection, culprit):
                        self._cancelled_at = now
            except Exception as error:  # noqa: BLE001 - it is tried again in a second
                log.debug("cancel requests cannot be read", error=str(error))
        return self._cancelled_at is not None and now - self._cancelled_at >= self._grace

    # -- the end ----------------------------------------------------------------------------------

    async def _end(self, worker_id: int, culprit: Culprit | None, ended: EndedFor) -> None:
        """Store the outcomes of the work of the process, in one transaction, and exit."""
        name = "unknown work" if culprit is None else culprit.name
        log.error("watchdog ends the process", work=name, why=ended.why, worker=worker_id, stack=self._stack())
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                while True:
                    try:
                        await self._write_end(worker_id, culprit, ended)
                        return
                    except Exception as error:
                        if not is_transient(error):
                            raise
                        log.warning("the end of the process is not yet stored: retrying", error=str(error))
                        self._connection = None
                        await asyncio.sleep(RETRY_SECONDS)
        finally:
            # If the database does not answer either, the lease lapses and maintenance does the same.
            exit_now(ended.exit_status)

    async def _write_end(self, worker_id: int, culprit: Culprit | None, ended: EndedFor) -> None:
        async with self._connected() as connection:
            async with connection.transaction():
                if culprit is None:  # Everything that it holds is suspected.
                    await connection.execute(self._database.sql(EXPIRE_OWN_LEASE), worker_id)
                else:
                    # First, so that the lease cannot lapse meanwhile, however slow the rest is.
                    await connection.execute(self._database.sql(END_WORKER), worker_id, ended.reason(culprit))
                    await self._work.write_end(connection, worker_id, culprit, ended)
            await self._work.report(connection, ended)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection of the lease, or one of its own."""
        if self._connection is not None and not self._connection.is_closed():
            yield self._connection
            return
        connection = await self._database.connect(patience=WRITE_SECONDS)
        try:
            yield connection
        finally:
            connection.terminate()
