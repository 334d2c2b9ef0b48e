"""The current job, as seen by a running task.

from tidemill import current_job

def export(table: str) -> dict:
    job = current_job()
    for done, chunk in enumerate(chunks):
        job.report(done / len(chunks), f"chunk {done}")   # shown live; arms the stall watchdog
            job.check_cancelled()                             # for plain functions: raises when cancelled
    job.schedule, job.fire_time                               # of a job that a schedule has enqueued
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.codec import decode, storable
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import Origin
from tidemill.engine.worker.log_capture import CapturedLines, listen

if TYPE_CHECKING:
    from tidemill.engine.containment.blocked_time import BlockedTime
    from tidemill.engine.models.cache import ModelUse
    from tidemill.engine.worker.job_transaction import JobTransaction
    from tidemill.store.database import Connection

_current: ContextVar[RunningJob] = ContextVar("tidemill_job")


class JobCancelled(TidemillError):
    """Raised by `check_cancelled` inside a task whose job has been cancelled."""


class RunningJob(msgspec.Struct, eq=False):
    """One attempt at a job, as its task sees it. Safe to use from any thread."""

    id: int
    attempt: int
    queue: str
    task: str
    origin_data: bytes | None = None
    started: float = msgspec.field(default_factory=time.monotonic)
    blocked: BlockedTime | None = None
    beat_at: float | None = None
    budget: float | None = None
    stall: float | None = None
    progress: float | None = None
    note: str | None = None
    reported: bool = False
    cancel_reason: str | None = None
    kill_at: float | None = None
    overrun: str | None = None
    models: ModelUse | None = None
    lines: CapturedLines | None = None
    writes: JobTransaction | None = None
    writes_factory: Callable[[], JobTransaction] | None = None

    @property
    def origin(self) -> Origin | None:
        """The user, host and process that enqueued this job, and its schedule or parent job; None if unknown."""
        return None if self.origin_data is None else decode(self.origin_data, Origin)

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that enqueued this job, if one did."""
        return None if self.origin is None else self.origin.schedule

    @property
    def fire_time(self) -> datetime | None:
        """The time, in UTC, that the schedule was fired for: jobs of missed fires have different ones."""
        fire = None if self.origin is None else self.origin.fire
        return None if fire is None else datetime.fromtimestamp(fire, UTC)

    @property
    def fire_reason(self) -> str | None:
        """Why its schedule has started it: `due`, `catch-up` (it was missed), `backfill` or `run now`."""
        return None if self.origin is None else self.origin.reason

    def report(self, progress: float | None = None, message: str | None = None) -> None:
        """Report progress: a fraction from 0 to 1, a message, or both. Resets the stall watchdog."""
        if progress is not None:
            self.progress = min(1.0, max(0.0, float(progress)))
        if message is not None:
            self.note = storable(str(message))
        self.beat_at = self.now()
        self.reported = True

    def beat(self) -> None:
        """Reset the stall watchdog without a report; the first call arms it."""
        self.beat_at = self.now()

    @property
    def blocked_seconds(self) -> float:
        """How long other work has blocked the event loop, which does not count against its limits."""
        return 0.0 if self.blocked is None else self.blocked.seconds

    def now(self) -> float:
        """The time by which its limits are measured: it stands still while other work blocks the event loop."""
        return time.monotonic() - self.blocked_seconds

    def keep_line(self, line: bytes) -> None:
        """Capture a logged line, to be shown with this job."""
        if self.lines is None:
            self.lines = CapturedLines()
        self.lines.add(line)

    def model(self, name: str) -> Any:
        """A model of the application, loaded until this job has ended.

        The job's `required_model` is available at once; a plain function may request others and waits while they load.
        """
        return self._models(name).get(name, look_up=self.check_cancelled)

    async def load_model(self, name: str) -> Any:
        """The same for async tasks, without blocking the event loop."""
        return await self._models(name).load(name)

    def _models(self, name: str) -> ModelUse:
        if self.models is None:
            raise ConfigError(
                f"there is no model {name!r} here: declare models with App(models=[...]); "
                "a task with isolation='process' has none, because models are loaded in the worker's own process"
            )
        return self.models

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection whose writes commit with the result of this job, or not at all.

        async with current_job().transaction() as connection:
            await connection.execute("UPDATE account SET paid = true WHERE id = $1", 7)
            await app.enqueue(thank.call(account=7), conn=connection)

        All blocks of an attempt share one transaction. It commits when the task has returned, together with the end of
        the job; if the task raises, is cancelled, or its worker dies or no longer owns the job, nothing is written. An
        error in a block rolls back that block.
        """
        if self.writes is None:
            if self.writes_factory is None:
                raise ConfigError(
                    "current_job().transaction() is for async tasks in a worker's own process: a plain function, or a "
                    "task with isolation='process' or batch=, has none"
                )
            self.writes = self.writes_factory()
        async with self.writes.block() as connection:
            yield connection

    @property
    def cancelled(self) -> bool:
        """Whether this job has been cancelled."""
        return self.cancel_reason is not None

    def check_cancelled(self) -> None:
        """Raise `JobCancelled` if this job has been cancelled."""
        if self.cancel_reason is not None:
            raise JobCancelled(self.cancel_reason)


def current_job() -> RunningJob:
    """The job that this code runs in; an error outside of a job."""
    job = _current.get(None)
    if job is None:
        raise ConfigError("current_job() was called outside of a job: it works only inside a running task")
    return job


def find_current_job() -> RunningJob | None:
    """The job that this code runs in, if any."""
    return _current.get(None)


def job_of_task(task: asyncio.Task[Any]) -> RunningJob | None:
    """The job that has started an asyncio task, directly or not; None where Python cannot tell."""
    context = getattr(task, "get_context", lambda: None)()  # since Python 3.12
    return None if context is None else context.get(_current)


def enter_job(job: RunningJob) -> None:
    """Make this the current job for the rest of the calling context."""
    _current.set(job)
    listen(job)
