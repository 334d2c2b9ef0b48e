"""Pipelines: declares which states must exist, and builds those that are missing or out of date.

from tidemill.pipelines import Pipeline

blog = Pipeline("auto-blog", root="output/")

@blog.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", min_size=500)
async def summary(entity, files): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.lazy_exports import lazy_exports
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

__getattr__ = lazy_exports(
    __name__,
    {
        "SKIP": "runner.build",
        "BuildError": "runner.build",
        "File": "runner.build",
        "StateStore": "stores.state_store",
        "ObjectStates": "stores.objects",
        "DatabaseStates": "stores.database",
        "load_workflow": "workflows",
        "node_type": "workflows",
        "transform": "workflows",
        "plan_pipeline": "runner.scripting",
        "update_pipeline": "runner.scripting",
    },
)
