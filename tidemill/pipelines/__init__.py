"""Pipelines: things that must exist, and how to make whatever is missing or out of date.

from tidemill.pipelines import Pipeline

blog = Pipeline("auto-blog", root="output/")

@blog.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", min_size=500)
async def summary(entity, files): ...
"""

from tidemill.pipelines.build import BuildError, File
from tidemill.pipelines.model import Entity, Pipeline, Stage
from tidemill.pipelines.pattern import Pattern, PatternError

__all__ = ["BuildError", "Entity", "File", "Pattern", "PatternError", "Pipeline", "Stage"]
