"""The pipelines that a command line names: of an application, of a Python file without one, or of workflow files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError
from tidemill.engine.application.load_app import is_app, load_app, load_module
from tidemill.pipelines.definition.pipeline import Pipeline, check_order

if TYPE_CHECKING:  # slow to load, and rarely needed
    from tidemill.pipelines.workflows.read import TriggerWorkflow


class PipelineTarget(NamedTuple):
    """Pipelines, the application that declares them, if one does, and what is wrong with other files of the folder."""

    pipelines: list[Pipeline]
    app: Any = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    triggers: Mapping[str, TriggerWorkflow] = MappingProxyType({})
    """Workflows for events, of files without an application."""

    def choose(self, name: str | None) -> list[Pipeline]:
        """The pipeline of this name, or all."""
        if name is None:
            return self.pipelines
        found = [pipeline for pipeline in self.pipelines if pipeline.name == name]
        if not found:
            known = [pipeline.name for pipeline in self.pipelines]
            raise ConfigError(
                f"there is no pipeline {name!r}; there are: {', '.join(known)}{did_you_mean(name, known)}"
            )
        return found


def is_workflow(target: str) -> bool:
    """Whether this is a workflow file, or a folder of them."""
    return Path(target).is_dir() or target.endswith(".json")


def load_target(target: str, *, allow_unknown: bool = False, needs_pipelines: bool = True) -> PipelineTarget:
    """`app.py`, `app.py:name`, `package.module`, a workflow file, or a folder of them.

    Without `needs_pipelines` an application may have none.
    """
    if is_workflow(target):
        from tidemill.pipelines.workflows.folder import read_folder  # slow to load, and rarely needed

        folder = read_folder(target, allow_unknown=allow_unknown)
        found = list(folder.pipelines.values())
        if needs_pipelines and not found:
            raise ConfigError("\n".join([f"{target} contains no pipeline", *folder.errors.values()]))
        return PipelineTarget(found, None, tuple(folder.errors.values()), tuple(folder.notes), folder.triggers)
    module = load_module(target.partition(":")[0])
    app = load_app(target) if ":" in target or any(map(is_app, vars(module).values())) else None
    if app is not None:
        pipelines = list(app.pipelines.known.values())
    else:
        pipelines = [value for value in vars(module).values() if isinstance(value, Pipeline)]
    if not pipelines and (app is None or (needs_pipelines and not app.pipelines.are_kept)):
        raise ConfigError(f'{target} declares no pipeline: add `blog = Pipeline("blog", root="output/")`')
    check_order([stage for pipeline in pipelines for stage in pipeline.stages.values()])
    return PipelineTarget(pipelines, app)
