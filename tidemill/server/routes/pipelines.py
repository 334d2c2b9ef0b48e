"""Pipelines: how their states stand, in a grid and one by one, what would be built and why, and what they hold."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from tidemill.ops.cursor import (
    read_moment_cursor,
    read_row_cursor,
    write_moment_cursor,
    write_row_cursor,
)
from tidemill.pipelines.definition.pipeline import Stage, makers
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.reducer.reasons import NeedsApproval, kind_of_reason
from tidemill.pipelines.runner import operate
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.drawing import draw_pipeline, draw_pipeline_svg
from tidemill.server.problems import Refused
from tidemill.server.resources.content_preview import Content, preview
from tidemill.server.resources.paging import Limit, NameCursor, Word
from tidemill.server.resources.pipeline_cache import PipelineRead, standing_of
from tidemill.server.resources.state_grid import (
    Rows,
    all_rows,
    group,
    groups,
    known_stages,
    matching,
    order_of,
    page_of,
)
from tidemill.server.resources.state_history import Build, StateStory, build_of, tell
from tidemill.server.server_state import ServerState, TheServerState
from tidemill.store.states.backfills import list_backfills
from tidemill.store.states.history import page_builds

SHOWN = 200

Text = Annotated[str, QueryParameter(max_length=4000)]
Standings = Annotated[
    list[str] | None, QueryParameter(name="standing", description="Only rows with such a state; may be repeated.")
]
StageNames = Annotated[
    list[str] | None, QueryParameter(name="stage", description="Only these stages; may be repeated.")
]


class Approval(msgspec.Struct, frozen=True):
    """So many states of a stage would be built again that somebody must agree; and why they would be."""

    states: int
    above: int
    reason: str
    because: str


class StageView(msgspec.Struct, frozen=True):
    """A stage, and how many of its states stand how. `takes` are the stages whose states it is made from."""

    name: str
    inputs: list[str]
    output: str
    variables: list[str]
    takes: list[str]
    queue: str | None
    """Where its builds wait for workers; null if they run where the pipeline is kept."""
    on_orphan: str
    approve_above: int | None
    paused_by: str | None
    approval: Approval | None
    counts: dict[str, int]
    bytes: int
    code: str


class PipelineView(msgspec.Struct, frozen=True):
    """A pipeline and its stages, in the order in which they take from each other, as they were at `looked_at`."""

    name: str
    place: str
    kept: bool
    """Whether some process keeps it up to date now."""
    paused_by: str | None
    stages: list[StageView]
    counts: dict[str, int]
    bytes: int
    problems: list[str]
    looked_at: datetime | None
    took: float


class Pipelines(msgspec.Struct, frozen=True):
    """All pipelines; `problems` are those of workflow files that cannot be used."""

    items: list[PipelineView]
    problems: list[str]


class Drawing(msgspec.Struct, frozen=True):
    """A pipeline as a picture: boxes and arrows by name, the same as Mermaid text, and as SVG text."""

    sources: list[str]
    stages: list[StageView]
    arrows: list[tuple[str, str]]
    mermaid: str
    svg: str


class Group(msgspec.Struct, frozen=True):
    """Stages that share a grid, for their entities have the same variables."""

    by: str
    stages: list[str]
    entities: int


class Row(msgspec.Struct, frozen=True):
    """An entity, and how its state of each stage stands; null where there is none."""

    entity: str
    cells: list[str | None]


class Grid(msgspec.Struct, frozen=True):
    """Entities down, stages across; `next` is the cursor of the page after, or null on the last one."""

    by: str
    groups: list[Group]
    stages: list[str]
    items: list[Row]
    total: int
    before: int
    """How many rows come before this page."""
    next: str | None
    looked_at: datetime


class PlanStep(msgspec.Struct, frozen=True):
    """A state that is not as it should be: whether it would be built, and why, or what holds it back."""

    stage: str
    entity: str
    standing: str
    reason: str
    told: str


class PlanPart(msgspec.Struct, frozen=True):
    """How many states of a stage there are for one reason."""

    stage: str
    reason: str
    standing: str
    states: int
    first: str
    told: str


class PlanView(msgspec.Struct, frozen=True):
    """What would be done now, without doing it. `steps` are the first of them."""

    builds: int
    holds: int
    orphans: int
    fresh: dict[str, int]
    parts: list[PlanPart]
    steps: list[PlanStep]
    problems: list[str]
    looked_at: datetime


class Builds(msgspec.Struct, frozen=True):
    """Builds, the newest first; `next` is the cursor of the page after, or null on the last one."""

    items: list[Build]
    next: str | None = None


class Backfill(msgspec.Struct, frozen=True):
    """States that are built again because somebody asked. `left` of `total` are still to be built."""

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
    """Of those that are left, how many were tried in vain."""
    rate: float | None = None
    """How many are to be built a second at the most; null for as fast as builders are."""


class Backfills(msgspec.Struct, frozen=True):
    items: list[Backfill]


class Orphan(msgspec.Struct, frozen=True):
    """A state whose inputs are gone, and what its stage wants done with it."""

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


@get("/pipelines", opt={"scope": "read"}, summary="List pipelines")
async def get_pipelines(server_state: TheServerState) -> Pipelines:
    """Every pipeline with its stages, and how many states of each are fresh, stale, failed and so on."""
    shown = await asyncio.gather(*(_shown(server_state, name) for name in server_state.overlook.names))
    return Pipelines(list(shown), server_state.overlook.file_problems())


@get("/pipelines/{name:str}", opt={"scope": "read"}, summary="One pipeline")
async def get_pipeline(server_state: TheServerState, name: FromPath[str]) -> PipelineView:
    """A pipeline with its stages, who has paused it, what waits for approval, and how much it takes."""
    server_state.overlook.require(name)
    return await _shown(server_state, name)


@get("/pipelines/{name:str}/graph", opt={"scope": "read"}, summary="A pipeline as a picture")
async def get_graph(server_state: TheServerState, name: FromPath[str]) -> Drawing:
    """Its stages and the patterns that nobody makes, with arrows from what is taken to who takes it."""
    look, jobs = await looked(server_state, name)
    pipeline = look.pipeline
    made = {stage.name: stage for stage in look.pipeline_view.order}
    sources: dict[str, list[str]] = {}
    for stage in look.pipeline_view.order:
        for one in stage.inputs:
            if not any(one.pattern.covers(other.output) for other in made.values() if other is not stage):
                sources.setdefault(one.pattern.text, []).append(stage.name)
    arrows = [(source, taker) for source, takers in sources.items() for taker in takers]
    arrows += [(maker.name, stage.name) for stage in made.values() for maker in makers(stage, made.values())]
    counts = {stage: look.counts(stage, jobs) for stage in made}
    stages = [_stage(look, stage, jobs) for stage in look.pipeline_view.order]
    return Drawing(list(sources), stages, arrows, draw_pipeline(pipeline, counts), draw_pipeline_svg(pipeline))


@get("/pipelines/{name:str}/grid", opt={"scope": "read"}, summary="The grid of states")
async def get_grid(
    server_state: TheServerState,
    name: FromPath[str],
    by: Annotated[str | None, QueryParameter(max_length=400, description="Which grid, by its variables.")] = None,
    standings: Standings = None,
    stages: StageNames = None,
    text: Annotated[str, QueryParameter(max_length=400, description="Only entities with this in their name.")] = "",
    order: FromQuery[Literal["asc", "desc"]] = "desc",
    limit: Limit = 50,
    cursor: NameCursor = None,
) -> Grid:
    """Entities that match and how their states stand; the last in the order of their names come first."""
    after = read_row_cursor(cursor)
    look, jobs = await looked(server_state, name)
    called, members = group(look, by)
    shown = known_stages(look, called, stages or ())
    rows = Rows(called, tuple(standings or ()), tuple(shown), text).validate()
    entities = await asyncio.to_thread(matching, look, rows, jobs)
    page, before = page_of(entities, order_of(members[0]), after=after, limit=limit, down=order == "desc")
    return Grid(
        called,
        [
            Group(each, [stage.name for stage in found], len(all_rows(look, each)))
            for each, found in groups(look).items()
        ],
        shown,
        [Row(entity, [look.standing(stage, entity, jobs) for stage in shown]) for entity in page],
        len(entities),
        before,
        write_row_cursor(page[-1]) if page and before + len(page) < len(entities) else None,
        look.looked_at,
    )


@get("/pipelines/{name:str}/state", opt={"scope": "read"}, summary="The story of a state")
async def get_state(server_state: TheServerState, name: FromPath[str], stage: Text, entity: Text = "") -> StateStory:
    """Why a state is as it is, what it was made from, who takes it, and each build with its duration and log."""
    look, jobs = await looked(server_state, name)
    kept = await server_state.overlook.is_kept(name)
    return await tell(server_state.database, look, jobs, look.stage(stage), entity, kept=kept)


@get("/pipelines/{name:str}/content", opt={"scope": "read"}, summary="What a state holds")
async def get_content(server_state: TheServerState, name: FromPath[str], path: Text) -> Content:
    """The beginning of an input or output of the pipeline, as text in JSON: nothing of it is ever shown as HTML."""
    return await preview((await looked(server_state, name))[0], path)


@get("/pipelines/{name:str}/plan", opt={"scope": "read"}, summary="What would be built, and why")
async def get_plan(
    server_state: TheServerState,
    name: FromPath[str],
    stage: Word = None,
    limit: Annotated[int, QueryParameter(ge=0, le=1000)] = SHOWN,
) -> PlanView:
    """A dry run: every state that would be built or is held back is counted by its reason; the first are named."""
    look, _ = await looked(server_state, name)
    if stage is not None:
        look.stage(stage)
    plan = look.plan
    steps = [step for step in plan.steps if stage is None or step.stage.name == stage]
    orphans = sum(1 for found, _ in plan.orphans if stage is None or found.name == stage)
    fresh = {each: number for each, number in plan.fresh.items() if stage is None or each == stage}
    builds = sum(1 for step in steps if step.is_build)
    return PlanView(
        builds,
        len(steps) - builds,
        orphans,
        fresh,
        _parts(steps),
        [
            PlanStep(s.stage.name, s.entity, standing_of(s), kind_of_reason(s.reason), str(s.reason))
            for s in steps[:limit]
        ],
        look.problems,
        look.looked_at,
    )


@get("/pipelines/{name:str}/builds", opt={"scope": "read"}, summary="Builds")
async def get_builds(
    server_state: TheServerState,
    name: FromPath[str],
    stage: Word = None,
    entity: Word = None,
    limit: Limit = 50,
    cursor: NameCursor = None,
) -> Builds:
    """Builds of a pipeline, a stage or a state, the newest first, with duration, code and log."""
    server_state.overlook.require(name)
    before = read_moment_cursor(cursor, tuple[datetime, int, int])
    rows = await page_builds(server_state.database, name, stage, entity, before=before, limit=limit)
    last = rows[-1] if len(rows) == limit else None
    after = None if last is None else write_moment_cursor(last["at"], *last["place"])
    return Builds([build_of(row) for row in rows], after)


@get("/pipelines/{name:str}/backfills", opt={"scope": "read"}, summary="Backfills and how far they are")
async def get_backfills(
    server_state: TheServerState, name: FromPath[str], limit: Annotated[int, QueryParameter(ge=1, le=100)] = 20
) -> Backfills:
    """The newest backfills of a pipeline, with how many of their states are still to be built."""
    server_state.overlook.require(name)
    return Backfills([Backfill(**dict(row)) for row in await list_backfills(server_state.database, name, limit=limit)])


@get("/pipelines/{name:str}/orphans", opt={"scope": "read"}, summary="States whose inputs are gone")
async def get_orphans(
    server_state: TheServerState,
    name: FromPath[str],
    stage: Word = None,
    limit: Annotated[int, QueryParameter(ge=0, le=1000)] = SHOWN,
) -> Orphans:
    """What `clean` would deal with, and how much it takes."""
    look, _ = await looked(server_state, name)
    if stage is not None:
        look.stage(stage)
    found = [orphan_of(look, each, id) for each, id in look.plan.orphans if stage is None or each.name == stage]
    return Orphans(found[:limit], len(found), sum(orphan.bytes for orphan in found), look.looked_at)


routes = [
    get_pipelines,
    get_pipeline,
    get_graph,
    get_grid,
    get_state,
    get_content,
    get_plan,
    get_builds,
    get_backfills,
    get_orphans,
]


async def looked(server_state: ServerState, name: str, *, anew: bool = False) -> tuple[PipelineRead, BuildJobs]:
    """A look at a pipeline, and its builds that wait or run."""
    try:
        look = await server_state.overlook.look(name, anew=anew)
    except StateStoreError as error:
        raise Refused(503, str(error), Retry_After="5") from error
    return look, await server_state.overlook.jobs(look)


def orphan_of(look: PipelineRead, stage: Stage, entity: str) -> Orphan:
    """A state whose inputs are gone, as the API tells it."""
    paths, files = operate.output_paths(look.pipeline_view, stage, entity), look.pipeline_view.world.files
    size = sum(files[path].size for path in paths if path in files)
    return Orphan(stage.name, entity, paths, size, stage.options.on_orphan)


async def _shown(server_state: ServerState, name: str) -> PipelineView:
    pipeline = server_state.overlook.require(name)
    place = str(pipeline.root) if pipeline.store is None else type(pipeline.store).__name__
    kept, filed = await server_state.overlook.is_kept(name), server_state.overlook.file_problems(name)
    try:
        look = await server_state.overlook.look(name)
    except StateStoreError as error:  # The others can still be looked at.
        return PipelineView(name, place, kept, None, [], {}, 0, [*filed, str(error)], None, 0.0)
    jobs = await server_state.overlook.jobs(look)
    stages = [_stage(look, stage, jobs) for stage in look.pipeline_view.order]
    counts: dict[str, int] = {}
    for stage in stages:
        for word, number in stage.counts.items():
            counts[word] = counts.get(word, 0) + number
    control = look.pipeline_view.world.controls.get("")
    return PipelineView(
        name,
        place,
        kept,
        None if control is None else control.paused_by,
        stages,
        counts,
        sum(stage.bytes for stage in stages),
        [*filed, *look.problems],
        look.looked_at,
        look.took,
    )


def _stage(look: PipelineRead, stage: Stage, jobs: BuildJobs) -> StageView:
    control = look.pipeline_view.world.controls.get(stage.name)
    used = look.lists.get("usage")
    if used is None:
        used = look.lists["usage"] = operate.usage(look.pipeline_view)
    options = stage.options
    return StageView(
        stage.name,
        [one.pattern.text for one in stage.inputs],
        stage.output.text,
        list(stage.variables),
        [maker.name for maker in makers(stage, look.pipeline_view.order)],
        None if options.in_process else options.queue or stage.pipeline.queue,
        options.on_orphan,
        options.approve_above,
        None if control is None else control.paused_by,
        approval_of(look, stage),
        look.counts(stage.name, jobs),
        used[stage.name],
        stage.code.total,
    )


def approval_of(look: PipelineRead, stage: Stage) -> Approval | None:
    """What of a stage waits for somebody to agree."""
    for step in look.amiss[stage.name].values():
        if step is not None and isinstance(step.reason, NeedsApproval):
            because = step.reason.because
            return Approval(step.reason.states, step.reason.above, kind_of_reason(because), str(because))
    return None


def _parts(steps: list[BuildStep]) -> list[PlanPart]:
    found: dict[tuple[str, str], list[BuildStep]] = {}
    for step in steps:
        found.setdefault((step.stage.name, kind_of_reason(step.reason)), []).append(step)
    return [
        PlanPart(stage, reason, standing_of(some[0]), len(some), some[0].entity, str(some[0].reason))
        for (stage, reason), some in found.items()
    ]
