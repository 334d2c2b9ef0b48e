"""What one application declares, and how it reaches its database. Commands, servers and operations read it here.

The flows, dags, pipelines, streams and monitors are loaded when they are first used: a process that has only jobs to do
starts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tidemill.core.encoding.sealing import hide_in_logs
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import DEFAULT_QUEUE, NewJob, Origin, check_name
from tidemill.core.limits.size_limits import use_size_limits
from tidemill.core.web.page import Page
from tidemill.core.web.webhook_signature import WebhookSignature
from tidemill.engine.application.connections import Connections
from tidemill.engine.application.hooks import Hooks, ResolvingTasks
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.application.middleware import surrounded
from tidemill.engine.jobs.origin import origin_of_code
from tidemill.engine.jobs.task import Periodic, Task, require_task
from tidemill.engine.jobs.webhook import UNSIGNED, webhook_task
from tidemill.engine.models.spec import ModelSpec, read_specs
from tidemill.engine.settings import Settings, check_names, load_settings
from tidemill.engine.worker.context import find_current_job
from tidemill.store.database import Database
from tidemill.store.jobs.declared import WorkTemplate
from tidemill.store.jobs.schedules.schedules import PROGRAM, DeclaredSchedule, Work
from tidemill.store.jobs.workers import QueueLimit
from tidemill.store.migrate import Chain

if TYPE_CHECKING:
    from tidemill.flows.runner.children import JobGatherer
    from tidemill.monitors.definition.declared import Monitors
    from tidemill.pipelines.definition.declared import Pipelines
    from tidemill.pipelines.stores.state_store import PipelineStates
    from tidemill.pipelines.workflows import TriggerWorkflow
    from tidemill.runs import Runs
    from tidemill.streaming import Streams


#: What declares the stored schedules of an application: its program, and its workflow files.
DECLARERS = (PROGRAM, "workflow files")


def _job_id(_: Mapping[str, Any]) -> str:
    job = find_current_job()
    return "" if job is None else str(job.id)


class Declarations:
    """The tasks, schedules, queues and shapes of one application."""

    def __init__(
        self,
        name: str,
        hooks: Hooks,
        models: Iterable[ModelSpec],
        settings: Mapping[str, Any],
        declared_in: Mapping[str, Any],
        lifespan: Lifespan | None = None,
    ) -> None:
        self.name = check_name("application", name)
        self.hooks = hooks
        self.source: str | None = declared_in.get("__file__")
        """The file that declares the application."""
        self.lifespan = lifespan or Lifespan(name)
        self.tasks = ResolvingTasks(hooks.node_resolver, self._filed_task, self.surround)
        self.schedules: dict[str, Periodic] = {}
        self.limits: dict[str, QueueLimit] = {}
        self.pages: dict[str, Page] = {}
        self.chains: list[Chain] = []
        self._failure_task: str | None = None
        self._has_webhooks = False
        self._own_tasks: list[Task[Any, Any]] = []
        self.gatherer: JobGatherer | None = None
        """What steps of runs gather jobs with."""
        self.connections = Connections(self.database)
        self._models = tuple(models)
        check_names(settings)
        self._arguments = dict(settings)
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The settings in force: arguments of App(...), environment, pyproject.toml, defaults."""
        if self._settings is None:
            self._settings = load_settings(**{**self._arguments, "application": self.name})
            use_size_limits(self._settings.size_limits())
            hide_in_logs(self._settings.codec not in (None, "compress"))
            if self._settings.webhook_secret is not None:
                self.use_webhooks()
        return self._settings

    def configure(self, **settings: Any) -> None:
        """Override settings, before the application is first used."""
        self._arguments = {**self._arguments, **{name: value for name, value in settings.items() if value is not None}}
        self._settings = None

    @contextmanager
    def overriding(self, **settings: Any) -> Iterator[None]:
        """Use other settings, with connections of their own, for as long as the block lasts."""
        before = self._arguments, self._settings
        self.configure(**settings)
        try:
            with self.connections.separate():
                yield
        finally:
            self._arguments, self._settings = before

    @cached_property
    def models(self) -> dict[str, ModelSpec]:
        """The models that workers may load, with those of the host."""
        register = self.hooks.model_registrar
        return read_specs([*self._models, *(register() if register is not None else ())])

    # -- shapes -----------------------------------------------------------------------------------

    @cached_property
    def runs(self) -> Runs:
        """The workflows and dags, and their runs."""
        from tidemill.runs import Runs

        return Runs(self.connections, self.origin, self.tasks, self.hooks, self.lifespan, self.gatherer)

    @cached_property
    def monitors(self) -> Monitors:
        """The monitors, by name."""
        from tidemill.monitors.definition.declared import Monitors

        return Monitors(self.tasks, self.reach, self.lifespan)

    @cached_property
    def pipelines(self) -> Pipelines:
        """The pipelines."""
        from tidemill.pipelines.definition.declared import Pipelines

        async def ask(*question: Any) -> int:
            return await self.runs.ask(*question)  # They are loaded only if something asks.

        return Pipelines(self.tasks, self.reach, self._workflow_folder, self.lifespan, ask)

    def states(self, pipeline: Any) -> PipelineStates:
        """The states of a pipeline, or of the only one, to be written from outside."""
        from tidemill.pipelines.stores.state_store import PipelineStates

        name = pipeline if pipeline is None or isinstance(pipeline, str) else pipeline.name
        return PipelineStates(self.pipelines.require(name), self.connections)

    @cached_property
    def streams(self) -> Streams:
        """The streams."""
        from tidemill.streaming import Streams

        return Streams(self.connections, self.pipelines, self.lifespan)

    def uses(self, shape: Literal["runs", "monitors", "pipelines", "streams"]) -> bool:
        """Whether anything of a shape was declared or asked for, which is when it is loaded."""
        return shape in vars(self)

    # -- what follows from it ---------------------------------------------------------------------

    def add_task(self, task: Task[Any, Any]) -> None:
        """Add a task that the application declares; what it enqueues on failure may be declared before or after."""
        self.tasks.add(task)
        self._own_tasks.append(task)
        if self._failure_task is not None:
            self._call_on_failure(self.tasks[self._failure_task], task)

    def call_on_failure(self, task: Task[Any, Any, Any]) -> None:
        """Enqueue a task when a job of any other task has failed for good."""
        if self._failure_task is not None:
            raise ConfigError(f"app.on_failure was given task {self._failure_task} already: there is one for all tasks")
        known = self.task(task)
        for each in self._own_tasks:
            self._call_on_failure(known, each)
        self._failure_task = known.name

    def _call_on_failure(self, task: Task[Any, Any], failed: Task[Any, Any]) -> None:
        if failed.name != task.name and failed.options.on_failure is None:
            failed.change_options(on_failure=task.callback())

    def use_webhooks(self) -> None:
        """Declare the task that posts the outcomes of jobs."""
        if not self._has_webhooks:
            self._has_webhooks = True
            self.tasks.add(webhook_task(self.name, self.reach, lambda: self.settings.webhook_secret))

    def check_webhook(self, options: Mapping[str, Any], task: Task[Any, Any]) -> None:
        """Raise a `ConfigError` if the outcome of a job would be posted and nothing can sign it."""
        wanted = options.get("webhook") is not None or task.options.webhook is not None
        if wanted and self.settings.webhook_secret is None:
            raise ConfigError(UNSIGNED)

    def surround(self, task: Task[Any, Any]) -> Task[Any, Any]:
        """Let jobs call a task's function within the middleware, with what is injected."""
        task.run = self.surrounded(task.name, task.function)
        return task

    def surrounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a task within the middleware, with what is injected."""
        return surrounded(self.lifespan, "task", name, function, _job_id)

    def task(self, task: Task[Any, Any] | str) -> Task[Any, Any]:
        """The declared task that is meant."""
        if isinstance(task, str):
            return self.tasks.require(task)
        return self.tasks.require(require_task(task).name)

    def add_schedule(self, schedule: Periodic) -> None:
        if schedule.name in self.schedules:
            raise ConfigError(f"two schedules are called {schedule.name!r}")
        self.schedules[check_name("schedule", schedule.name)] = schedule

    def add_trigger(self, workflow: TriggerWorkflow, signature: WebhookSignature | None) -> Task[Any, Any]:
        """Declare the task of a workflow file that runs once for each event; its schedules are stored too."""
        if signature is not None:
            workflow.signature = signature
        return self.pipelines.declare_trigger(workflow)

    def add_page(self, page: Page) -> None:
        if page.name in self.pages:
            raise ConfigError(f"the page {page.name} is declared twice")
        self.pages[page.name] = page.check()

    def add_migrations(self, chain: Chain) -> None:
        if any(known.schema == chain.schema for known in self.chains):
            raise ConfigError(f"the schema {chain.schema} has migrations already: name another one with schema=")
        chain.migrations()
        self.chains.append(chain)

    def stored_schedules(self) -> list[DeclaredSchedule]:
        """The schedules as the database stores them."""
        return [
            DeclaredSchedule(
                name=periodic.name,
                spec=periodic.spec,
                work=self.tasks[periodic.task].new_job(periodic.args) if periodic.run is None else periodic.run(),
                catchup=periodic.catchup,
                jitter=periodic.jitter,
                overlap=periodic.overlap,
            )
            for periodic in self.schedules.values()
        ] + (self.pipelines.schedules() if self._workflow_folder() or self.uses("pipelines") else [])

    def renewed(self, work: Work) -> Work | None:
        """What a schedule starts as it is declared now; None if it is not, or no longer takes its arguments."""
        try:
            if isinstance(work, NewJob):
                task = self.tasks.get(work.task)
                return None if task is None else task.new_job(bytes(work.args))
            return self.runs.renewed(work)
        except TidemillError:
            return None

    def templates(self) -> list[WorkTemplate]:
        """What the tasks, workflows and dags are like, for the SQL functions that start them."""
        tasks = [WorkTemplate("task", task.name, task.template()) for task in self.tasks.values()]
        return tasks + (self.runs.templates() if self.uses("runs") else [])

    def served_queues(self) -> Iterable[str]:
        """The queues that the tasks, dags and workflow files name."""
        found = () if self.hooks.node_resolver is None else (DEFAULT_QUEUE,)
        nodes = self.runs.queues() if self.uses("runs") else ()
        filed = self.pipelines.filed_queues() if self._workflow_folder() else ()
        return dict.fromkeys([*self.tasks.queues(), *nodes, *filed, *found])

    @property
    def has_work(self) -> bool:
        """Whether there are tasks to run, or may be."""
        return bool(self.tasks or self.hooks.node_resolver is not None or self._workflow_folder())

    # -- the database -----------------------------------------------------------------------------

    def database(self, *, label: str | None = None) -> Database:
        """A new, unopened connection to the application's database."""
        return Database(self.settings.database(), label=label or f"tidemill {self.name}")

    def hash_stages(self) -> None:
        """Hash the code of all stages: in each process that builds states, before it runs code of the application."""
        if self.uses("pipelines"):
            for pipeline in self.pipelines.declared.values():
                pipeline.hash_stages()

    async def reach(self) -> Database:
        """The open database of this event loop."""
        return (await self.connections.open()).database

    def origin(self) -> Origin:
        """Why something that is started here exists."""
        return origin_of_code(f"app {self.name}")

    def _workflow_folder(self) -> str | None:
        return self.settings.workflow_folder

    def _filed_task(self, name: str) -> Task[Any, Any] | None:
        return self.pipelines.filed_task(name) if self._workflow_folder() else None
