"""The jobs of an application: enqueueing them, reading them, waiting for them, cancelling them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import NotFoundError
from tidemill.core.job import JobRef, NewJob
from tidemill.declarations import Declarations
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.calls import job_of_call, jobs_of_calls
from tidemill.engine.jobs.task import Task
from tidemill.engine.jobs.view import JobView
from tidemill.engine.models.spec import require_model
from tidemill.engine.telemetry.tracing import enqueueing, enqueueing_many
from tidemill.ops.jobs.jobs import JobSelection, cancel_jobs
from tidemill.ops.operator.local import Caller, Local
from tidemill.store.jobs.on_connection import insert_async, insert_sync
from tidemill.store.jobs.read import show_job


class Jobs:
    """`app.jobs`: everything about an application's jobs. `app.enqueue` and its kin call it."""

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared

    async def enqueue(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        **more: Any,
    ) -> JobRef:
        """Store a job; when this returns, it is committed. See `App.enqueue`."""
        with enqueueing(self._new_job(task, positional, args, more)) as job:
            if conn is not None:
                return (await insert_async(self._declared.connections.unopened, conn, [job]))[0]
            return await (await self._declared.connections.open()).enqueuer.put(job)

    def enqueue_sync(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        **more: Any,
    ) -> JobRef:
        """`enqueue` for plain code; `conn` is then a plain connection."""
        with enqueueing(self._new_job(task, positional, args, more)) as job:
            if conn is not None:
                return insert_sync(self._declared.connections.unopened, conn, [job])[0]
            return self._declared.connections.call(lambda opened: opened.enqueuer.put(job))

    async def enqueue_many(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], *, conn: Any = None, **options: Any
    ) -> list[JobRef]:
        """Store one job per set of arguments. See `App.enqueue_many`."""
        with enqueueing_many(self._many(task, calls, options)) as many:
            if conn is not None:
                return (
                    await insert_async(self._declared.connections.unopened, conn, many.each()) if many.arguments else []
                )
            return await (await self._declared.connections.open()).enqueuer.put_many(many)

    def enqueue_many_sync(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], *, conn: Any = None, **options: Any
    ) -> list[JobRef]:
        """`enqueue_many` for plain code."""
        with enqueueing_many(self._many(task, calls, options)) as many:
            if conn is not None:
                return insert_sync(self._declared.connections.unopened, conn, many.each()) if many.arguments else []
            return self._declared.connections.call(lambda opened: opened.enqueuer.put_many(many))

    async def get(self, job: JobRef | int) -> JobView:
        """A job as it is now, unfinished or finished."""
        job_id = job if isinstance(job, int) else job.id
        row = await show_job(await self._declared.reach(), job_id)
        if row is None:
            raise NotFoundError(f"there is no job {job_id}: it never was, or its history has been dropped")
        return JobView.of(dict(row))

    async def wait(self, job: JobRef | int, *, timeout: Duration | None = None) -> JobView:
        """Return when a job has ended, however it ended. Raises TimeoutError if that takes too long."""
        async with asyncio.timeout(None if timeout is None else parse_duration(timeout, what="timeout")):
            waits = (await self._declared.connections.open()).waits
            while not (view := await self.get(job)).ended:
                await waits.ended(view.id)
        return view

    async def cancel(self, *jobs: JobRef | int, by: str | None = None) -> None:
        """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped."""
        ids = [job if isinstance(job, int) else job.id for job in jobs]
        if ids:
            caller = Caller(by or f"app {self._declared.name}", "admin")
            await Local(await self._declared.reach(), caller).do(cancel_jobs, JobSelection(ids=ids))

    def _new_job(
        self,
        task: Task[Any, Any] | str,
        positional: tuple[Any, ...],
        args: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> NewJob:
        job = job_of_call(self._declared.task(task), positional, args, more, origin=self._declared.origin())
        require_model(job.options and job.options.required_model, self._declared.models)
        return job

    def _many(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> ManyJobs:
        known = self._declared.task(task)
        require_model(options.get("required_model") or known.options.required_model, self._declared.models)
        return jobs_of_calls(known, calls, options, origin=self._declared.origin())
