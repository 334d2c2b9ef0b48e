"""The application: what a program declares, and how it starts work.

from tidemill import App
app = App("shop")
@app.task(queue="mail", retry=app.retry(max_attempts=5), budget="2m")
async def send_receipt(order_id: int) -> dict: ...
await app.enqueue(send_receipt.call(order_id=7), delay="10m")       # in async code
app.enqueue_sync(send_receipt.call(order_id=7))                     # in plain code

Each shape has a part of its own with everything that can be done: `app.jobs`, `app.runs`, `app.streams`,
`app.pipelines`, `app.monitors`. The methods here are the common calls.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from typing_extensions import TypeVar, Unpack

from tidemill.answers import SubmitOptions, submit, submit_sync
from tidemill.atomic import Atomic, AtomicSync, atomic, atomic_sync
from tidemill.batches import BatchHandle, OnEnd
from tidemill.core.accounts import Caller
from tidemill.core.duration import Duration
from tidemill.core.expressions.refs import RefResolver
from tidemill.core.retry import retry
from tidemill.core.web.page import Page
from tidemill.core.web.webhook_signature import WebhookSignature
from tidemill.declarations import Declarations
from tidemill.engine.application.hooks import Hooks, InvokeContext, ModelRegistrar, NodeResolver, WorkflowProvider
from tidemill.engine.application.lifespan import LifespanHook, make_lifespan
from tidemill.engine.application.middleware import Middleware
from tidemill.engine.batching import Batch
from tidemill.engine.jobs.calls import MappedCalls, read_call
from tidemill.engine.jobs.enqueue_options import EnqueueOptions, ManyOptions
from tidemill.engine.jobs.job_handle import JobHandle
from tidemill.engine.jobs.task import BatchTaskDecorator, Call, P, R, Task, TaskDecorator
from tidemill.engine.jobs.view import JobView
from tidemill.engine.models.spec import ModelSpec
from tidemill.engine.settings import SettingOptions, Settings
from tidemill.jobs import Jobs, StepJobs, declare_pipeline, periodic_of
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import A, Operation
from tidemill.store.database import Database
from tidemill.store.jobs.workers import QueueLimit, QueueOptions
from tidemill.store.migrate import Chain
from tidemill.store.schemas import identifier
from tidemill.tasks import TaskDeclaration, declare_task

if TYPE_CHECKING:
    from tidemill.dags.definition.model import ArgsT, Dag
    from tidemill.dags.runner.dag_handle import DagHandle
    from tidemill.engine.runs.run_rate import RateOptions
    from tidemill.engine.runs.start_options import StartOptions
    from tidemill.flows.definition.workflow import AnyWorkflow, ResultT, StartT, Workflow
    from tidemill.flows.runner.run_handle import RunHandle
    from tidemill.monitors.definition.declared import Monitors
    from tidemill.monitors.definition.monitor import Monitor
    from tidemill.pipelines.definition.declared import Pipelines
    from tidemill.pipelines.definition.pipeline import Pipeline
    from tidemill.pipelines.stores.state_store import PipelineStates
    from tidemill.pipelines.workflows import TriggerWorkflow
    from tidemill.runs import DurableWorkflowOptions, Runs
    from tidemill.start_calls import DeclareSchedule, StartSync
    from tidemill.streaming import PublishOptions, Streams
    from tidemill.streams.definition.stream import Stream

T = TypeVar("T")
W = TypeVar("W", bound="AnyWorkflow")


class App:
    """One application: its declarations, and how it starts and follows work."""

    retry = staticmethod(retry)

    def __init__(
        self,
        name: str,
        *,
        lifespan: LifespanHook[App] | None = None,
        middleware: Iterable[Middleware] = (),
        dependencies: Mapping[Any, Callable[..., Any]] | None = None,
        models: Iterable[ModelSpec] = (),
        node_resolver: NodeResolver | None = None,
        invoke_context: InvokeContext | None = None,
        workflow_provider: WorkflowProvider | None = None,
        model_registrar: ModelRegistrar | None = None,
        ref_resolver: RefResolver | None = None,
        **settings: Unpack[SettingOptions],
    ) -> None:
        """`lifespan`, `middleware` and `dependencies`: see docs/lifespan.md. `settings`: see docs/configuration.md."""
        hooks = Hooks(node_resolver, invoke_context, workflow_provider, model_registrar, ref_resolver)
        life = make_lifespan(self, name, lifespan, middleware, dependencies)
        self.declarations = Declarations(name, hooks, models, settings, sys._getframe(1).f_globals, life)
        self.jobs = Jobs(self.declarations)
        self.declarations.gatherer = StepJobs(self.jobs)

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.declarations.tasks)} tasks, {len(self.declarations.schedules)} schedules>"

    @property
    def name(self) -> str:
        return self.declarations.name

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments of App(...), environment, pyproject.toml, defaults."""
        return self.declarations.settings

    @property
    def runs(self) -> Runs:
        """The workflows and dags of this application, and their runs."""
        return self.declarations.runs

    @property
    def streams(self) -> Streams:
        """The streams of this application."""
        return self.declarations.streams

    @property
    def pipelines(self) -> Pipelines:
        """The pipelines of this application."""
        return self.declarations.pipelines

    @property
    def monitors(self) -> Monitors:
        """The monitors of this application, by name."""
        return self.declarations.monitors

    def database(self, *, label: str | None = None) -> Database:
        """A new, unopened connection to this application's database."""
        return self.declarations.database(label=label)

    # -- declaring --------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R, Coroutine[Any, Any, R]]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, *, batch: Batch, **options: Unpack[TaskDeclaration]) -> BatchTaskDecorator: ...

    @overload
    def task(self, /, **options: Unpack[TaskDeclaration]) -> TaskDecorator: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a function as a task, and with `cron=` or `every=` also a schedule: docs/jobs.md has the options."""
        return declare_task(self.declarations, self.schedule, function, options)

    def on_failure(self, task: Task[P, R, T], /) -> Task[P, R, T]:
        """Enqueue this task when a job of any task without an `on_failure=` of its own has failed for good."""
        self.declarations.call_on_failure(task)
        return task

    if TYPE_CHECKING:
        schedule: DeclareSchedule
    else:

        def schedule(self, name, what, given=None, /, *, cron=None, every=None, **options) -> None:
            """Enqueue a task, or start a workflow or dag, on a schedule.

            app.schedule("night", refresh.call(shop=3), cron="0 3 * * *", timezone="Europe/Berlin")
            app.schedule("digest", Article, Topic(topic="tides"), every="1h", overlap="skip")
            """
            self.declarations.add_schedule(periodic_of(self.declarations, name, what, given, cron, every, options))

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Limit how fast jobs of a queue start, over all workers together: `rate="100/s"`; weigh its fair keys.

        `burst` is how many may start at once after a quiet time; a tenth of a second's worth if not given. `weights`
        are the shares of fair keys: one of weight 3 starts three jobs for one without. `key_rate` is of each rate key.
        """
        self.declarations.limits[name] = QueueLimit.of(name, **options)

    def add_page(self, page: Page, /) -> Page:
        """Declare a page of the application's own, which the server shows at `/pages/NAME/`."""
        self.declarations.add_page(page)
        return page

    def migrations(self, folder: Path | str, /, *, schema: str | None = None) -> None:
        """Declare the application's own migrations, for `schema` or one named like it: maintenance applies them."""
        self.declarations.add_migrations(Chain(Path(folder), identifier(self.name) if schema is None else schema))

    @overload
    def workflow(self, workflow: type[W], /, *, name: str | None = None, **options: Any) -> type[W]: ...

    @overload
    def workflow(self, workflow: W, /, *, name: str | None = None, **rate: Unpack[RateOptions]) -> W: ...

    @overload
    def workflow(
        self, /, *, name: str | None = None, **options: Unpack[DurableWorkflowOptions]
    ) -> Callable[[type[W]], type[W]]: ...

    def workflow(self, workflow: type[W] | W | None = None, /, *, name: str | None = None, **options: Any) -> Any:
        """Declare a workflow whose runs may be durable: `@app.workflow`, or with options `@app.workflow(timeout=None)`.

        `options` are those of the workflow's constructor, and `rate`, `rate_key`, `burst` of its runs. It may be an
        object: `app.workflow(FunctionAgent(tools=[...]), name="shop")`. Runs remember it by its name.
        """
        if workflow is None:
            return partial(self.workflow, name=name, **options)
        return self.runs.declare_given(workflow, name, options)

    def stream(self, stream: Stream) -> Stream:
        """Declare a stream: messages of many topics through plans."""
        return self.streams.declare(stream)

    def monitor(self, monitor: Monitor, /) -> Monitor:
        """Declare a monitor, which `tidemill monitor run` and `tidemill up` follow."""
        return self.monitors.declare(monitor)

    def dag(self, dag: Dag[ArgsT], /, **rate: Unpack[RateOptions]) -> Dag[ArgsT]:
        """Declare a dag, so that its runs can be started by its name. With `rate="10/m"` they begin at most so fast."""
        return self.runs.declare_dag(dag, rate)

    def pipeline(self, pipeline: Pipeline, /) -> Pipeline:
        """Declare a pipeline, with all its stages: `tidemill up` and `app.running()` keep it up to date."""
        return declare_pipeline(self.declarations, pipeline)

    def trigger(self, workflow: TriggerWorkflow, /, *, signature: WebhookSignature | None = None) -> Task[Any, Any]:
        """Declare a workflow file that runs once for each event: `POST /triggers/NAME`, or signed, `/webhooks/NAME`."""
        return self.declarations.add_trigger(workflow, signature)

    # -- jobs -------------------------------------------------------------------------------------

    @overload
    async def enqueue(
        self, call: Call[R], /, *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[R]: ...

    @overload
    async def enqueue(self, task: Task[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    @overload
    async def enqueue(self, task: str, /, *positional: Any, **more: Any) -> JobHandle[Any]: ...

    async def enqueue(self, what: Any, /, *positional: Any, **more: Any) -> JobHandle[Any]:
        """Store a job; when this returns, it is committed: `await app.enqueue(send_receipt.call(order_id=7))`.

        Beside the call, all optional:

        delay, at        not before: from now on ("10s"), or at a moment (a datetime with its time zone)
        priority         0 to 9; 9 goes first
        queue            another queue than the task's own
        unique_key       no second unfinished job of this task with this key; `unique_for` holds it for a time
        debounce         run this long after the last call with this unique key, with the arguments of that call
        concurrency_key  at most `max_concurrency` jobs with this key run at once
        fair_key         jobs of different keys share their queue; `rate_key`: those with it start at most at its rate
        required_model   another model than the task's own
        deadline         dropped unrun after this long, or at this moment
        tags             words to find it by
        conn             your own open connection: the job then exists if and only if your transaction commits

        `app.enqueue(send_receipt, order_id=7)` is short for a call without options. A task may also be given by its
        name; keywords that are options then go to the job, and `args=` takes arguments with such a name as a dict.
        """
        call, options = read_call(what, positional, more, self.declarations.task)
        return await self.jobs.enqueue(call, **options)

    @overload
    def enqueue_sync(
        self, call: Call[R], /, *, conn: Any = None, **options: Unpack[EnqueueOptions]
    ) -> JobHandle[R]: ...

    @overload
    def enqueue_sync(self, task: Task[P, R, Any], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...

    @overload
    def enqueue_sync(self, task: str, /, *positional: Any, **more: Any) -> JobHandle[Any]: ...

    def enqueue_sync(self, what: Any, /, *positional: Any, **more: Any) -> JobHandle[Any]:
        """`enqueue` for plain code; `conn` is then a plain connection."""
        call, options = read_call(what, positional, more, self.declarations.task)
        return self.jobs.enqueue_sync(call, **options)

    @overload
    async def enqueue_many(
        self, calls: Iterable[Call[R]], /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[R]]: ...

    @overload
    async def enqueue_many(
        self,
        task: Task[..., R, Any],
        arguments: Iterable[Mapping[str, Any]],
        /,
        *,
        conn: Any = None,
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[R]]: ...

    @overload
    async def enqueue_many(
        self, task: str, arguments: Iterable[Mapping[str, Any]], /, *, conn: Any = None, **options: Unpack[ManyOptions]
    ) -> list[JobHandle[Any]]: ...

    async def enqueue_many(
        self,
        what: Any,
        arguments: Iterable[Mapping[str, Any]] | None = None,
        /,
        *,
        conn: Any = None,
        **options: Unpack[ManyOptions],
    ) -> list[JobHandle[Any]]:
        """Store the jobs of many calls, of one task or of several: all of them, or none if any is wrong.

        `options` are any of `delay`, `at`, `priority`, `queue`, `deadline`, `tags`, `fair_key`, `rate_key`,
        `required_model`, and `unique_key` ("order-{order_id}", with an argument) with `unique_for`, for all of them
        alike. Arguments that are data already may be given as dicts: `app.enqueue_many(send_receipt, orders)`.
        """
        calls = what if arguments is None else MappedCalls(self.declarations.task(what), arguments)
        return await self.jobs.enqueue_many(calls, conn=conn, **options)

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
        """Store jobs that are followed and cancelled as one, all of them or none: see docs/jobs.md.

        on_success   enqueued when all jobs have succeeded: a call, or a task that takes any of batch, total, succeeded,
                     failed, cancelled, expired
        on_complete  the same, when all jobs have ended, however they ended
        keep_open    do not end before `batch.close()`: `batch.add(calls)` adds jobs. Without it, too, until it ends
        """
        ends = {"on_success": on_success, "on_complete": on_complete}
        return await self.jobs.batch(calls, **ends, name=name, keep_open=keep_open, conn=conn, **options)

    async def wait(self, job: JobHandle[Any] | int, *, timeout: Duration | None = None) -> JobView:
        """Return when a job has ended, however it ended. Raises TimeoutError if that takes too long."""
        return await self.jobs.wait(job, timeout=timeout)

    def wait_sync(
        self,
        work: JobHandle[Any] | BatchHandle[Any] | RunHandle[Any] | DagHandle | int,
        *,
        timeout: Duration | None = None,
    ) -> Any:
        """For plain code: a job or a batch once it has ended, or the result of a run."""
        part: Any = self.jobs if isinstance(work, JobHandle | BatchHandle | int) else self.runs
        return self.declarations.connections.call(lambda _: part.wait(work, timeout=timeout))

    # -- runs -------------------------------------------------------------------------------------

    @overload
    async def start(
        self, dag: Dag[ArgsT], args: ArgsT, /, *, conn: Any = None, **options: Unpack[StartOptions]
    ) -> DagHandle: ...

    @overload
    async def start(self, dag: Dag[Any], /, *, conn: Any = None, **more: Any) -> DagHandle: ...

    @overload
    async def start(
        self,
        workflow: type[Workflow[StartT, ResultT]] | Workflow[StartT, ResultT],
        start_event: StartT,
        /,
        *,
        conn: Any = None,
        **options: Unpack[StartOptions],
    ) -> RunHandle[ResultT]: ...

    @overload
    async def start(
        self, workflow: type[Workflow[Any, ResultT]] | Workflow[Any, ResultT], /, *, conn: Any = None, **more: Any
    ) -> RunHandle[ResultT]: ...

    @overload
    async def start(self, name: str, given: Any = None, /, *, conn: Any = None, **more: Any) -> Any: ...

    async def start(self, what: Any, given: Any = None, /, *, conn: Any = None, **more: Any) -> Any:
        """Start a durable run of a workflow or a dag: once this returns, it survives any crash.

        await app.start(Article, Topic(topic="tides"), unique_key="tides")
        await app.start(nightly, Nightly(day="monday"), delay="10m")

        The fields of the start event, or the arguments of the dag's run, may stand by name, too. Beside them, optional:

        delay, at        not before: from now on ("10s"), or at a moment (a datetime with its time zone)
        priority         0 to 9; 9 goes first. Its jobs have it too, unless their nodes or steps have their own
        unique_key       no second run of it with this key: a second start gives the first, `handle.created` is False
        deadline         dropped unrun if it has not begun after this long, or at this moment
        tags             words to find it by
        rate_key         runs that share it begin at most at the rate that their workflow or dag declares
        conn             your own open connection: the run then exists if and only if your transaction commits
        """
        return await self.runs.start(what, given, conn, more)

    if TYPE_CHECKING:
        start_sync: StartSync
    else:

        def start_sync(self, what: Any, given: Any = None, /, *, conn: Any = None, **more: Any) -> Any:
            """`start` for plain code, on a plain connection. `app.wait_sync(handle)` waits for its result."""
            return self.runs.start_sync(what, given, conn, more)

    async def submit(
        self, run: Any, node: str, value: Any, /, *, conn: Any = None, **options: Unpack[SubmitOptions]
    ) -> bool:
        """Answer what a run asks people: whether it has taken the answer, which is stored when this returns."""
        return await submit(self.declarations, run, node, value, conn, **options)

    def submit_sync(
        self, run: Any, node: str, value: Any, /, *, conn: Any = None, **options: Unpack[SubmitOptions]
    ) -> bool:
        """`submit` for plain code; `conn` is then a plain connection."""
        return submit_sync(self.declarations, run, node, value, conn, **options)

    # -- messages and states ----------------------------------------------------------------------

    async def publish(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> None:
        """Append a message to a topic of the PostgreSQL log, with a `key` and `headers`.

        `conn` is your own open connection: the message then exists if and only if your transaction commits.
        """
        await self.streams.publish(topic, value, **options)

    def publish_sync(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> None:
        """`publish` for plain code; `conn` is then a plain connection."""
        self.streams.publish_sync(topic, value, **options)

    def states(self, pipeline: Pipeline | str | None = None, /) -> PipelineStates:
        """The states of a pipeline, to be written from outside: `await app.states("blog").write(...)`."""
        return self.declarations.states(pipeline)

    def atomic(self, conn: Any, /) -> AbstractAsyncContextManager[Atomic]:
        """Rows of yours, jobs, runs, events, messages and states in one transaction on your connection: all, or none.

        async with app.atomic(connection) as tx:
            await connection.execute("INSERT INTO orders VALUES (7)")
            await tx.enqueue(send_receipt.call(order_id=7))
        """
        return atomic(self, conn)

    def atomic_sync(self, conn: Any, /) -> AbstractContextManager[AtomicSync]:
        """`atomic` for plain code and a plain connection."""
        return atomic_sync(self, conn)

    # -- operations -------------------------------------------------------------------------------

    async def do(self, operation: Operation[A, T], args: A, *, by: str | None = None) -> T:
        """Do an operation of `tidemill.ops`, as commands and servers do. `by` is named in the audit trail."""
        caller = Caller(by or f"app {self.name}", "admin")
        return await Local(await self.declarations.reach(), caller, self.declarations).do(operation, args)

    # -- life -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, queues: Iterable[str] | None = None, *, max_concurrency: int | None = None
    ) -> AsyncIterator[App]:
        """Everything in this process for as long as the block lasts: for scripts, tests and trying out.

        async with app.running():
            print(await (await app.enqueue(send_receipt.call(order_id=7))))
        """
        from tidemill.roles import running_here
        from tidemill.server.stream_endpoint.serve import serving_stream

        async with running_here(self.declarations, queues, max_concurrency, serving_stream):
            yield self

    async def close(self) -> None:
        """Close this event loop's connections; the embedded server stops if this process runs it."""
        await self.declarations.connections.close()

    def close_sync(self) -> None:
        """Close what the plain functions have opened."""
        self.declarations.connections.close_sync()

    async def __aenter__(self) -> App:
        await self.declarations.connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
