"""Pipelines and their states: list them, draw them, explain them, and see what would be built and why."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidemill.core.errors import StoreError
from tidemill.declarations import Declarations
from tidemill.ops.operator.cursor import read_moment_cursor, read_row_cursor, write_moment_cursor, write_row_cursor
from tidemill.ops.operator.operation import Arguments, Limit, NameCursor, PageOf, doc, operation
from tidemill.pipelines.definition.pipeline import Stage, check_order, makers
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import NeedsApproval, kind_of_reason
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view import state_grid as grid
from tidemill.pipelines.view.content_preview import Content, preview
from tidemill.pipelines.view.drawing import draw_pipeline, draw_pipeline_svg
from tidemill.pipelines.view.lineage import output_paths
from tidemill.pipelines.view.pipeline_cache import PipelineCache, cache_of
from tidemill.pipelines.view.snapshot import PipelineSnapshot, step_state
from tidemill.pipelines.view.state_details import Build, StateDetails, build_of, describe_state
from tidemill.store.states.backfills import list_backfills as read_backfills
from tidemill.store.states.build_jobs import is_kept
from tidemill.store.states.history import page_builds
from tidemill.store.transaction import Reader

SHOWN = 200
MOST_SHOWN = 100_000

PipelineName = Annotated[str, doc("The pipeline.")]
StageFilter = Annotated[Annotated[str, Meta(max_length=400)] | None, doc("Only this stage.")]
Shown = Annotated[int, doc("How many to name.", ge=0, le=MOST_SHOWN)]
Live = Annotated[bool, doc("Read the states as well; without, only what is declared.")]


class ListPipelines(Arguments, frozen=True, kw_only=True):
    """What to tell of pipelines."""

    live: Live = True


class PipelineRef(Arguments, frozen=True, kw_only=True):
    """Which pipeline."""

    name: PipelineName


class GetPipelineGraph(Arguments, frozen=True, kw_only=True):
    """Which pipeline to draw."""

    name: PipelineName
    live: Live = True


class GetPipelineGrid(Arguments, frozen=True, kw_only=True):
    """Which rows and columns of a pipeline's states."""

    name: PipelineName
    by: Annotated[
        Annotated[str, Meta(max_length=400)] | None, doc("Which grid, by its variables; the first if not given.")
    ] = None
    state: Annotated[
        tuple[str, ...], doc("Rows with a state that is this: fresh, stale, failed and so on; may be repeated.")
    ] = ()
    stage: Annotated[tuple[str, ...], doc("Only this stage; may be repeated.")] = ()
    text: Annotated[str, doc("Entities with this text in their name.", max_length=400)] = ""
    order: Annotated[Literal["asc", "desc"], doc("The order of the entities.")] = "desc"
    limit: Limit = 50
    cursor: NameCursor = None


class GetState(Arguments, frozen=True, kw_only=True):
    """Which state."""

    name: PipelineName
    stage: Annotated[str, doc("Its stage.", max_length=4000)]
    entity: Annotated[str, doc("Its entity.", max_length=4000)] = ""
    follow: Annotated[bool, doc("Follow its inputs and outputs step by step.")] = False


class GetContent(Arguments, frozen=True, kw_only=True):
    """Which file of a pipeline."""

    name: PipelineName
    path: Annotated[str, doc("The path of an input or output.", max_length=4000)]


class PlanPipeline(Arguments, frozen=True, kw_only=True):
    """Which part of a plan."""

    name: PipelineName
    stage: StageFilter = None
    limit: Shown = SHOWN


class ListBuilds(Arguments, frozen=True, kw_only=True):
    """Which builds."""

    name: PipelineName
    stage: StageFilter = None
    entity: Annotated[Annotated[str, Meta(max_length=400)] | None, doc("Only this entity.")] = None
    limit: Limit = 50
    cursor: NameCursor = None


class ListBackfills(Arguments, frozen=True, kw_only=True):
    """Which backfills."""

    name: PipelineName
    limit: Annotated[int, doc("How many of the newest.", ge=1, le=100)] = 20


class ListOrphans(Arguments, frozen=True, kw_only=True):
    """Which orphans."""

    name: PipelineName
    stage: StageFilter = None
    limit: Shown = SHOWN


class Approval(msgspec.Struct, frozen=True):
    """How many states of a stage wait for approval to be built again, and why they would be."""

    states: int
    above: int
    reason: str
    because: str


class StageLine(msgspec.Struct, frozen=True):
    """A stage; `counts` says how many of its states are fresh, stale and so on, `takes` names the stages before it."""

    name: str
    inputs: list[str]
    output: str
    variables: list[str]
    takes: list[str]
    queue: str | None
    """Where its builds wait for workers; null if they run in the process that keeps the pipeline."""
    on_orphan: str
    approve_above: int | None
    paused_by: str | None
    approval: Approval | None
    counts: dict[str, int]
    bytes: int
    code: str


class PipelineLine(msgspec.Struct, frozen=True):
    """A pipeline and its stages, each after those that it takes from, as they were at `looked_at`."""

    name: str
    place: str
    kept: bool
    """Whether a process keeps it up to date now."""
    paused_by: str | None
    stages: list[StageLine]
    counts: dict[str, int]
    bytes: int
    problems: list[str]
    looked_at: datetime | None
    took: float


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


class GridGroup(msgspec.Struct, frozen=True):
    """Stages that share a grid, because their entities have the same variables."""

    by: str
    stages: list[str]
    entities: int


class GridRow(msgspec.Struct, frozen=True):
    """An entity, and its state in each stage; null where there is none."""

    entity: str
    cells: list[str | None]


class StateGrid(msgspec.Struct, frozen=True):
    """Entities down, stages across; `next` is the cursor of the next page, or null on the last one."""

    by: str
    groups: list[GridGroup]
    stages: list[str]
    items: list[GridRow]
    total: int
    before: int
    """How many rows come before this page."""
    next: str | None
    looked_at: datetime


class PlanStep(msgspec.Struct, frozen=True):
    """A state that is not fresh: what it is instead, and why it is built or held back."""

    stage: str
    entity: str
    state: str
    reason: str
    told: str
    path: str | None
    """Its output; null where it has many."""
    is_build: bool


class PlanPart(msgspec.Struct, frozen=True):
    """How many states of a stage there are for one reason."""

    stage: str
    reason: str
    state: str
    states: int
    first: str
    told: str


class PlanReport(msgspec.Struct, frozen=True):
    """What would be done now, without doing it. `steps` are the first of them."""

    pipeline: str
    builds: int
    holds: int
    orphans: int
    fresh: dict[str, int]
    parts: list[PlanPart]
    steps: list[PlanStep]
    problems: list[str]
    looked_at: datetime


class Backfill(msgspec.Struct, frozen=True):
    """States that an operator has built again; `left` of `total` are not built yet."""

    id: int
    stage: str
    first: str | None
    last: str | None
    downstream: bool
    by: str
    started_at: datetime
    stopped_at: datetime | None
    stopped_by: str | None
    total: int
    left: int
    failed: int
    """How many of those that are left have failed since it began."""
    rate: float | None = None
    """At most so many are built a second; null for no limit."""


class Backfills(msgspec.Struct, frozen=True):
    """Backfills, newest first; `kept` says whether a process keeps the pipeline up to date, and so builds them."""

    items: list[Backfill]
    kept: bool


class Orphan(msgspec.Struct, frozen=True):
    """A state whose inputs are gone, and what its stage does with it when it is cleaned up."""

    stage: str
    entity: str
    paths: list[str]
    bytes: int
    how: str


class Orphans(msgspec.Struct, frozen=True):
    """States whose inputs are gone; `items` are the first of `total`."""

    items: list[Orphan]
    total: int
    bytes: int
    looked_at: datetime


@operation("GET /pipelines", scope="read")
async def list_pipelines(at: Reader, args: ListPipelines, declared: Declarations) -> PipelineList:
    """List pipelines with their stages, and how many states of each are fresh, stale, failed and so on."""
    cache = cache_of(at.database, declared.pipelines)
    lines = await asyncio.gather(*(_line(at, cache, name, live=args.live) for name in cache.known))
    return PipelineList(list(lines), cache.file_problems())


@operation("GET /pipelines/{name}", scope="read")
async def get_pipeline(at: Reader, args: PipelineRef, declared: Declarations) -> PipelineLine:
    """A pipeline with its stages: what is paused, what waits for approval, and how much space it takes."""
    return await _line(at, cache_of(at.database, declared.pipelines), args.name, live=True)


@operation("GET /pipelines/{name}/graph", scope="read")
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


@operation("GET /pipelines/{name}/grid", scope="read")
async def get_pipeline_grid(at: Reader, args: GetPipelineGrid, declared: Declarations) -> StateGrid:
    """Whether each state is fresh, stale, failed and so on: entities down, stages across."""
    after = read_row_cursor(args.cursor)
    snapshot, jobs = await read_states(cache_of(at.database, declared.pipelines), args.name)
    by, members = grid.group(snapshot, args.by)
    shown = grid.known_stages(snapshot, by, args.stage)
    rows = grid.Rows(by, args.state, tuple(shown), args.text).validate()
    entities = await asyncio.to_thread(grid.matching, snapshot, rows, jobs)
    order = grid.order_of(members[0])
    page, before = grid.page_of(entities, order, after=after, limit=args.limit, down=args.order == "desc")
    return StateGrid(
        by,
        [
            GridGroup(each, [stage.name for stage in found], len(grid.all_rows(snapshot, each)))
            for each, found in grid.groups(snapshot).items()
        ],
        shown,
        [GridRow(entity, [snapshot.state_of(stage, entity, jobs) for stage in shown]) for entity in page],
        len(entities),
        before,
        write_row_cursor(page[-1]) if page and before + len(page) < len(entities) else None,
        snapshot.looked_at,
    )


@operation("GET /pipelines/{name}/state", scope="read")
async def get_state(at: Reader, args: GetState, declared: Declarations) -> StateDetails:
    """Explain a state: why it is fresh or not, what it is made from, what is made from it, and each build."""
    cache = cache_of(at.database, declared.pipelines)
    snapshot, jobs = await read_states(cache, args.name)
    return await describe_state(
        at.database,
        snapshot,
        jobs,
        snapshot.stage(args.stage),
        args.entity,
        kept=await is_kept(at.database, args.name),
        follow=cache.known.values() if args.follow else None,
    )


@operation("GET /pipelines/{name}/content", scope="read")
async def get_content(at: Reader, args: GetContent, declared: Declarations) -> Content:
    """The beginning of an input or output of a pipeline, as text or a small picture in JSON."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    return await preview(snapshot, args.path)


@operation("GET /pipelines/{name}/plan", scope="read")
async def plan_pipeline(at: Reader, args: PlanPipeline, declared: Declarations) -> PlanReport:
    """What would be built and why, without building anything: counted by reason, and the first states by name."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    if args.stage is not None:
        snapshot.stage(args.stage)
    return report_plan(args, snapshot.plan, snapshot.problems, snapshot.looked_at)


@operation("GET /pipelines/{name}/builds", scope="read")
async def list_builds(at: Reader, args: ListBuilds, declared: Declarations) -> PageOf[Build]:
    """List builds of a pipeline, a stage or a state, newest first, with duration, code and log."""
    cache_of(at.database, declared.pipelines).require(args.name)
    before = read_moment_cursor(args.cursor, tuple[datetime, int, int])
    rows = await page_builds(at.database, args.name, args.stage, args.entity, before=before, limit=args.limit)
    last = rows[-1] if len(rows) == args.limit else None
    after = None if last is None else write_moment_cursor(last["at"], *last["place"])
    return PageOf([build_of(row) for row in rows], after)


@operation("GET /pipelines/{name}/backfills", scope="read")
async def list_backfills(at: Reader, args: ListBackfills, declared: Declarations) -> Backfills:
    """List the newest backfills of a pipeline and their progress."""
    cache_of(at.database, declared.pipelines).require(args.name)
    rows = await read_backfills(at.database, args.name, limit=args.limit)
    return Backfills([Backfill(**dict(row)) for row in rows], await is_kept(at.database, args.name))


@operation("GET /pipelines/{name}/orphans", scope="read")
async def list_orphans(at: Reader, args: ListOrphans, declared: Declarations) -> Orphans:
    """List the states that `clean_pipeline` would clean up, and how much space they take."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    found = orphans_of(snapshot, args.stage)
    return Orphans(found[: args.limit], len(found), sum(orphan.bytes for orphan in found), snapshot.looked_at)


# -- shared parts ---------------------------------------------------------------------------------


def report_plan(args: PlanPipeline, plan: BuildPlan, problems: list[str], at: datetime) -> PlanReport:
    """A plan, or the part of it that belongs to a stage."""
    steps = [step for step in plan.steps if args.stage in (None, step.stage.name)]
    builds = sum(1 for step in steps if step.is_build)
    return PlanReport(
        args.name,
        builds,
        len(steps) - builds,
        sum(1 for stage, _ in plan.orphans if args.stage in (None, stage.name)),
        {stage: number for stage, number in plan.fresh.items() if args.stage in (None, stage)},
        _parts(steps),
        [_step(step) for step in steps[: args.limit]],
        problems,
        at,
    )


async def read_states(cache: PipelineCache, name: str, *, fresh: bool = False) -> tuple[PipelineSnapshot, BuildJobs]:
    """A snapshot of a pipeline, and its builds that wait or run."""
    try:
        return await cache.read(name, fresh=fresh)
    except StateStoreError as error:
        raise StoreError(str(error)) from error


def orphans_of(snapshot: PipelineSnapshot, stage: str | None) -> list[Orphan]:
    """The states of a pipeline or of a stage whose inputs are gone."""
    if stage is not None:
        snapshot.stage(stage)
    files, found = snapshot.pipeline_view.world.files, []
    for each, entity in snapshot.plan.orphans:
        if stage in (None, each.name):
            paths = output_paths(snapshot.pipeline_view, each, entity)
            size = sum(files[path].size for path in paths if path in files)
            found.append(Orphan(each.name, entity, paths, size, each.options.on_orphan))
    return found


# -- inner parts ----------------------------------------------------------------------------------


async def _line(at: Reader, cache: PipelineCache, name: str, *, live: bool) -> PipelineLine:
    pipeline = cache.require(name)
    place = str(pipeline.root) if pipeline.store is None else type(pipeline.store).__name__
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
    snapshot, _ = found
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
        [*problems, *snapshot.problems],
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


def _step(step: BuildStep) -> PlanStep:
    return PlanStep(
        step.stage.name,
        step.entity,
        step_state(step),
        kind_of_reason(step.reason),
        str(step.reason),
        None if step.stage.scatter else step.stage.quick_path(step.entity),
        step.is_build,
    )


def _parts(steps: list[BuildStep]) -> list[PlanPart]:
    found: dict[tuple[str, str], list[BuildStep]] = {}
    for step in steps:
        found.setdefault((step.stage.name, kind_of_reason(step.reason)), []).append(step)
    return [
        PlanPart(stage, reason, step_state(some[0]), len(some), some[0].entity, str(some[0].reason))
        for (stage, reason), some in found.items()
    ]
