"""An application's jobs: putting them in, looking at them, waiting for them, cancelling them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.job import JobRef, NewJob, Origin
from tidemill.engine.connections import Connections
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.calls import job_of_call, jobs_of_calls
from tidemill.engine.jobs.task import Task, TaskRegistry
from tidemill.engine.jobs.view import JobView
from tidemill.engine.models.spec import ModelSpec, require_model
from tidemill.engine.telemetry.tracing import enqueueing, enqueueing_many
from tidemill.ops.jobs import JobSelection, cancel_jobs
from tidemill.ops.local import Caller, Local
from tidemill.store.database import Database
from tidemill.store.jobs.on_connection import insert_async, insert_sync
from tidemill.store.jobs.read import show_job


class Jobs:
    """The part of an application that deals with jobs."""

    name: str
    tasks: TaskRegistry
    models: Mapping[str, ModelSpec]
    _connections: Connections

    def database(self, *, label: str | None = None) -> Database:
        """A new, unopened way to this application's database."""
        raise NotImplementedError

    def _origin(self) -> Origin:
        raise NotImplementedError

    # -- putting in -------------------------------------------------------------------------------

    async def enqueue(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        **more: Any,
    ) -> JobRef:
        """Store a job; when this returns, it is committed.

        The task's arguments come as they would in a call. Beside them, all optional:

        delay, at        not before: from now on ("10s"), or at a moment (a datetime with its time zone)
        priority         0 to 9; 9 goes first
        queue            another queue than the task's own
        unique_key       no second unfinished job of this task with this key; `unique_for` holds it for a time
        concurrency_key  at most `concurrency` jobs with this key run at once
        required_model   another model than the task's own
        deadline         dropped unrun after this long, or at this moment
        tags             words to find it by
        conn             your own open connection: the job then exists if and only if your transaction commits
        args             the task's arguments as a dict: for those that are named like one of the words above
        """
        with enqueueing(self._new_job(task, positional, args, more)) as job:
            if conn is not None:
                return (await insert_async(self._connections.unopened, conn, [job]))[0]
            return await (await self._connections.open()).enqueuer.put(job)

    def enqueue_sync(
        self,
        task: Task[Any, Any] | str,
        /,
        *positional: Any,
        args: Mapping[str, Any] | None = None,
        conn: Any = None,
        **more: Any,
    ) -> JobRef:
        """The twin of `enqueue` for plain code; `conn` is then a plain connection."""
        with enqueueing(self._new_job(task, positional, args, more)) as job:
            if conn is not None:
                return insert_sync(self._connections.unopened, conn, [job])[0]
            return self._connections.call(lambda way: way.enqueuer.put(job))

    async def enqueue_many(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], *, conn: Any = None, **wish: Any
    ) -> list[JobRef]:
        """Store one job per set of arguments: all of them, or none if any is wrong.

        `wish` is any of `delay`, `at`, `priority`, `queue`, `deadline` and `tags`, for all of them alike.
        """
        with enqueueing_many(self._many(task, calls, wish)) as many:
            if conn is not None:
                return await insert_async(self._connections.unopened, conn, many.each()) if many.arguments else []
            return await (await self._connections.open()).enqueuer.put_many(many)

    def enqueue_many_sync(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], *, conn: Any = None, **wish: Any
    ) -> list[JobRef]:
        """The twin of `enqueue_many` for plain code."""
        with enqueueing_many(self._many(task, calls, wish)) as many:
            if conn is not None:
                return insert_sync(self._connections.unopened, conn, many.each()) if many.arguments else []
            return self._connections.call(lambda way: way.enqueuer.put_many(many))

    # -- looking and acting -----------------------------------------------------------------------

    async def job(self, job: JobRef | int) -> JobView:
        """A job as it is now, unfinished or finished."""
        job_id = job if isinstance(job, int) else job.id
        row = await show_job((await self._connections.open()).database, job_id)
        if row is None:
            raise NotFoundError(f"there is no job {job_id}: it never was, or its history has been dropped")
        return JobView.of(dict(row))

    async def wait(self, job: JobRef | int, *, timeout: Duration | None = None) -> JobView:
        """Return when a job has ended, however it ended. Raises TimeoutError if that takes too long."""
        async with asyncio.timeout(None if timeout is None else parse_duration(timeout, what="timeout")):
            waits = (await self._connections.open()).waits
            while not (view := await self.job(job)).ended:
                await waits.ended(view.id)
        return view

    async def cancel(self, *jobs: JobRef | int, by: str | None = None) -> None:
        """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped."""
        ids = [job if isinstance(job, int) else job.id for job in jobs]
        if ids:
            database = (await self._connections.open()).database
            caller = Caller(by or f"app {self.name}", "admin")
            await Local(database, caller).do(cancel_jobs, JobSelection(ids=ids))

    # -- inner parts ------------------------------------------------------------------------------

    def _task(self, task: Task[Any, Any] | str) -> Task[Any, Any]:
        if isinstance(task, str):
            return self.tasks.require(task)
        if isinstance(task, Task):
            return self.tasks.require(task.name)
        raise ConfigError(f"{task!r} is not a task: decorate the function with @app.task")

    def _new_job(
        self,
        task: Task[Any, Any] | str,
        positional: tuple[Any, ...],
        args: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> NewJob:
        job = job_of_call(self._task(task), positional, args, more, origin=self._origin())
        require_model(job.options and job.options.required_model, self.models)
        return job

    def _many(
        self, task: Task[Any, Any] | str, calls: Iterable[Mapping[str, Any]], wish: Mapping[str, Any]
    ) -> ManyJobs:
        require_model(wish.get("required_model") or self._task(task).options.required_model, self.models)
        return jobs_of_calls(self._task(task), calls, wish, origin=self._origin())
