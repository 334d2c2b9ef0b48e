"""Pipelines: declares which states must exist, and builds those that are missing or out of date.

from tidemill.pipelines import Pipeline

blog = Pipeline("auto-blog", root="output/")

@blog.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", min_size=500)
async def summary(entity, files): ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import Pattern, PatternError
from tidemill.pipelines.definition.pipeline import Pipeline, Stage

if TYPE_CHECKING:
    from tidemill.pipelines.runner.build import SKIP, BuildError, File
    from tidemill.pipelines.runner.scripting import plan_pipeline, update_pipeline
    from tidemill.pipelines.stores.database import DatabaseStates
    from tidemill.pipelines.stores.objects import ObjectStates
    from tidemill.pipelines.stores.state_store import StateStore
    from tidemill.pipelines.workflows import load_workflow, node_type, transform

__all__ = [
    "SKIP",
    "BuildError",
    "DatabaseStates",
    "Entity",
    "File",
    "ObjectStates",
    "Pattern",
    "PatternError",
    "Pipeline",
    "Stage",
    "StateStore",
    "load_workflow",
    "node_type",
    "plan_pipeline",
    "transform",
    "update_pipeline",
]

# Loaded lazily: most programs use none of these, and a full check must start fast.
_LATER = {
    "SKIP": "tidemill.pipelines.runner.build",
    "BuildError": "tidemill.pipelines.runner.build",
    "File": "tidemill.pipelines.runner.build",
    "StateStore": "tidemill.pipelines.stores.state_store",
    "ObjectStates": "tidemill.pipelines.stores.objects",
    "DatabaseStates": "tidemill.pipelines.stores.database",
    "load_workflow": "tidemill.pipelines.workflows",
    "node_type": "tidemill.pipelines.workflows",
    "transform": "tidemill.pipelines.workflows",
    "plan_pipeline": "tidemill.pipelines.runner.scripting",
    "update_pipeline": "tidemill.pipelines.runner.scripting",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
