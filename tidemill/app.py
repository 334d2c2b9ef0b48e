"""The application: what a program declares, and how it hands out work.

from tidemill import App

app = App("shop")

@app.task(queue="mail", retry=app.retry(max_attempts=5), budget="2m")
async def send_receipt(order_id: int) -> dict: ...

await app.enqueue(send_receipt, order_id=7)          # in async code
app.enqueue_sync(send_receipt, order_id=7)           # in plain code
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, Origin, check_name
from tidemill.core.page import Page
from tidemill.core.refs import RefResolver
from tidemill.core.retry import RetryPolicy, retry
from tidemill.core.schedule import Catchup, parse_schedule
from tidemill.engine.connections import Connections
from tidemill.engine.hooks import (
    Hooks,
    InvokeContext,
    ModelRegistrar,
    NodeResolver,
    ResolvingTasks,
    WorkflowProvider,
)
from tidemill.engine.jobs.task import Periodic, Task, TaskOptions
from tidemill.engine.maintenance import maintenance_role
from tidemill.engine.models.spec import ModelSpec, gpu_concurrency, read_specs, require_model
from tidemill.engine.role import Role, Runnable, run_roles
from tidemill.engine.scheduler import Scheduler
from tidemill.engine.settings import Settings, load_settings
from tidemill.engine.worker.context import find_current_job
from tidemill.engine.worker.worker import Worker, worker_role
from tidemill.shapes import Shapes
from tidemill.store.database import Database, identifier
from tidemill.store.jobs.schedules import DeclaredSchedule
from tidemill.store.jobs.workers import QueueLimit
from tidemill.store.migrate import Chain

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker
    from tidemill.monitors.runner.runner import MonitorRunner

P = ParamSpec("P")
R = TypeVar("R")


class App(Shapes):
    """One application: its tasks, schedules and queues, and its way to the database."""

    retry = staticmethod(retry)

    def __init__(
        self,
        name: str,
        *,
        models: Iterable[ModelSpec] = (),
        node_resolver: NodeResolver | None = None,
        invoke_context: InvokeContext | None = None,
        workflow_provider: WorkflowProvider | None = None,
        model_registrar: ModelRegistrar | None = None,
        ref_resolver: RefResolver | None = None,
        **settings: Any,
    ) -> None:
        self.name = check_name("application", name)
        self.hooks = Hooks(node_resolver, invoke_context, workflow_provider, model_registrar, ref_resolver)
        self.tasks = ResolvingTasks(node_resolver, self._filed_task)
        self._models = tuple(models)
        self.periodics: dict[str, Periodic] = {}
        self.limits: dict[str, QueueLimit] = {}
        self.source = sys._getframe(1).f_globals.get("__file__")
        self.acting_as: str | None = None  # whom to name as the origin of jobs, where it is not the application itself
        self._arguments = settings
        self._settings: Settings | None = None
        self._connections = Connections(self.database)
        self.pages: dict[str, Page] = {}
        self.chains: list[Chain] = []

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.tasks)} tasks, {len(self.periodics)} schedules>"

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments of App(...), environment, pyproject.toml, defaults."""
        if self._settings is None:
            self._settings = load_settings(**{**self._arguments, "application": self.name})
        return self._settings

    @cached_property
    def models(self) -> dict[str, ModelSpec]:
        """The models that workers may load, with those of the host."""
        register = self.hooks.model_registrar
        return read_specs([*self._models, *(register() if register is not None else ())])

    def configure(self, **settings: Any) -> None:
        """Override settings, before the application is first used."""
        self._arguments = {**self._arguments, **{name: value for name, value in settings.items() if value is not None}}
        self._settings = None

    # -- declaring --------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | int | None = None,
        budget: Duration | None = None,
        stall: Duration | None = None,
        isolation: Literal["process"] | None = None,
        tags: Iterable[str] = (),
        concurrency_key: str | None = None,
        concurrency: int = 1,
        required_model: str | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | int | None = None,
        budget: Duration | None = None,
        stall: Duration | None = None,
        isolation: Literal["process"] | None = None,
        tags: Iterable[str] = (),
        concurrency_key: str | None = None,
        concurrency: int = 1,
        required_model: str | None = None,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> Any:
        """Declare a function as a task, and with `cron=` or `every=` also a schedule that enqueues it.

        queue            where its jobs wait; any name, made by using it
        priority         0 to 9; 9 goes first
        retry            `app.retry(...)`, or a number of attempts; without it a failed job stays failed
        budget           the longest an attempt may run before the watchdog ends it
        stall            the longest an attempt may be silent after its first progress report
        isolation        "process": run it in a child process that can be killed
        concurrency_key  jobs that share this key run at most `concurrency` at a time; `{argument}` is filled in
        required_model   the model of App(models=[...]) that it needs: loaded before it starts, kept until it ends
        catchup          what a schedule does about fires that it missed: "skip", "one" or "all"
        jitter           a schedule's jobs start up to this much later
        """
        policy = App.retry(retry) if isinstance(retry, int) else retry
        if isolation not in (None, "process"):
            raise ConfigError(f"isolation {isolation!r} is not known: leave it out, or say 'process'")
        options = TaskOptions(
            queue=check_name("queue", queue),
            priority=priority,
            retry=policy,
            budget=None if budget is None else parse_duration(budget, what="budget"),
            stall=None if stall is None else parse_duration(stall, what="stall"),
            isolation=isolation,
            tags=tuple(tags),
            concurrency_key=concurrency_key,
            concurrency_max=concurrency,
            required_model=required_model,
        )

        def declare(body: Callable[..., Any]) -> Task[Any, Any]:
            task = Task(body, name or getattr(body, "__name__", ""), options)
            self.tasks.add(task)
            if cron is not None or every is not None:
                self.schedule(
                    task.name, task, cron=cron, every=every, timezone=timezone, catchup=catchup, jitter=jitter
                )
            return task

        return declare if function is None else declare(function)

    def schedule(
        self,
        name: str,
        task: Task[Any, Any] | str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str = "UTC",
        args: Mapping[str, Any] | None = None,
        catchup: Catchup = "one",
        jitter: Duration = 0,
    ) -> None:
        """Enqueue a task again and again: a second schedule for a task, or one with arguments."""
        known = self._task(task)
        if name in self.periodics:
            raise ConfigError(f"two schedules are called {name!r}")
        if catchup not in ("skip", "one", "all"):
            raise ConfigError(f"catchup {catchup!r} is not one of skip, one, all")
        self.periodics[check_name("schedule", name)] = Periodic(
            name=name,
            task=known.name,
            spec=parse_schedule(cron=cron, every=every, timezone=timezone),
            args=known.signature.bind((), dict(args or {})),
            catchup=catchup,
            jitter=parse_duration(jitter, what="jitter"),
        )

    def queue(self, name: str, *, rate: str | float | None = None, burst: float | None = None) -> None:
        """Limit how fast jobs of a queue start, over all workers together: `rate="100/s"`.

        `burst` is how many may start at once after a quiet time; a tenth of a second's worth if not given.
        """
        self.limits[name] = QueueLimit.of(name, rate, burst)

    def add_page(self, page: Page, /) -> Page:
        """Declare a page of the application's own, which the server shows at `/pages/NAME/`."""
        if page.name in self.pages:
            raise ConfigError(f"the page {page.name} is declared twice")
        self.pages[page.name] = page.check()
        return page

    def migrations(self, folder: Path, /, *, schema: str | None = None) -> None:
        """Declare the application's own migrations, `0001_name.sql` and so on: maintenance applies them.

        Their tables and their ledger are in `schema`; the application's name made an identifier, if it is not given.
        """
        chain = Chain(folder, identifier(self.name) if schema is None else schema)
        if any(other.schema == chain.schema for other in self.chains):
            raise ConfigError(f"the schema {chain.schema} has migrations already: name another one with schema=")
        chain.migrations()
        self.chains.append(chain)

    def declared_schedules(self) -> list[DeclaredSchedule]:
        """The schedules as the database stores them."""
        return [
            DeclaredSchedule(
                name=periodic.name,
                spec=periodic.spec,
                job=self.tasks[periodic.task].new_job(periodic.args),
                catchup=periodic.catchup,
                jitter=periodic.jitter,
            )
            for periodic in self.periodics.values()
        ]

    # -- living -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, queues: Iterable[str] | None = None, *, concurrency: int | None = None
    ) -> AsyncIterator[App]:
        """Everything in this process for as long as the block lasts: for scripts, tests and trying out.

        async with app.running():
            job = await app.enqueue(send_receipt, order_id=7)
            print(await app.wait(job))
        """
        async with self.database() as database:
            roles: list[Runnable] = [maintenance_role(database, self.settings.maintenance(), chains=self.chains)]
            if self.tasks or queues is not None or self.hooks.node_resolver is not None or self._workflow_folder():
                roles.append(self.worker(queues, concurrency=concurrency, database=database))
            roles.append(Role(Scheduler(database, self.name, self.declared_schedules()), database))
            if self._workflow_folder() or (self.uses("pipelines") and self.pipelines.declared):
                roles.append(self.pipelines.runner(database, keep_days=self.settings.keep_days))
            if self.uses("streams"):
                roles += self.streams.dispatchers(database, self.source)
            loop, run_worker = asyncio.get_running_loop(), self.run_worker(database=database)
            if self.runs.kinds:
                roles.append(run_worker)
                self.runs.run_workers[loop] = run_worker.work
            if self.uses("monitors") and self.monitors:
                roles.append(self.monitor_runner(database=database))
            try:
                async with run_roles(*roles):
                    try:
                        yield self
                    finally:
                        await self.close()
            finally:
                self.runs.run_workers.pop(loop, None)

    def database(self, *, label: str | None = None) -> Database:
        """A new, unopened way to this application's database."""
        return Database(self.settings.database(), label=label or f"tidemill {self.name}")

    def served_queues(self) -> Iterable[str]:
        """The queues that this application's tasks, dags and workflow files name."""
        found = () if self.hooks.node_resolver is None else (DEFAULT_QUEUE,)
        nodes = self.runs.queues() if self.uses("runs") else ()
        filed = self.pipelines.filed_queues() if self._workflow_folder() else ()
        return dict.fromkeys([*self.tasks.queues(), *nodes, *filed, *found])

    def worker(
        self, queues: Iterable[str] | None = None, *, concurrency: int | None = None, database: Database | None = None
    ) -> Role[Worker]:
        """A worker for these queues, or for all that the tasks name; `await worker.run()` works until stopped."""
        wanted = tuple(dict.fromkeys(queues if queues is not None else self.served_queues()))
        for task in self.tasks.values():
            require_model(task.options.required_model, self.models, where=f"task {task.name}: ")
        if concurrency is None:
            served = [task.options for task in self.tasks.values() if task.options.queue in wanted]
            concurrency = gpu_concurrency(self.models, [options.required_model for options in served])
        reached = database or self.database(label=f"tidemill worker {self.name}")
        worker = Worker(
            reached,
            self.tasks,
            self.settings.worker(wanted, concurrency),
            limits=self.limits.values(),
            models=self.models.values(),
            invoke_context=self.hooks.invoke_context,
            app_path=self.source,
        )
        return worker_role(worker, reached)

    def run_worker(self, *, database: Database | None = None) -> Role[RunWorker]:
        """A run worker for the durable runs of this application's workflows."""
        from tidemill.engine.runs.run_store import PostgresRunStore
        from tidemill.engine.runs.run_worker import RunWorker, run_worker_role

        settings = self.settings
        reached = database or self.database(label=f"tidemill run worker {self.name}")
        store = PostgresRunStore(reached)
        return run_worker_role(
            RunWorker(store, self.runs.kinds),
            store,
            reached,
            lease_seconds=settings.lease_seconds,
            heartbeat_seconds=settings.heartbeat_seconds,
        )

    def monitor_runner(self, *, database: Database | None = None, **options: Any) -> Role[MonitorRunner]:
        """The role that follows this application's monitors."""
        reached = database or self.database(label=f"tidemill monitor {self.name}")
        return self.monitors.runner(reached, self.settings, **options)

    async def close(self) -> None:
        """Close this event loop's connections; the embedded server stops if this process runs it."""
        await self._connections.close()

    def close_sync(self) -> None:
        """Close what the plain functions have opened."""
        self._connections.close_sync()

    async def __aenter__(self) -> App:
        await self._connections.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- inner parts ------------------------------------------------------------------------------

    def _workflow_folder(self) -> str | None:
        return self.settings.workflow_folder

    def _filed_task(self, name: str) -> Task[Any, Any] | None:
        return self.pipelines.filed_task(name) if self._workflow_folder() else None

    async def _reach(self) -> Database:
        return (await self._connections.open()).database

    def _origin(self) -> Origin:
        job = find_current_job()
        by = self.acting_as or f"app {self.name}" if job is None else f"job {job.id} ({job.task})"
        return Origin(by=by, host=_HOST, pid=os.getpid(), parent=None if job is None else job.id)


_HOST = socket.gethostname()
