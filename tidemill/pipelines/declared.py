"""The pipelines of one application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.core.errors import ConfigError
from tidemill.engine.task import Task, TaskBook, TaskOptions
from tidemill.pipelines.model import Pipeline, Stage, check_order
from tidemill.pipelines.runner import PipelineRunner
from tidemill.pipelines.work import Reach, stage_task, task_name
from tidemill.store.database import Database

if TYPE_CHECKING:
    from tidemill.pipelines.workflows import TriggerWorkflow  # slow to load, and seldom asked for


class Pipelines:
    """What an application knows of pipelines."""

    def __init__(self, tasks: TaskBook, reach: Reach) -> None:
        self.declared: dict[str, Pipeline] = {}
        self.triggers: dict[str, TriggerWorkflow] = {}
        self._tasks = tasks
        self._reach = reach

    def declare(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline that this application keeps up to date; its stages become tasks."""
        if pipeline.name in self.declared:
            raise ConfigError(f"two pipelines are called {pipeline.name!r}: give one of them another name")
        if not pipeline.stages:
            raise ConfigError(f"pipeline {pipeline.name} has no stages yet: declare them before app.pipeline(...)")
        check_order([*self.stages(), *pipeline.stages.values()])
        self.declared[pipeline.name] = pipeline
        for stage in pipeline.stages.values():
            if not stage.options.in_process:
                self._tasks.add(stage_task(stage, self._reach))
        return pipeline

    def declare_trigger(self, workflow: TriggerWorkflow) -> Task[Any, Any]:
        """A workflow file that runs once for each event; each run is a job of the task that is returned."""
        if workflow.name in self.triggers:
            raise ConfigError(f"two workflows are called {workflow.name!r}: give one of them another name")

        async def run(payload: Any = None) -> dict:
            return await workflow.run(payload)

        run.__doc__ = f"Run the workflow {workflow.name} once."
        task = Task(run, f"workflow/{workflow.name}", TaskOptions(queue="pipelines", tags=("workflow",)))
        self._tasks.add(task)
        self.triggers[workflow.name] = workflow
        return task

    def trigger_task(self, name: str) -> Task[Any, Any]:
        """The task that runs a declared workflow."""
        return self._tasks[f"workflow/{name}"]

    def stages(self) -> list[Stage]:
        return [stage for pipeline in self.declared.values() for stage in pipeline.stages.values()]

    def require(self, name: str | None) -> Pipeline:
        """The pipeline of this name, or the only one."""
        if name is None and len(self.declared) == 1:
            return next(iter(self.declared.values()))
        found = self.declared.get(name or "")
        if found is None:
            known = ", ".join(self.declared) or "none"
            raise ConfigError(f"there is no pipeline {name!r}; this application declares: {known}")
        return found

    def runner(self, database: Database, **options: Any) -> PipelineRunner:
        """The role that keeps them up to date."""
        return PipelineRunner(database, list(self.declared.values()), self.task_of, **options)

    @property
    def task_of(self) -> Callable[[Stage], Any]:
        return lambda stage: self._tasks[task_name(stage)]
