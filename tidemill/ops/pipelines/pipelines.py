"""Pipelines and their stages: list them, and draw them."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import msgspec

from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.ops.pipelines.states import PipelineName, read_states
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Stage, check_order, makers
from tidemill.pipelines.reducer.reasons import NeedsApproval, kind_of_reason
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.drawing import draw_pipeline, draw_pipeline_svg
from tidemill.pipelines.view.explain import unserved
from tidemill.pipelines.view.pipeline_cache import PipelineCache, cache_of
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.states.build_jobs import is_kept
from tidemill.store.transaction import Reader

Live = Annotated[bool, doc("Also read the states; otherwise only what is declared is shown.")]


class ListPipelines(Arguments, frozen=True, kw_only=True):
    """Which pipelines to list."""

    live: Live = True


class PipelineRef(Arguments, frozen=True, kw_only=True):
    """Which pipeline."""

    name: PipelineName


class GetPipelineGraph(Arguments, frozen=True, kw_only=True):
    """Which pipeline to draw."""

    name: PipelineName
    live: Live = True


class Approval(msgspec.Struct, frozen=True):
    """How many states of a stage wait for approval to be built again, and why they would be."""

    states: Annotated[int, doc("How many wait.")]
    above: Annotated[int, doc("The number above which its stage asks for approval.")]
    reason: str
    because: Annotated[str, doc("Why they would be built again.")]


class StageLine(msgspec.Struct, frozen=True):
    """A stage; `counts` says how many of its states are fresh, stale and so on, `takes` names the stages before it."""

    name: str
    inputs: list[str]
    output: str
    variables: list[str]
    takes: Annotated[list[str], doc("The stages before it.")]
    queue: Annotated[
        str | None, doc("Where its builds wait for workers; null if they run in the process that keeps the pipeline.")
    ]
    on_orphan: str
    approve_above: int | None
    paused_by: str | None
    approval: Approval | None
    counts: Annotated[dict[str, int], doc("How many of its states are fresh, stale and so on.")]
    bytes: int
    code: str


class PipelineLine(msgspec.Struct, frozen=True):
    """A pipeline and its stages, each after those that it takes from, as they were at `looked_at`."""

    name: str
    place: str
    kept: Annotated[bool, doc("Whether a process keeps it up to date now.")]
    paused_by: str | None
    stages: list[StageLine]
    counts: dict[str, int]
    bytes: int
    problems: list[str]
    looked_at: datetime | None
    took: float


def why_empty(line: PipelineLine) -> str:
    """Why a pipeline has no states: nothing is where its first inputs are taken from."""
    outputs = [Pattern(stage.output) for stage in line.stages]
    inputs = dict.fromkeys(each for stage in line.stages for each in stage.inputs)
    first = [each for each in inputs if not any(Pattern(each).overlaps(output) for output in outputs)]
    return f"nothing in {line.place} matches {' or '.join(first) or 'its inputs'}"


class PipelineList(msgspec.Struct, frozen=True):
    """All pipelines; `problems` are those of workflow files that cannot be used."""

    items: list[PipelineLine]
    problems: list[str]


class PipelineGraph(msgspec.Struct, frozen=True):
    """A pipeline as boxes and arrows by name, as Mermaid text, and as SVG text."""

    sources: list[str]
    stages: list[StageLine]
    arrows: list[tuple[str, str]]
    mermaid: str
    svg: str


@operation("GET /pipelines", role="viewer")
async def list_pipelines(at: Reader, args: ListPipelines, declared: Declarations) -> PipelineList:
    """List pipelines with their stages, and how many states of each are fresh, stale, failed and so on."""
    cache = cache_of(at.database, declared.pipelines)
    lines = await asyncio.gather(*(_line(at, cache, name, live=args.live) for name in cache.known))
    return PipelineList(list(lines), cache.file_problems())


@operation("GET /pipelines/{name}", role="viewer")
async def get_pipeline(at: Reader, args: PipelineRef, declared: Declarations) -> PipelineLine:
    """A pipeline with its stages: what is paused, what waits for approval, and how much space it takes."""
    return await _line(at, cache_of(at.database, declared.pipelines), args.name, live=True)


@operation("GET /pipelines/{name}/graph", role="viewer")
async def get_pipeline_graph(at: Reader, args: GetPipelineGraph, declared: Declarations) -> PipelineGraph:
    """Draw a pipeline: its stages and sources, with an arrow from each to the stages that take from it."""
    cache = cache_of(at.database, declared.pipelines)
    pipeline = cache.require(args.name)
    found = await read_states(cache, args.name) if args.live else None
    order = check_order(pipeline.stages.values())
    sources: dict[str, list[str]] = {}
    for stage in order:
        for one in stage.inputs:
            if not any(one.pattern.overlaps(other.output) for other in order if other is not stage):
                sources.setdefault(one.pattern.text, []).append(stage.name)
    arrows = [(source, taker) for source, takers in sources.items() for taker in takers]
    arrows += [(maker.name, stage.name) for stage in order for maker in makers(stage, order)]
    stages = [_stage(stage, order, found) for stage in order]
    counts = {stage.name: stage.counts for stage in stages} if args.live else None
    mermaid, svg = draw_pipeline(pipeline, counts), draw_pipeline_svg(pipeline)
    return PipelineGraph(list(sources), stages, arrows, mermaid, svg)


async def _line(at: Reader, cache: PipelineCache, name: str, *, live: bool) -> PipelineLine:
    pipeline = cache.require(name)
    place = str(pipeline.root if pipeline.store is None else pipeline.store)
    problems, kept = cache.file_problems(name), live and await is_kept(at.database, name)
    found = None
    if live:
        try:
            found = await cache.read(name)
        except StateStoreError as error:  # The other pipelines can still be shown.
            return PipelineLine(name, place, kept, None, [], {}, 0, [*problems, str(error)], None, 0.0)
    order = check_order(pipeline.stages.values())
    stages = [_stage(stage, order, found) for stage in order]
    if found is None:
        return PipelineLine(name, place, kept, None, stages, {}, 0, problems, None, 0.0)
    snapshot, jobs = found
    counts: dict[str, int] = {}
    for stage in stages:
        for state, number in stage.counts.items():
            counts[state] = counts.get(state, 0) + number
    return PipelineLine(
        name,
        place,
        kept,
        _paused_by(snapshot, ""),
        stages,
        counts,
        sum(stage.bytes for stage in stages),
        [*problems, *snapshot.problems, *unserved(jobs.values())],
        snapshot.looked_at,
        snapshot.took,
    )


def _stage(stage: Stage, order: list[Stage], found: tuple[PipelineSnapshot, BuildJobs] | None) -> StageLine:
    """A stage as it is declared, with its states if they were read."""
    options = stage.options
    return StageLine(
        stage.name,
        [one.pattern.text for one in stage.inputs],
        stage.output.text,
        list(stage.variables),
        [maker.name for maker in makers(stage, order)],
        None if options.in_process else options.queue or stage.pipeline.queue,
        options.on_orphan,
        options.approve_above,
        None if found is None else _paused_by(found[0], stage.name),
        None if found is None else _approval(found[0], stage),
        {} if found is None else found[0].counts(stage.name, found[1]),
        0 if found is None else found[0].usage()[stage.name],
        stage.code.total,
    )


def _paused_by(snapshot: PipelineSnapshot, stage: str) -> str | None:
    control = snapshot.pipeline_view.world.controls.get(stage)
    return None if control is None else control.paused_by


def _approval(snapshot: PipelineSnapshot, stage: Stage) -> Approval | None:
    """What of a stage waits for approval."""
    for step in snapshot.not_fresh[stage.name].values():
        if step is not None and isinstance(step.reason, NeedsApproval):
            because = step.reason.because
            return Approval(step.reason.states, step.reason.above, kind_of_reason(because), str(because))
    return None
