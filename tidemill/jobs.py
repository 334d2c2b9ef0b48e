"""The jobs of an application: enqueueing them, reading them, waiting for them, cancelling them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import Unpack

from tidemill.batches import BatchHandle, OnEnd, read_callback, result_of
from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.batch import BatchRef, NewBatch
from tidemill.core.jobs.job import JobRef, NewJob, check_name
from tidemill.declarations import Declarations
from tidemill.engine.application.connections import OpenConnection
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.calls import (
    ManyCalls,
    MappedCalls,
    check_many_options,
    each_call,
    job_of_call,
    jobs_of_calls,
    use,
)
from tidemill.engine.jobs.enqueue_options import EnqueueOptions, ManyOptions
from tidemill.engine.jobs.enqueuer import MANY_CHUNK
from tidemill.engine.jobs.job_handle import JobHandle
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.jobs.task import Call, Periodic, R, ScheduleOptions, Task, TaskOptions
from tidemill.engine.jobs.view import JobView
from tidemill.engine.models.spec import require_model
from tidemill.engine.runs.durable_run import WorkEnd
from tidemill.engine.telemetry.tracing import enqueueing, enqueueing_many
from tidemill.ops.jobs.batches import BatchNumber, cancel_batch, close_batch
from tidemill.ops.jobs.jobs import JobSelection, cancel_jobs
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import A, Operation
from tidemill.store.connection.caller_connection import Statements, run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.jobs.batches.batches import add_statements, end_statements, hold_statements, new_batch_statements
from tidemill.store.jobs.insert import insert_statements

if TYPE_CHECKING:
    from tidemill.pipelines.definition.pipeline import Pipeline


class Jobs:
    """`app.jobs`: everything about an application's jobs. `app.enqueue` and its kin call it."""

    def __init__(self, declared: Declarations) -> None:
        self._declared = declared
        self.is_inline = False
        """Whether `enqueue` returns when the job has ended, for tests."""

    async def enqueue(self, call: Call[R], /, *, conn: Any = None, **options: Unpack[EnqueueOptions]) -> JobHandle[R]:
        """Store a job; when this returns, it is committed. See `App.enqueue`."""
        connections = self._declared.connections
        with enqueueing(self._new_job(call, options)) as job:
            if conn is not None:
                ref = (await run_async(connections.unopened, conn, insert_statements(connections.unopened, [job])))[0]
            else:
                ref = await (await connections.open()).enqueuer.put(job)
        handle = JobHandle(connections, ref, call.task)
        if self.is_inline and conn is None:
            await handle.wait()
        return handle

    def enqueue_sync(self, call: Call[R], /, *, conn: Any = None, **options: Unpack[EnqueueOptions]) -> JobHandle[R]:
        """`enqueue` for plain code; `conn` is then a plain connection."""
        connections = self._declared.connections
        with enqueueing(self._new_job(call, options)) as job:
            if conn is not None:
                ref = run_sync(connections.unopened, conn, insert_statements(connections.unopened, [job]))[0]
            else:
                ref = connections.call(lambda opened: opened.enqueuer.put(job))
        handle = JobHandle(connections, ref, call.task)
        if self.is_inline and conn is None:
            connections.call(lambda _: handle.wait())
        return handle

    async def enqueue_many(
        self, calls: Iterable[Call[R]] | MappedCalls, /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]]:
        """Store the jobs of many calls: all of them, or none. See `App.enqueue_many`."""
        many = self._many(calls, options)
        if not many.calls:
            return []
        with enqueueing_many(many):
            if conn is not None:
                unopened = self._declared.connections.unopened
                refs = await run_async(unopened, conn, insert_statements(unopened, many.each()))
            else:
                refs = await (await self._declared.connections.open()).enqueuer.put_many(many)
        return self._handles(many, refs)

    def enqueue_many_sync(
        self, calls: Iterable[Call[R]] | MappedCalls, /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]]:
        """`enqueue_many` for plain code."""
        many = self._many(calls, options)
        if not many.calls:
            return []
        with enqueueing_many(many):
            if conn is not None:
                unopened = self._declared.connections.unopened
                refs = run_sync(unopened, conn, insert_statements(unopened, many.each()))
            else:
                refs = self._declared.connections.call(lambda opened: opened.enqueuer.put_many(many))
        return self._handles(many, refs)

    async def batch(
        self,
        calls: Iterable[Call[R]] = (),
        /,
        *,
        on_success: OnEnd | None = None,
        on_complete: OnEnd | None = None,
        name: str | None = None,
        keep_open: bool = False,
        conn: Any = None,
        **options: Unpack[ManyOptions],
    ) -> BatchHandle[R]:
        """Store jobs that are followed and cancelled as one. See `App.batch`."""
        new = self._new_batch(on_success, on_complete, name, keep_open)
        return BatchHandle(self, await self.store_batch(new, calls, conn, options))

    def batch_sync(
        self,
        calls: Iterable[Call[R]] = (),
        /,
        *,
        on_success: OnEnd | None = None,
        on_complete: OnEnd | None = None,
        name: str | None = None,
        keep_open: bool = False,
        conn: Any = None,
        **options: Unpack[ManyOptions],
    ) -> BatchHandle[R]:
        """`batch` for plain code; `conn` is then a plain connection."""
        new = self._new_batch(on_success, on_complete, name, keep_open)
        if conn is None:
            stored = self._declared.connections.call(lambda _: self.store_batch(new, calls, None, options))
        else:
            stored = run_sync(self._declared.connections.unopened, conn, self._batch_statements(new, calls, options))
        return BatchHandle(self, stored)

    async def store_batch(
        self, new: NewBatch, calls: Iterable[Call[Any]], conn: Any, options: Mapping[str, Any]
    ) -> BatchRef:
        """Store a batch with its jobs: all of them, or none. If its key is taken, nothing is stored."""
        if conn is not None:
            return await run_async(
                self._declared.connections.unopened, conn, self._batch_statements(new, calls, options)
            )
        return await (await self.opened()).enqueuer.put_batch(new, partial(self._chunks, calls, options))

    async def add_to_batch(self, id: int, calls: Iterable[Call[Any]], conn: Any, options: Mapping[str, Any]) -> int:
        """Store more jobs of a batch; returns how many."""
        chunks = self._chunks(calls, options, id)
        if conn is not None:
            return await run_async(
                self._declared.connections.unopened, conn, _adding(self._declared.connections.unopened, id, chunks)
            )
        return await (await self.opened()).enqueuer.add_to_batch(id, chunks)

    async def close_batch(self, id: int) -> None:
        """Let a batch end when its jobs have."""
        await self._do(close_batch, BatchNumber(id=id))

    async def cancel_batch(self, id: int, *, by: str | None = None) -> None:
        """Cancel the unfinished jobs of a batch."""
        await self._do(cancel_batch, BatchNumber(id=id), by=by)

    def get_batch(self, id: int) -> BatchHandle[Any]:
        """A handle on a batch that was stored before, by any process."""
        return BatchHandle(self, BatchRef(_number("batch", id), created=False))

    async def opened(self) -> OpenConnection:
        """The application's connection of this event loop."""
        return await self._declared.connections.open()

    def result_of(self, task: str, data: bytes | None) -> Any:
        """The result of a job of a task, as the type that it declares."""
        return result_of(self._declared.tasks.get(task), data)

    async def get(self, job: JobHandle[Any] | int) -> JobView:
        """A job as it is now, unfinished or finished."""
        return await self._handle(job).view()

    async def wait(self, job: JobHandle[Any] | BatchHandle[Any] | int, *, timeout: Duration | None = None) -> Any:
        """Return when a job or a batch has ended, however it ended. Raises TimeoutError if that takes too long."""
        return await (job if isinstance(job, BatchHandle) else self._handle(job)).wait(timeout=timeout)

    async def cancel(self, *jobs: JobHandle[Any] | int, by: str | None = None) -> None:
        """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped."""
        if ids := [self._handle(job).id for job in jobs]:
            await self._do(cancel_jobs, JobSelection(ids=ids), by=by)

    async def _do(self, operation: Operation[A, Any], args: A, *, by: str | None = None) -> None:
        caller = Caller(by or f"app {self._declared.name}", "admin")
        await Local(await self._declared.reach(), caller).do(operation, args)

    def _handle(self, job: JobHandle[Any] | int) -> JobHandle[Any]:
        return job if isinstance(job, JobHandle) else JobHandle(self._declared.connections, JobRef(_number("job", job)))

    def _handles(self, many: ManyJobs, refs: list[JobRef]) -> list[JobHandle[Any]]:
        connections = self._declared.connections
        return [JobHandle(connections, ref, task) for task, ref in zip(many.calls, refs, strict=True)]

    def _new_job(self, call: Call[Any], options: Mapping[str, Any]) -> NewJob:
        declared = self._declared
        task = declared.task(use(call, "enqueue").task)
        job = job_of_call(task, call.arguments, options, origin=declared.origin())
        require_model(job.options and job.options.required_model, declared.models)
        declared.check_webhook(options, task)
        return job

    def _new_batch(
        self, on_success: OnEnd | None, on_complete: OnEnd | None, name: str | None, keep_open: bool
    ) -> NewBatch:
        if name is not None:
            check_name("batch", name)
        if not isinstance(keep_open, bool):
            raise ConfigError(f"keep_open={keep_open!r:.100} is neither True nor False")
        return NewBatch(
            self._declared.origin(),
            name,
            keep_open,
            read_callback("on_success", on_success),
            read_callback("on_complete", on_complete),
        )

    def _chunks(self, calls: Iterable[Call[Any]], options: Mapping[str, Any], batch: int) -> Iterator[ManyJobs]:
        """The jobs of a batch, some thousands at a time: a million of them need not be in memory."""
        check_many_options(options, "batch", ("conn", "on_success", "on_complete", "name", "keep_open"))
        left = each_call(calls)
        while chunk := list(islice(left, MANY_CHUNK)):
            yield self._many(chunk, options, batch)

    def _batch_statements(
        self, new: NewBatch, calls: Iterable[Call[Any]], options: Mapping[str, Any]
    ) -> Statements[BatchRef]:
        ref = yield from new_batch_statements(self._declared.connections.unopened, new)
        if ref.created:
            yield from _adding(self._declared.connections.unopened, ref.id, self._chunks(calls, options, ref.id))
            yield from end_statements([ref.id])
        return ref

    def _many(self, calls: ManyCalls, options: Mapping[str, Any], batch: int | None = None) -> ManyJobs:
        many = jobs_of_calls(calls, options, origin=self._declared.origin(), batch=batch)
        for task in many.tasks:
            model = options.get("required_model") or self._declared.task(task).options.required_model
            require_model(model, self._declared.models)
            self._declared.check_webhook(options, task)
        return many


def declare_pipeline(declared: Declarations, pipeline: Pipeline) -> Pipeline:
    """Declare a pipeline, and the task by which schedules and programs build its states again."""

    async def rebuild(stage: str | None = None, entities: list[str] | None = None, downstream: bool = False) -> dict:
        """Build states of the pipeline again: all of them, those of a stage, or those of some entities."""
        from tidemill.ops.pipelines.change import InvalidateStates, invalidate_states

        selection = InvalidateStates(
            name=pipeline.name, stage=stage, entities=entities, downstream=downstream, approve=True
        )
        local = Local(await declared.reach(), Caller(f"task rebuild/{pipeline.name}", "admin"), declared)
        return msgspec.to_builtins(await local.do(invalidate_states, selection))

    declared.pipelines.declare(pipeline)
    declared.tasks.add(Task(rebuild, f"rebuild/{pipeline.name}", TaskOptions(queue=pipeline.queue)))
    return pipeline


class StepJobs:
    """The jobs that steps of runs gather."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def start(self, calls: Sequence[Call[Any]], key: str, parent: tuple[int, int]) -> WorkEnd | None:
        """Enqueue jobs as a batch that reports its end to the run; returns the end of one that has ended already."""
        run, work = parent
        new = NewBatch(origin_here(f"run r{run}"), name=f"r{run}", key=key, run=run, work=work)
        ref = await self._jobs.store_batch(new, calls, None, {})
        if ref.created:
            return None
        batch = await self._jobs.get_batch(ref.id).view()
        return WorkEnd(batch.state, batch=ref.id, key=key) if batch.ended else None

    async def results(self, batch: int) -> list[Any]:
        """The results of the jobs; a `BatchFailedError` if one of them did not succeed."""
        return await self._jobs.get_batch(batch).results()


def _number(what: str, id: Any) -> int:
    """The id of a job or batch; a `ConfigError` if it is none."""
    if isinstance(id, bool) or not isinstance(id, int) or not -(2**63) <= id < 2**63:
        raise ConfigError(f"{id!r:.100} is no {what}: give its handle or its number, such as 12")
    return id


def _adding(database: Database, batch: int, chunks: Iterable[ManyJobs]) -> Statements[int]:
    """The statements that add jobs to a batch that is not over."""
    yield from hold_statements(batch)
    added = 0
    for many in chunks:
        added += yield from add_statements(database, batch, many.each())
    return added


def periodic_of(
    declared: Declarations,
    name: str,
    what: Any,
    given: Any,
    cron: str | None,
    every: Duration | None,
    options: ScheduleOptions,
) -> Periodic:
    """The schedule of a call of a task, or of a workflow or dag with its input."""
    if unknown := options.keys() - ScheduleOptions.__annotations__.keys():
        known = ScheduleOptions.__annotations__
        hint = did_you_mean(min(unknown), known) or f"; its options are cron, every, {', '.join(sorted(known))}"
        if declared.runs.is_startable(what):
            hint += f"; the input of a run is one value: app.schedule({name!r}, ..., {{{min(unknown)!r}: ...}}, ...)"
        raise ConfigError(f"schedule has no option {min(unknown)!r}{hint}")
    times: Any = {"cron": cron, "every": every, "timezone": "UTC", "catchup": "one", "jitter": 0, **options}
    if not declared.runs.is_startable(what):
        call = use(what, "app.schedule")
        return Periodic.of(name, declared.task(call.task).name, call.arguments, **times)
    template = declared.runs.template(what, given)  # An error is raised where the schedule is declared.
    return Periodic.of(name, template.workflow, b"", run=partial(declared.runs.template, what, given), **times)
