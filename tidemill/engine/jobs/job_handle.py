"""The handle of an enqueued job, usable in any process: await its result, look at it, wait for its end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.duration import Duration
from tidemill.core.errors import NotFoundError, PayloadError, TidemillError
from tidemill.core.jobs.job import JobRef
from tidemill.engine.application.connections import Connections
from tidemill.engine.event_wait import handle_timeout
from tidemill.engine.jobs.task import R_co, Task
from tidemill.engine.jobs.view import JobView
from tidemill.store.jobs.read import show_job


class JobFailedError(TidemillError):
    """A job did not succeed, so it has no result; `job` is how it ended."""

    def __init__(self, job: JobView) -> None:
        why = f": {job.note}" if job.note else ""
        super().__init__(f"job {job.id} ({job.task}) has no result: it {_ENDS.get(job.state, job.state)}{why}")
        self.job = job


_ENDS = {"failed": "failed", "cancelled": "was cancelled", "expired": "expired before it ran"}


class JobHandle(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """An enqueued job; `await handle` returns its result. `created` is False if another job has its unique key."""

    _connections: Connections
    _job: JobRef
    _task: Task[..., R_co, Any] | None = None

    @property
    def id(self) -> int:
        return self._job.id

    @property
    def created(self) -> bool:
        return self._job.created

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __await__(self) -> Generator[Any, Any, R_co]:
        return self.result().__await__()

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait for the job's end and return its result, as the type that the task declares.

        Raises a `JobFailedError` if the job did not succeed, and TimeoutError after `timeout`.
        """
        job = await self.wait(timeout=timeout)
        if not job.succeeded:
            raise JobFailedError(job)
        return job.result if self._task is None else _typed(self._task, job)

    async def wait(self, *, timeout: Duration | None = None) -> JobView:
        """Return when the job has ended, however it ended. Raises TimeoutError after `timeout`."""
        async with handle_timeout(timeout, f"job {self.id} has not ended", str(self.id)):
            waits = (await self._connections.open()).waits
            while not (job := await self.view()).ended:
                await waits.ended(job.id)
        return job

    async def view(self) -> JobView:
        """The job as it is now, unfinished or finished."""
        row = await show_job((await self._connections.open()).database, self.id)
        if row is None:
            raise NotFoundError(f"there is no job {self.id}: it never existed, or its history has been dropped")
        return JobView.of(dict(row))


def _typed(task: Task[..., R_co, Any], job: JobView) -> R_co:
    try:
        return decode(encode(job.result), task.signature.returns)
    except PayloadError as error:
        raise PayloadError(
            f"the result of job {job.id} does not fit what task {task.name} declares to return: {error}"
        ) from error
