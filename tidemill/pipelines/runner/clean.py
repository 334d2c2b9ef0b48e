"""Cleans up outputs whose inputs were removed."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.pipelines.view.lineage import State, output_paths
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.states.states import forget_states


async def clean_orphans(
    pipeline_view: PipelineView, orphans: Iterable[State], *, how: str | None = None
) -> dict[str, list[str]]:
    """Keep, archive or delete outputs, as their stages or `how` say; returns the paths by what was done."""
    done: dict[str, list[str]] = {"keep": [], "archive": [], "delete": []}
    forgotten: dict[str, list[str]] = {}
    for stage, entity in orphans:
        act = how or stage.options.on_orphan
        paths = output_paths(pipeline_view, stage, entity)
        done[act] += paths
        if act == "keep":
            continue
        await (pipeline_view.states.archive(paths) if act == "archive" else pipeline_view.states.remove(paths))
        forgotten.setdefault(stage.name, []).append(entity)
    for stage, entities in forgotten.items():
        await forget_states(pipeline_view.database, pipeline_view.pipeline.name, stage, entities)
    return done
