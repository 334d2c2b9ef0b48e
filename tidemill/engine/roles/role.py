"""A role: work with a life. Each process of a deployment runs one or more of them.

    role = Role(Scheduler(...), database)
    await role.run()                        # until role.stop()

The role opens the database, waits for the schema, takes the lease, listens on the work's channels, reports its counts
and calls `work.work(life)`. The work calls `life.ready()` once it serves, sleeps with `life.wait(seconds)`, and returns
when that is False. If the lease is lost, `run()` raises `LeaseLostError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import structlog

from tidemill.core.errors import LeaseLostError, StoreError
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.lease import RenewedLease
from tidemill.engine.roles.supervisor import report_started
from tidemill.engine.telemetry.meter import MeterReporter
from tidemill.store.database import Database
from tidemill.store.migrate import Chain, migrate, wait_for_schema
from tidemill.store.notify import Callback, Listener

log = structlog.get_logger("tidemill.role")

T = TypeVar("T")


class Life:
    """The life of a role, as its work and its owner see it. It exists before the role runs: no stop is lost."""

    def __init__(self) -> None:
        self.worker_id = 0
        """The number of the lease, where there is one."""
        self.over: str | None = None
        """Why the role ended though it was not asked to stop."""
        self.is_fenced = False
        """Whether the lease is another's by now: nothing that is still written counts."""
        self.hurried = asyncio.Event()
        """Set by a second stop: give everything back at once."""
        self.stopped = asyncio.Event()
        self._ready = asyncio.Event()
        self._woken = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        return self.stopped.is_set()

    def ready(self) -> None:
        """The work serves from now on."""
        report_started()
        self._ready.set()

    def end(self) -> None:
        """The work has ended: nothing waits for it to serve."""
        self._ready.set()

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Return when the work serves, or has ended."""
        await self._ready.wait()

    def stop(self) -> None:
        """Ask the work to end; a second call asks it to hurry."""
        if self.stopped.is_set():
            self.hurried.set()
        self.stopped.set()
        self._woken.set()

    def give_up(self, why: str) -> None:
        """The role ends itself: its lease is ended with this reason, and `run()` raises."""
        self.over = why
        self.stop()
        self.stop()

    def fence(self, why: str) -> None:
        """The lease was lost: another process owns the work."""
        self.is_fenced = True
        self.give_up(why)

    def wake(self, _payload: str = "") -> None:
        """Let `wait` return."""
        self._woken.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Sleep until a wake-up, or for this many seconds; False once the role is asked to stop.

        A wake-up that came since the last call counts: nothing that happens between two waits is missed.
        """
        if self.stopped.is_set():
            return False
        if not self._woken.is_set():
            await wait_for_event(self._woken, seconds)
        self._woken.clear()
        return not self.stopped.is_set()

    async def unless_stopped(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run something that a stop cuts short; returns whether it ran to its end."""
        running = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stopped.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                return True
            return False
        finally:
            stopping.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait([running])


class RoleWork(Protocol):
    """What a role does."""

    @property
    def channels(self) -> Mapping[str, Callback | None]:
        """The channels to listen on; without a callback, news wakes `life.wait`."""
        ...

    async def work(self, life: Life) -> None:
        """Work until `life` is stopped."""
        ...


W = TypeVar("W", bound=RoleWork)


class Role(Generic[W]):
    """Runs one piece of work, from opening the database to ending the lease."""

    def __init__(
        self,
        work: W,
        database: Database | None,
        *,
        lease: RenewedLease | None = None,
        reporter: MeterReporter | None = None,
        name: str = "",
        migrations: Sequence[Chain] = (),
    ) -> None:
        """`migrations` are applied first; all wait for the schema. Simulated work has no database."""
        self.work = work
        self.life = Life()
        self.name = name or type(work).__name__.lower()
        self._database = database
        self._lease = lease
        self._migrations = migrations
        self._reporter = reporter
        self.lifespan: Lifespan | None = None
        """What the application opens before its functions are called; the work begins once it is open."""

    @property
    def worker_id(self) -> int:
        return self.life.worker_id

    def stop(self) -> None:
        """End the work; a second call ends it at once."""
        self.life.stop()

    async def wait_ready(self) -> None:
        """Return when the work serves, or has ended."""
        await self.life.wait_ready()

    async def run(self) -> None:
        """Work until stopped. Raises `LeaseLostError` when the lease was lost, or the work gave it up."""
        life = self.life
        try:
            if not await life.unless_stopped(self._open()):
                return
            if self._lease is not None:
                life.worker_id = await self._lease.take(life.fence)
                report_started()
            try:
                await self._work_when_open()
            except asyncio.CancelledError:
                if life.is_stopping and not life.is_ready and not life.is_fenced and self._lease is not None:
                    await self._lease.stop_renewing()
                    await self._end("stopped before it served")  # It holds nothing: its lease need not lapse.
                raise
            finally:
                if self._lease is not None:
                    await self._lease.stop_renewing()
        finally:
            life.end()
        if not life.is_fenced:
            await self._end(life.over or "stopped")
        if life.over is not None:
            raise LeaseLostError(f"{self.name} {life.over}; its work has gone to others")

    async def _open(self) -> None:
        if self._database is not None:
            await self._database.open()
            for chain in self._migrations:
                applied = await migrate(self._database, chain, patience=None)
                if applied:
                    schema = chain.schema or self._database.schema
                    log.info("migrated", schema=schema, migrations=len(applied), version=applied[-1].version)
            await wait_for_schema(self._database)

    async def _work_when_open(self) -> None:
        if self.lifespan is None or not self.lifespan.is_needed:
            await self._work()
            return
        async with self.lifespan.opened_patiently(self.life.stopped) as is_open:
            if is_open:
                await self._work()

    async def _work(self) -> None:
        """The work beside its helpers: the failure of any of them is the failure of the role."""
        try:
            async with asyncio.TaskGroup() as group:
                helpers: list[asyncio.Task[None]] = []
                if self._database is not None and self.work.channels:
                    listener = Listener(self._database)
                    for channel, callback in self.work.channels.items():
                        listener.on(channel, callback or self.life.wake)
                    helpers.append(group.create_task(listener.run(), name="listener"))
                    await self.life.unless_stopped(listener.wait_ready())
                if self._reporter is not None:
                    helpers.append(group.create_task(self._reporter.run(), name="reporter"))
                if self.lifespan is not None:
                    helpers.append(group.create_task(self.lifespan.watch(), name="lifespan"))
                await self.work.work(self.life)
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as errors:
            if len(errors.exceptions) == 1:
                raise errors.exceptions[0] from None
            raise

    async def _end(self, reason: str) -> None:
        try:
            if self._lease is not None:
                await self._lease.end(reason)
            if self._reporter is not None:
                await self._reporter.close()
        except StoreError as error:
            log.warning("the end could not be recorded: the lease will lapse", role=self.name, error=str(error))


class Runnable(Protocol):
    """Anything with the life of a role."""

    name: str

    async def run(self) -> None: ...
    async def wait_ready(self) -> None: ...
    def stop(self) -> None: ...


class RoleGroup:
    """Several roles in one process with one life: when one of them ends, all end."""

    def __init__(self, name: str, *roles: Runnable) -> None:
        self.name = name
        self._roles = roles
        self._life = Life()

    def stop(self) -> None:
        self._life.stop()
        for role in self._roles:
            role.stop()

    async def wait_ready(self) -> None:
        """Return when all of them serve, or one has ended."""
        await self._life.wait_ready()

    async def run(self) -> None:
        """Run them until stopped."""
        stopping = asyncio.ensure_future(self._life.stopped.wait())
        try:
            async with run_roles(*self._roles) as running:
                self._life.ready()
                await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._life.end()
            stopping.cancel()


@asynccontextmanager
async def run_roles(*roles: Runnable) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run roles while the block lasts: started in order, each once the previous one is ready; stopped in reverse."""
    started: list[tuple[Runnable, asyncio.Task[None]]] = []
    try:
        for role in roles:
            running = asyncio.create_task(role.run(), name=type(role).__name__)
            started.append((role, running))
            ready = asyncio.create_task(role.wait_ready())
            await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if running.done():
                running.result()
        yield [running for _, running in started]
    finally:
        for role, running in reversed(started):
            if not running.done():
                role.stop()
            await running
