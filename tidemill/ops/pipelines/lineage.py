"""The lineage of all pipelines of an application, from sources to ends, and what a change would have built."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Arguments, Nothing, doc, operation
from tidemill.ops.pipelines.states import read_states
from tidemill.pipelines.definition.pipeline import Stage, check_order, makers
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.view.lineage import affected_states
from tidemill.pipelines.view.pipeline_cache import PipelineCache, cache_of
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.states.history import sum_took
from tidemill.store.transaction import Reader


class PreviewChange(Arguments, frozen=True, kw_only=True):
    """What would change: a file, or the function of a stage."""

    what: Annotated[str, doc("The path of a file, or PIPELINE/STAGE for its function.", min_length=1, max_length=4000)]


class LineageNode(msgspec.Struct, frozen=True):
    """A stage of a pipeline, or a source: files that no stage makes."""

    id: Annotated[str, doc("PIPELINE/STAGE, or the pattern of a source.")]
    kind: Annotated[str, doc("stage or source.")]
    pipeline: str | None
    output: Annotated[str, doc("The pattern of its files.")]
    counts: Annotated[dict[str, int], doc("How many of its states are fresh, stale and so on.")]


class Lineage(msgspec.Struct, frozen=True):
    """All pipelines as one graph: each stage after those that it takes from, and arrows from files to stages."""

    nodes: list[LineageNode]
    arrows: list[tuple[str, str]]


class ChangePart(msgspec.Struct, frozen=True):
    """How many states of a stage a change would have built, and how long they took last time."""

    pipeline: str
    stage: str
    states: Annotated[int, doc("How many would be built.")]
    seconds: Annotated[float, doc("How long they took last time, together.")]


class ChangePreview(msgspec.Struct, frozen=True):
    """What a change would have built, in all pipelines, if each result differed from the previous one."""

    what: str
    kind: Annotated[str, doc("stage, state (a file that a stage makes) or source (another file).")]
    states: Annotated[int, doc("How many would be built.")]
    seconds: Annotated[float, doc("How long they took last time, together.")]
    parts: list[ChangePart]


@operation("GET /lineage", role="viewer")
async def get_lineage(at: Reader, args: Nothing, declared: Declarations) -> Lineage:
    """The graph of all pipelines, from sources to ends, with how many states of each stage are fresh and so on."""
    snapshots = await _read_all(cache_of(at.database, declared.pipelines))
    order = _order(snapshots)
    sources: dict[str, None] = {}
    arrows: list[tuple[str, str]] = []
    for stage in order:
        before = makers(stage, order)
        arrows += [(maker.full_name, stage.full_name) for maker in before if maker is not stage]
        for one in stage.inputs:
            if not any(one.pattern.overlaps(maker.output) for maker in before if maker is not stage):
                sources[one.pattern.text] = None
                arrows.append((one.pattern.text, stage.full_name))
    nodes = [LineageNode(text, "source", None, text, {}) for text in sources]
    for stage in order:
        snapshot, jobs = snapshots[stage.pipeline.name]
        counts = snapshot.counts(stage.name, jobs)
        nodes.append(LineageNode(stage.full_name, "stage", stage.pipeline.name, stage.output.text, counts))
    return Lineage(nodes, arrows)


@operation("GET /lineage/change", role="viewer")
async def preview_change(at: Reader, args: PreviewChange, declared: Declarations) -> ChangePreview:
    """What would be built in all pipelines if this file or this function changed, and how long that took last time."""
    snapshots = await _read_all(cache_of(at.database, declared.pipelines))
    views = {name: snapshot.pipeline_view for name, (snapshot, _) in snapshots.items()}
    order = _order(snapshots)
    changed = next((stage for stage in order if stage.full_name == args.what), None)
    patterns = [pattern for view in views.values() for pattern in view.patterns]
    if changed is None and not any(pattern.values(args.what) is not None for pattern in patterns):
        raise NotFoundError(
            f"{args.what!r} is neither a file that a stage takes or makes nor PIPELINE/STAGE: "
            f"the stages are {', '.join(stage.full_name for stage in order)}"
        )
    found = await asyncio.to_thread(affected_states, views, order, changed, None if changed else args.what)
    parts = [
        ChangePart(
            stage.pipeline.name,
            stage.name,
            len(entities),
            round(await sum_took(at.database, stage.pipeline.name, stage.name, entities), 3),
        )
        for stage, entities in found
    ]
    total = sum(part.seconds for part in parts)
    is_state = any(stage.output.values(args.what) is not None for stage in order)
    kind = "stage" if changed else "state" if is_state else "source"
    return ChangePreview(args.what, kind, sum(part.states for part in parts), round(total, 3), parts)


async def _read_all(cache: PipelineCache) -> dict[str, tuple[PipelineSnapshot, BuildJobs]]:
    return {name: await read_states(cache, name) for name in cache.known}


def _order(snapshots: dict[str, tuple[PipelineSnapshot, BuildJobs]]) -> list[Stage]:
    return check_order([stage for snapshot, _ in snapshots.values() for stage in snapshot.order])
