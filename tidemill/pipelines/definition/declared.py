"""The pipelines of one application: those that its program declares, and those of its folder of workflow files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.core.check_given import check_kind
from tidemill.core.did_you_mean import find_declared
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.injected import injected_parameters
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.jobs.task import Task, TaskRegistry
from tidemill.engine.roles.role import Role
from tidemill.engine.settings import Settings
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, check_order
from tidemill.pipelines.runner.build_job import Reach, stage_task
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import PROGRAM, DeclaredSchedule

if TYPE_CHECKING:  # slow to load, and rarely needed
    from tidemill.pipelines.view.pipeline_cache import PipelineCache
    from tidemill.pipelines.workflows import TriggerWorkflow
    from tidemill.pipelines.workflows.folder import WorkflowFolder
    from tidemill.pipelines.workflows.questions import AskLater

QUEUE = "pipelines"
#: The owner of tasks that run the text of a workflow that need not be saved: `workflow-draft/NAME`.
DRAFT = "workflow-draft"


class Pipelines:
    """The pipelines and triggered workflows of an application."""

    def __init__(
        self,
        tasks: TaskRegistry,
        reach: Reach,
        folder: Callable[[], str | None],
        lifespan: Lifespan | None,
        ask: AskLater | None,
    ) -> None:
        """`folder` returns the folder of workflow files, if there is one, once the application is used.

        `ask` has people asked what nodes of workflow files ask.
        """
        self.declared: dict[str, Pipeline] = {}
        self.declared_triggers: dict[str, TriggerWorkflow] = {}
        self._tasks = tasks
        self._reach = reach
        self._where = folder
        self._folder: WorkflowFolder | None = None
        self._lifespan = lifespan or Lifespan()
        self._ask = ask
        self._filed_tasks: dict[str, Task[Any, Any]] = {}
        self._filed_version = 0
        self.cache: PipelineCache | None = None
        """Snapshots that reads share; without it, each operation takes its own."""

    @property
    def folder(self) -> WorkflowFolder | None:
        """The folder of workflow files, if there is one, read again if it has changed."""
        where = self._where()
        if where is None:
            return None
        if self._folder is None or self._folder.path != Path(where):
            from tidemill.pipelines.workflows.folder import Loaded, WorkflowFolder

            self._folder = WorkflowFolder(
                where, lambda: Loaded(list(self.declared.values()), list(self.declared_triggers.values()))
            )
        self._folder.refresh()
        return self._folder

    @property
    def known(self) -> dict[str, Pipeline]:
        """All pipelines as they are now, by name."""
        folder = self.folder
        return self.declared if folder is None else {**self.declared, **folder.pipelines}

    @property
    def triggers(self) -> dict[str, TriggerWorkflow]:
        """All workflows that run once for each event, as they are now, by name."""
        folder = self.folder
        return self.declared_triggers if folder is None else {**self.declared_triggers, **folder.triggers}

    @property
    def are_kept(self) -> bool:
        """Whether there is something to keep up to date, or may be soon."""
        return bool(self.declared) or self._where() is not None

    def declare(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline that this application keeps up to date; its stages become tasks."""
        check_kind("app.pipeline", pipeline, Pipeline, "a Pipeline, such as load_workflow('blog.json').pipelines[0]")
        if pipeline.name in self.declared:
            raise ConfigError(f"two pipelines are called {pipeline.name!r}: give one of them another name")
        if not pipeline.stages:
            raise ConfigError(f"pipeline {pipeline.name} has no stages yet: declare them before app.pipeline(...)")
        check_order([*self.stages(), *pipeline.stages.values()])
        self.declared[pipeline.name] = pipeline
        pipeline.lifespan = self._lifespan
        for stage in pipeline.stages.values():
            where = f"stage {stage.full_name}"
            self._lifespan.add_taker(where, injected_parameters(stage.function, where=where))
            if not stage.options.in_process:
                self._tasks.add(stage_task(stage, self._reach))
        return pipeline

    def declare_trigger(self, workflow: TriggerWorkflow) -> Task[Any, Any]:
        """A workflow file that runs once for each event; each run is a job of the task that is returned."""
        if workflow.name in self.declared_triggers:
            raise ConfigError(f"two workflows are called {workflow.name!r}: give one of them another name")
        from tidemill.pipelines.workflows.schedules import trigger_task

        task = trigger_task(workflow, self._ask)
        self._tasks.add(task)
        self.declared_triggers[workflow.name] = workflow
        return task

    def filed_task(self, name: str) -> Task[Any, Any] | None:
        """The task of a stage or a workflow that a file declares now."""
        folder = self.folder
        if folder is None:
            return None
        if self._filed_version != folder.version:
            self._filed_version, self._filed_tasks = folder.version, {}
        if name not in self._filed_tasks:
            owner, _, stage = name.partition("/")
            if owner in folder.pipelines and stage in folder.pipelines[owner].stages:
                self._filed_tasks[name] = stage_task(folder.pipelines[owner].stages[stage], self._reach)
            elif owner == "workflow" and stage in folder.triggers:
                from tidemill.pipelines.workflows.schedules import trigger_task

                self._filed_tasks[name] = trigger_task(folder.triggers[stage], self._ask)
            elif owner == DRAFT and stage:
                from tidemill.pipelines.workflows.trials.draft_run import draft_task

                return draft_task(stage, self._reach)
        return self._filed_tasks.get(name)

    def filed_queues(self) -> list[str]:
        """The queues that what files declare waits in: the usual one, and those that they name now."""
        folder = self.folder
        if folder is None:
            return []
        stages = [stage for pipeline in folder.pipelines.values() for stage in pipeline.stages.values()]
        return list(dict.fromkeys([QUEUE, *(stage.options.queue for stage in stages if stage.options.queue)]))

    def trigger_task(self, name: str) -> Task[Any, Any]:
        """The task that runs a declared workflow."""
        return self._tasks[f"workflow/{name}"]

    def schedules(self) -> list[DeclaredSchedule]:
        """The schedules of workflows: those that the program declares, and those of files."""
        from tidemill.pipelines.workflows.schedules import FILES, workflow_schedules

        found = workflow_schedules(self.declared_triggers.values(), self.trigger_task, PROGRAM)
        folder = self.folder
        return found + (
            [] if folder is None else workflow_schedules(folder.triggers.values(), self.trigger_task, FILES)
        )

    def admin_reason(self, task: str) -> str | None:
        """Why only an admin may start jobs of a task: it runs a node that needs one, or any text. None for all others.

        An editor starts a draft by an operation of its own, which checks the text.
        """
        owner, _, name = task.partition("/")
        if owner == DRAFT:
            return f"task {task} runs any text, which needs the role admin"
        workflow = self.triggers.get(name) if owner == "workflow" else None
        node = None if workflow is None else next(iter(workflow.admin_nodes), None)
        return None if node is None else f"task {task} has node {node!r}, which needs the role admin"

    def stages(self) -> list[Stage]:
        return [stage for pipeline in self.declared.values() for stage in pipeline.stages.values()]

    def require(self, name: str | None) -> Pipeline:
        """The pipeline of this name, or the only one."""
        return find_declared("pipeline", self.known, name)

    def runner(self, database: Database, settings: Settings = Settings()) -> Role[Any]:  # noqa: B008 - it is frozen
        """The role that keeps them up to date."""
        from tidemill.pipelines.runner.runner import PipelineRunner, pipeline_role  # only its process needs it

        folder, declared, keep_days = self.folder, list(self.declared.values()), settings.keep_days
        if folder is None:
            runner = PipelineRunner(database, declared, self.task_of, keep_days=keep_days)
            return self._with_lifespan(pipeline_role(runner, runner, database, settings))
        from tidemill.pipelines.workflows.runner import WorkflowRunner

        work = WorkflowRunner(
            database, folder, beside=declared, task_of=self.task_of, tasks=self._tasks, keep_days=keep_days
        )
        return self._with_lifespan(pipeline_role(work, work.pipelines, database, settings))

    def _with_lifespan(self, role: Role[Any]) -> Role[Any]:
        role.lifespan = self._lifespan
        return role

    @property
    def task_of(self) -> Callable[[Stage], Any]:
        return lambda stage: self._tasks[stage.full_name]
