"""What would be built and why, what has been built, and the progress of backfills."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from tidemill.declarations import Declarations
from tidemill.ops.operator.cursor import read_moment_cursor, write_moment_cursor
from tidemill.ops.operator.operation import Arguments, Limit, NameCursor, PageOf, doc, operation
from tidemill.ops.pipelines.states import SHOWN, PipelineName, Shown, StageFilter, read_states
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import kind_of_reason
from tidemill.pipelines.runner.running_builds import BuildJobs
from tidemill.pipelines.view.pipeline_cache import cache_of
from tidemill.pipelines.view.snapshot import PipelineSnapshot, step_state
from tidemill.pipelines.view.state_details import Build, build_of
from tidemill.store.states.backfills import list_backfills as read_backfills
from tidemill.store.states.build_jobs import is_kept
from tidemill.store.states.history import page_builds
from tidemill.store.transaction import Reader


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
    waiting: Annotated[bool, doc("Also count the states that cannot be built now.")] = False


class PlanStep(msgspec.Struct, frozen=True):
    """A state that is not fresh: what it is instead, and why it is built or held back."""

    stage: str
    entity: str
    state: str
    reason: str
    explanation: Annotated[str, doc("The reason as a sentence.")]
    path: Annotated[str | None, doc("Its output; null where it has many.")]
    is_build: bool


class PlanPart(msgspec.Struct, frozen=True):
    """How many states of a stage there are for one reason."""

    stage: str
    reason: str
    state: str
    states: Annotated[int, doc("How many there are.")]
    first: Annotated[str, doc("The first of them.")]
    explanation: Annotated[str, doc("The reason of the first as a sentence.")]


class PlanReport(msgspec.Struct, frozen=True):
    """What would be done now, without doing it. `steps` are the first of them, `parts` counts them all.

    Both also have the states that wait for inputs that are joined with others (`no_partner`), which are no `holds`.
    """

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
    left: Annotated[int, doc("How many are not built yet.")]
    failed: Annotated[int, doc("How many of those have failed since it began.")]
    rate: Annotated[float | None, doc("How many are built a second at most; null for no limit.")] = None
    waiting: Annotated[
        int | None,
        doc("How many of those left cannot be built now: a state before them has failed, a stage is paused; if asked."),
    ] = None


class Backfills(msgspec.Struct, frozen=True):
    """Backfills, newest first; `kept` says whether a process keeps the pipeline up to date, and so builds them."""

    items: list[Backfill]
    kept: bool


@operation("GET /pipelines/{name}/plan", role="viewer")
async def plan_pipeline(at: Reader, args: PlanPipeline, declared: Declarations) -> PlanReport:
    """What would be built and why, without building anything: counted by reason, and the first states by name."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    if args.stage is not None:
        snapshot.stage(args.stage)
    return report_plan(args, snapshot.plan, snapshot.problems, snapshot.looked_at)


@operation("GET /pipelines/{name}/builds", role="viewer")
async def list_builds(at: Reader, args: ListBuilds, declared: Declarations) -> PageOf[Build]:
    """List builds of a pipeline, a stage or a state, newest first, with duration, code and log."""
    cache_of(at.database, declared.pipelines).require(args.name)
    before = read_moment_cursor(args.cursor, tuple[datetime, int, int])
    rows = await page_builds(at.database, args.name, args.stage, args.entity, before=before, limit=args.limit)
    last = rows[-1] if len(rows) == args.limit else None
    after = None if last is None else write_moment_cursor(last["at"], *last["place"])
    return PageOf([build_of(row) for row in rows], after)


@operation("GET /pipelines/{name}/backfills", role="viewer")
async def list_backfills(at: Reader, args: ListBackfills, declared: Declarations) -> Backfills:
    """List the newest backfills of a pipeline and their progress."""
    cache_of(at.database, declared.pipelines).require(args.name)
    rows = [dict(row) for row in await read_backfills(at.database, args.name, limit=args.limit)]
    waiting: dict[str, int] = {}
    if args.waiting and any(row["left"] > row["failed"] and row["stopped_at"] is None for row in rows):
        waiting = _count_stuck(*await read_states(cache_of(at.database, declared.pipelines), args.name))
    marks = [row.pop("mark") for row in rows]
    items = [
        Backfill(**row, waiting=waiting.get(mark, 0) if args.waiting else None)
        for row, mark in zip(rows, marks, strict=True)
    ]
    return Backfills(items, await is_kept(at.database, args.name))


def _count_stuck(snapshot: PipelineSnapshot, jobs: BuildJobs) -> dict[str, int]:
    """How many states cannot be built now, by the request that they were invalidated by. Failed ones do not count."""
    found: dict[str, int] = {}
    for stage in snapshot.order:
        records = snapshot.pipeline_view.world.records[stage.name]
        for entity, step in snapshot.not_fresh[stage.name].items():
            record, job = records.get(entity), jobs.get((stage.name, entity))
            if record is None or record.invalid_by is None or step_state(step) in ("failed", "needs_attention"):
                continue
            if (job is not None and not job.is_served) or step is None or snapshot.is_stuck(step):
                found[record.invalid_by] = found.get(record.invalid_by, 0) + 1
    return found


def report_plan(args: PlanPipeline, plan: BuildPlan, problems: list[str], at: datetime) -> PlanReport:
    """A plan, or the part of it that belongs to a stage."""
    steps = [step for step in plan.steps if args.stage in (None, step.stage.name)]
    shown = [*steps, *(step for step in plan.waiting if args.stage in (None, step.stage.name))]
    builds = sum(1 for step in steps if step.is_build)
    return PlanReport(
        args.name,
        builds,
        len(steps) - builds,
        sum(1 for stage, _ in plan.orphans if args.stage in (None, stage.name)),
        {stage: number for stage, number in plan.fresh.items() if args.stage in (None, stage)},
        _parts(shown),
        [_step(step) for step in shown[: args.limit]],
        problems,
        at,
    )


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
