"""Pipelines: things that must exist, and how to make whatever is missing or out of date.

from tidemill.pipelines import Pipeline

blog = Pipeline("auto-blog", root="output/")

@blog.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", min_size=500)
async def summary(entity, files): ...
"""

from tidemill.pipelines.build import BuildError, File
from tidemill.pipelines.model import Entity, Pipeline, Stage
from tidemill.pipelines.objects import ObjectStates
from tidemill.pipelines.pattern import Pattern, PatternError
from tidemill.pipelines.tables import DatabaseStates
from tidemill.pipelines.workflows import load_workflow, node_type, transform

__all__ = [
    "BuildError",
    "DatabaseStates",
    "Entity",
    "File",
    "ObjectStates",
    "Pattern",
    "PatternError",
    "Pipeline",
    "Stage",
    "load_workflow",
    "node_type",
    "transform",
]
