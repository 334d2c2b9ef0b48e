"""Reads outputs again that look deleted or edited, before their states are built because of that.

Another builder may have put them in place after the files were scanned and before the rows were read. Once they are
read again they are at least as new as the rows, whose versions are compared when the states are leased.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import Deleted, Edited, TooSmall
from tidemill.pipelines.reducer.staleness import input_pairs
from tidemill.pipelines.view.pipeline_view import PipelineView


async def check_outputs(pipeline_view: PipelineView, plan: BuildPlan) -> BuildPlan:
    """Read outputs again that look deleted or edited; returns the plan, or a new one of all states if they differ."""
    checked: set[str] = set()
    while paths := [path for step in plan.builds for path in _doubtful(pipeline_view, step) if path not in checked]:
        checked.update(paths)
        if await pipeline_view.refresh(paths):
            await pipeline_view.read_unknown()
            plan = pipeline_view.plan()
    return plan


def _doubtful(pipeline_view: PipelineView, step: BuildStep) -> Iterable[str]:
    """The outputs of a state that is built because of them."""
    # A state without a version has no row yet: it is leased only as long as it has none.
    if not step.version or not isinstance(step.reason, Deleted | Edited | TooSmall):
        return ()
    if not step.stage.scatter:
        return (step.stage.quick_path(step.entity),)
    record = pipeline_view.world.records[step.stage.name].get(step.entity)
    return () if record is None else input_pairs(record.content)
