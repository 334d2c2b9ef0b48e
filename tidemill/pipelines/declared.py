"""The pipelines of one application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.engine.task import TaskBook
from tidemill.pipelines.model import Pipeline, Stage, check_order
from tidemill.pipelines.runner import PipelineRunner
from tidemill.pipelines.work import Reach, stage_task, task_name
from tidemill.store.database import Database


class Pipelines:
    """What an application knows of pipelines."""

    def __init__(self, tasks: TaskBook, reach: Reach) -> None:
        self.declared: dict[str, Pipeline] = {}
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
