"""The jobs of an application: enqueueing them, reading them, waiting for them, cancelling them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
from typing_extensions import Unpack

from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, JobRef, NewJob, check_name
from tidemill.core.memory_size import Memory, parse_memory
from tidemill.core.resources import Needs, parse_resources
from tidemill.core.retry import RetryPolicy, retry as retry_policy
from tidemill.core.schedule import Catchup, Overlap
from tidemill.declarations import Declarations
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.jobs.calls import job_of_call, jobs_of_calls, use
from tidemill.engine.jobs.enqueue_options import EnqueueOptions, ManyOptions
from tidemill.engine.jobs.job_handle import JobHandle
from tidemill.engine.jobs.task import Call, Periodic, R, Task, TaskOptions
from tidemill.engine.jobs.view import JobView
from tidemill.engine.models.spec import require_model
from tidemill.engine.telemetry.tracing import enqueueing, enqueueing_many
from tidemill.ops.jobs.jobs import JobSelection, cancel_jobs
from tidemill.ops.operator.local import Local
from tidemill.store.caller_connection import run_async, run_sync
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
                ref = (await run_async(connections.unopened, conn, insert_statements([job])))[0]
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
                ref = run_sync(connections.unopened, conn, insert_statements([job]))[0]
            else:
                ref = connections.call(lambda opened: opened.enqueuer.put(job))
        handle = JobHandle(connections, ref, call.task)
        if self.is_inline and conn is None:
            connections.call(lambda _: handle.wait())
        return handle

    async def enqueue_many(
        self, calls: Iterable[Call[R]], /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]]:
        """Store the jobs of many calls: all of them, or none. See `App.enqueue_many`."""
        many = self._many(calls, options)
        if not many.calls:
            return []
        with enqueueing_many(many):
            if conn is not None:
                refs = await run_async(self._declared.connections.unopened, conn, insert_statements(many.each()))
            else:
                refs = await (await self._declared.connections.open()).enqueuer.put_many(many)
        return self._handles(many, refs)

    def enqueue_many_sync(
        self, calls: Iterable[Call[R]], /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]]:
        """`enqueue_many` for plain code."""
        many = self._many(calls, options)
        if not many.calls:
            return []
        with enqueueing_many(many):
            if conn is not None:
                refs = run_sync(self._declared.connections.unopened, conn, insert_statements(many.each()))
            else:
                refs = self._declared.connections.call(lambda opened: opened.enqueuer.put_many(many))
        return self._handles(many, refs)

    async def get(self, job: JobHandle[Any] | int) -> JobView:
        """A job as it is now, unfinished or finished."""
        return await self._handle(job).view()

    async def wait(self, job: JobHandle[Any] | int, *, timeout: Duration | None = None) -> JobView:
        """Return when a job has ended, however it ended. Raises TimeoutError if that takes too long."""
        return await self._handle(job).wait(timeout=timeout)

    async def cancel(self, *jobs: JobHandle[Any] | int, by: str | None = None) -> None:
        """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped."""
        ids = [job if isinstance(job, int) else job.id for job in jobs]
        if ids:
            caller = Caller(by or f"app {self._declared.name}", "admin")
            await Local(await self._declared.reach(), caller).do(cancel_jobs, JobSelection(ids=ids))

    def _handle(self, job: JobHandle[Any] | int) -> JobHandle[Any]:
        return JobHandle(self._declared.connections, JobRef(job)) if isinstance(job, int) else job

    def _handles(self, many: ManyJobs, refs: list[JobRef]) -> list[JobHandle[Any]]:
        connections = self._declared.connections
        return [JobHandle(connections, ref, call.task) for call, ref in zip(many.calls, refs, strict=True)]

    def _new_job(self, call: Call[Any], options: Mapping[str, Any]) -> NewJob:
        declared = self._declared
        task = declared.task(use(call, "enqueue").task)
        job = job_of_call(task, call.arguments, options, origin=declared.origin())
        require_model(job.options and job.options.required_model, declared.models)
        return job

    def _many(self, calls: Iterable[Call[Any]], options: Mapping[str, Any]) -> ManyJobs:
        many = jobs_of_calls(calls, options, origin=self._declared.origin())
        for task in many.tasks:
            model = options.get("required_model") or self._declared.task(task).options.required_model
            require_model(model, self._declared.models)
        return many


def declare_task(
    declared: Declarations,
    schedule: Callable[..., None],
    function: Callable[..., Any] | None,
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    retry: RetryPolicy | int | None = None,
    budget: Duration | None = None,
    stall: Duration | None = None,
    isolation: Literal["process"] | None = None,
    memory: Memory | None = None,
    resources: Needs | None = None,
    tags: Iterable[str] = (),
    concurrency_key: str | None = None,
    max_concurrency: int = 1,
    fair_key: str | None = None,
    required_model: str | None = None,
    on_failure: Task[Any, Any, Any] | None = None,
    cron: str | None = None,
    every: Duration | None = None,
    timezone: str = "UTC",
    catchup: Catchup = "one",
    jitter: Duration = 0,
) -> Any:
    """Declare a function as a task: see `App.task`."""
    options = TaskOptions(
        queue=check_name("queue", queue),
        priority=priority,
        retry=retry_policy(retry) if isinstance(retry, int) else retry,
        budget=None if budget is None else parse_duration(budget, what="budget"),
        stall=None if stall is None else parse_duration(stall, what="stall"),
        isolation=isolation,
        memory=None if memory is None else parse_memory(memory, what="memory"),
        resources=None if resources is None else parse_resources(resources),
        tags=tuple(tags),
        concurrency_key=concurrency_key,
        max_concurrency=max_concurrency,
        fair_key=fair_key,
        required_model=required_model,
        on_failure=None if on_failure is None else on_failure.callback(),
    )

    def declare(body: Callable[..., Any]) -> Task[Any, Any]:
        task = Task(body, name or getattr(body, "__name__", ""), options)
        declared.tasks.add(declared.surround(task))
        if cron is not None or every is not None:
            schedule(task.name, task.call(), cron=cron, every=every, timezone=timezone, catchup=catchup, jitter=jitter)
        return task

    return declare if function is None else declare(function)


#: The options of `app.task`.
TASK_OPTIONS = frozenset(
    name for name, each in signature(declare_task).parameters.items() if each.kind is each.KEYWORD_ONLY
)


def check_task_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a task; a `ConfigError` names one that it does not have."""
    if unknown := options.keys() - TASK_OPTIONS:
        hint = did_you_mean(min(unknown), TASK_OPTIONS) or f"; its options are {', '.join(sorted(TASK_OPTIONS))}"
        raise ConfigError(f"task has no option {min(unknown)!r}{hint}")
    return options


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


class ScheduleOptions(TypedDict, total=False):
    """The options of `app.schedule` beside its times."""

    timezone: str
    """Of a cron expression: `Europe/Berlin`; UTC if not given."""
    catchup: Catchup
    """What to do about fires that were missed: "skip", "one" or "all"."""
    jitter: Duration
    """What is started begins up to this much later."""
    overlap: Overlap
    """What a fire does while the job or run of the one before is unfinished: "allow", "skip", "queue" or "cancel"."""


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
        hint = did_you_mean(min(unknown), ScheduleOptions.__annotations__)
        raise ConfigError(f"schedule has no option {min(unknown)!r}{hint}")
    times: Any = {"cron": cron, "every": every, "timezone": "UTC", "catchup": "one", "jitter": 0, **options}
    if not declared.runs.is_startable(what):
        call = use(what, "app.schedule")
        return Periodic.of(name, declared.task(call.task).name, call.arguments, **times)
    template = declared.runs.template(what, given)  # An error is raised where the schedule is declared.
    return Periodic.of(name, template.workflow, b"", run=partial(declared.runs.template, what, given), **times)
