"""The handle of a batch: its progress, its end, its results, and more jobs while it is open."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import Unpack

from tidemill.core.codec import decode
from tidemill.core.duration import Duration
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.batch import BATCH_FACTS, BatchRef, BatchView
from tidemill.core.jobs.job import Callback
from tidemill.engine.event_wait import handle_timeout
from tidemill.engine.jobs.calls import use
from tidemill.engine.jobs.task import Call, R_co, Task
from tidemill.store.jobs.batches.batches import LIST_RESULTS, show_batch

if TYPE_CHECKING:
    from tidemill.engine.jobs.enqueue_options import ManyOptions
    from tidemill.jobs import Jobs

#: What follows from the end of a batch: a call, or a task that takes facts of the end.
OnEnd = Task[Any, Any, Any] | Call[Any]


class BatchFailedError(TidemillError):
    """Not all jobs of a batch succeeded; `batch` says how they ended."""

    def __init__(self, batch: BatchView, first: str | None = None) -> None:
        ends = ", ".join(
            f"{count:,} {state}"
            for state, count in (("failed", batch.failed), ("cancelled", batch.cancelled), ("expired", batch.expired))
            if count
        )
        why = f"; the first: {first}" if first else ""
        super().__init__(f"of the {batch.total:,} jobs of batch b{batch.id}, {ends or 'some did not succeed'}{why}")
        self.batch = batch


class BatchHandle(Generic[R_co]):
    """A batch; `await handle` waits for its end and returns the results of its jobs."""

    __slots__ = ("_jobs", "created", "id")

    def __init__(self, jobs: Jobs, ref: BatchRef) -> None:
        self.id = ref.id
        self.created = ref.created
        self._jobs = jobs

    def __repr__(self) -> str:
        return f"<batch b{self.id}>"

    def __await__(self) -> Generator[Any, Any, list[R_co]]:
        return self.results().__await__()

    async def view(self) -> BatchView:
        """The batch as it is now: how many of its jobs ended how."""
        return batch_view(await show_batch((await self._jobs.opened()).database, self.id))

    async def wait(self, *, timeout: Duration | None = None) -> BatchView:
        """Return when all jobs have ended, however they ended. Raises TimeoutError after `timeout`."""
        async with handle_timeout(timeout, f"batch b{self.id} has not ended", f"b{self.id}"):
            waits = (await self._jobs.opened()).batch_waits
            while not (batch := await self.view()).ended:
                await waits.ended(batch.id)
        return batch

    async def results(self, *, timeout: Duration | None = None) -> list[R_co]:
        """Wait for the end and return the results, in the order in which the jobs were enqueued.

        Raises a `BatchFailedError` if a job did not succeed, and TimeoutError after `timeout`.
        """
        batch = await self.wait(timeout=timeout)
        rows = await (await self._jobs.opened()).database.fetch(LIST_RESULTS, self.id)
        if bad := next((row for row in rows if row["state"] != "succeeded"), None):
            raise BatchFailedError(batch, f"job {bad['id']} ({bad['task']}): {bad['note'] or bad['state']}")
        if batch.succeeded < batch.total:
            raise BatchFailedError(batch)
        return [self._jobs.result_of(row["task"], row["result"]) for row in rows]

    async def add(self, calls: Iterable[Call[Any]], /, *, conn: Any = None, **options: Unpack[ManyOptions]) -> int:
        """Add jobs, unless the batch has ended; returns how many. A job of the batch may add more."""
        return await self._jobs.add_to_batch(self.id, calls, conn, options)

    async def close(self) -> None:
        """Let a batch that was kept open end when its jobs have."""
        await self._jobs.close_batch(self.id)

    async def cancel(self, *, by: str | None = None) -> BatchView:
        """Cancel all unfinished jobs: waiting ones at once, running ones as soon as their task can be stopped."""
        await self._jobs.cancel_batch(self.id, by=by)
        return await self.view()


def batch_view(row: Any) -> BatchView:
    """A batch from its row."""
    return BatchView(**{name: row[name] for name in BatchView.__struct_fields__})


def read_callback(what: str, given: OnEnd | None) -> Callback | None:
    """What `on_success` or `on_complete` of a batch enqueues."""
    if given is None:
        return None
    if isinstance(given, Task):
        return given.callback(BATCH_FACTS, of="batches")
    if not isinstance(given, Call):
        raise ConfigError(f"{what}={given!r:.100} is neither a task nor a call, such as task.call(...)")
    call = use(given, what)
    return call.task.callback_with(call.arguments)


def result_of(task: Task[Any, Any] | None, data: bytes | None) -> Any:
    """The result of a job as the type that its task declares."""
    if data is None:
        return None
    return decode(data) if task is None else decode(data, task.signature.returns)
