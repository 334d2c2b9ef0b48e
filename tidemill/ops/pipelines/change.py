"""Changes to pipelines: build states again, retry, backfill, approve, accept, pause, clean up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

import msgspec

from tidemill.core.duration import parse_rate
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError, StoreError
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.ops.pipelines.pipelines import PipelineName
from tidemill.ops.pipelines.states import orphans_of, read_states
from tidemill.pipelines.runner.clean import clean_orphans
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.lineage import State
from tidemill.pipelines.view.pipeline_cache import cache_of
from tidemill.pipelines.view.selection import Effect, Selection, by_stage, check_count, choose, effect
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.states import backfills, requests
from tidemill.store.transaction import Reader, Transaction

#: For how many seconds the states of a stage may be built again once that is approved.
APPROVED_FOR = 86400.0

Counted = Annotated[int | None, doc("How many the preview counted: if there are others now, nothing is done.")]
StageName = Annotated[str, doc("The stage.")]
Downstream = Annotated[bool, doc("Also all states that are made from them, step by step.")]
Approve = Annotated[bool, doc("Also approve the rebuild of this many states.")]


class StateSelection(Arguments, frozen=True, kw_only=True):
    """Which states of a pipeline; conditions that are not given do not matter."""

    name: PipelineName
    stage: Annotated[str | None, doc("States of this stage.")] = None
    entities: Annotated[list[str] | None, doc("States of these entities.")] = None
    first: Annotated[str | None, doc("From this entity of the stage on.")] = None
    last: Annotated[str | None, doc("Up to this entity of the stage.")] = None
    states: Annotated[tuple[str, ...], doc("States that are this: fresh, stale, failed and so on.")] = ()
    text: Annotated[str, doc("States with this text in the name of their entity.")] = ""
    downstream: Downstream = False


class InvalidateStates(StateSelection, frozen=True, kw_only=True):
    """Which states to build again."""

    count: Counted = None
    approve: Approve = False


class RetryStates(StateSelection, frozen=True, kw_only=True):
    """Which failed states to retry; all of them if nothing is said."""

    count: Counted = None


class BackfillRange(Arguments, frozen=True, kw_only=True):
    """The states of a stage from `first` to `last`, both included."""

    name: PipelineName
    stage: StageName
    first: Annotated[str | None, doc("The first entity; from the beginning if not given.")] = None
    last: Annotated[str | None, doc("The last entity; to the end if not given.")] = None
    downstream: Downstream = False


class StartBackfill(BackfillRange, frozen=True, kw_only=True):
    """A backfill."""

    count: Counted = None
    approve: Approve = False
    rate: Annotated[str | float | None, doc("How fast: 10/s, 100/m; at once if not given.")] = None


class BackfillRef(Arguments, frozen=True, kw_only=True):
    """Which backfill."""

    name: PipelineName
    id: Annotated[int, doc("The backfill.")]


class StageRef(Arguments, frozen=True, kw_only=True):
    """Which stage."""

    name: PipelineName
    stage: StageName


class PausePipeline(Arguments, frozen=True, kw_only=True):
    """What to pause or resume."""

    name: PipelineName
    stage: Annotated[str | None, doc("Only this stage; the whole pipeline if not given.")] = None


class CleanPipeline(Arguments, frozen=True, kw_only=True):
    """Which orphans to clean up, and how."""

    name: PipelineName
    stage: Annotated[str | None, doc("Only orphans of this stage.")] = None
    how: Annotated[
        Literal["keep", "archive", "delete"] | None, doc("What to do with them; as their stages declare if not given.")
    ] = None
    count: Counted = None


class BackfillStarted(msgspec.Struct, frozen=True):
    """A backfill, and how many states it has."""

    id: int
    total: Annotated[int, doc("How many states it has.")]


class BackfillStopped(msgspec.Struct, frozen=True):
    """How many states of a backfill were left, and stay as they are."""

    id: int
    left: Annotated[int, doc("How many of its states were not built, and stay as they are.")]


class PipelinePaused(msgspec.Struct, frozen=True):
    """Whether a pipeline, or a stage of it, is paused."""

    pipeline: str
    stage: Annotated[str | None, doc("Null for the whole pipeline.")]
    paused: bool


class StageApproved(msgspec.Struct, frozen=True):
    """A stage, how many of its states waited for approval, and for how many seconds they may be built again."""

    stage: str
    states: Annotated[int, doc("How many of its states waited for approval.")]
    lasts: Annotated[float, doc("For how many seconds they may be built again.")]


class PipelineCleaned(msgspec.Struct, frozen=True):
    """How many files were kept, archived and deleted."""

    kept: int
    archived: int
    deleted: int


@operation("POST /pipelines/{name}/invalidate/preview", role="viewer")
async def preview_invalidate_states(at: Reader, args: StateSelection, declared: Declarations) -> Effect:
    """Count the states that an invalidation would have built again."""
    snapshot, states = await _selected(at, args, declared)
    return effect(snapshot, _built(snapshot, states), again=True)


@operation("POST /pipelines/{name}/invalidate", role="operator", preview=preview_invalidate_states)
async def invalidate_states(at: Reader, args: InvalidateStates, declared: Declarations) -> Effect:
    """Have states built again even if they are fresh; running builds of them do not count."""
    snapshot, states = await _selected(at, args, declared)
    states = _built(snapshot, states)
    check_count(args.count, len(states))
    reached = effect(snapshot, states, again=True)
    async with _changing(at, args.name, declared) as tx:
        if args.approve:
            await _approve(tx, snapshot, list(reached.approvals))
        for stage, entities in by_stage(states).items():
            await requests.invalidate_states(tx, args.name, stage, entities)
    return msgspec.structs.replace(reached, approvals={}) if args.approve else reached


@operation("POST /pipelines/{name}/retry/preview", role="viewer")
async def preview_retry_states(at: Reader, args: StateSelection, declared: Declarations) -> Effect:
    """Count the states among those selected that have failed or need attention."""
    snapshot, states = await _selected(at, args, declared)
    return effect(snapshot, _failed(snapshot, states))


@operation("POST /pipelines/{name}/retry", role="operator", preview=preview_retry_states)
async def retry_states(at: Reader, args: RetryStates, declared: Declarations) -> Effect:
    """Retry failed states at once, also those that need attention, as if they had never failed."""
    snapshot, states = await _selected(at, args, declared)
    states = _failed(snapshot, states)
    check_count(args.count, len(states))
    async with _changing(at, args.name, declared) as tx:
        for stage, entities in by_stage(states).items():
            await requests.retry_failures(tx, args.name, stage, entities)
    return effect(snapshot, states)


@operation("POST /pipelines/{name}/backfill/preview", role="viewer")
async def preview_backfill(at: Reader, args: BackfillRange, declared: Declarations) -> Effect:
    """Count the states that a backfill would have built again."""
    snapshot, states = await _selected(at, args, declared)
    return effect(snapshot, _built(snapshot, states), again=True)


@operation("POST /pipelines/{name}/backfill", role="operator", status=201, preview=preview_backfill)
async def start_backfill(at: Reader, args: StartBackfill, declared: Declarations) -> BackfillStarted:
    """Have a range of a stage's states built again; `list_backfills` shows the progress."""
    rate = _rate(args.rate)
    snapshot, states = await _selected(at, args, declared)
    states = _built(snapshot, states)
    if not states:
        raise NotFoundError(f"no state of stage {args.stage} that was ever built is in this range")
    check_count(args.count, len(states))
    approvals = effect(snapshot, states, again=True).approvals if args.approve else {}
    new = backfills.NewBackfill(
        args.name,
        args.stage,
        args.first,
        args.last,
        args.downstream,
        by_stage(states),
        {stage: snapshot.stage(stage).code.total for stage in approvals},
        rate,
    )
    approved_for = APPROVED_FOR + (0.0 if rate is None else len(states) / rate)
    async with _changing(at, args.name, declared) as tx:
        number, total = await backfills.start_backfill(tx, new, approved_for=approved_for)
    return BackfillStarted(number, total)


@operation("POST /pipelines/{name}/backfills/{id}/stop", role="operator")
async def stop_backfill(at: Reader, args: BackfillRef, declared: Declarations) -> BackfillStopped:
    """Stop a backfill: states that are not built yet stay as they are."""
    cache_of(at.database, declared.pipelines).require(args.name)
    async with _changing(at, args.name, declared) as tx:
        left = await backfills.stop_backfill(tx, args.name, args.id if 0 < args.id < 2**63 else 0)
        if left is None:
            raise NotFoundError(f"pipeline {args.name} has no backfill {args.id} that could be stopped")
    return BackfillStopped(args.id, left)


@operation("POST /pipelines/{name}/approve", role="operator")
async def approve_stage(at: Reader, args: StageRef, declared: Declarations) -> StageApproved:
    """Approve for a day that many states of a stage are built again by its current code."""
    snapshot, jobs = await read_states(cache_of(at.database, declared.pipelines), args.name)
    snapshot.stage(args.stage)
    async with _changing(at, args.name, declared) as tx:
        await _approve(tx, snapshot, [args.stage])
    return StageApproved(args.stage, snapshot.counts(args.stage, jobs).get("needs_approval", 0), APPROVED_FOR)


@operation("POST /pipelines/{name}/accept", role="operator")
async def accept_stage(at: Reader, args: StageRef, declared: Declarations) -> Effect:
    """Accept a change of a stage's code that changes no result: its states count as built by the current code."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name)
    code = snapshot.stage(args.stage).code.total
    async with _changing(at, args.name, declared) as tx:
        done = await requests.accept_code(tx, args.name, args.stage, code)
    return Effect(done, {args.stage: done} if done else {}, [])


@operation("POST /pipelines/{name}/pause", role="operator")
async def pause_pipeline(at: Reader, args: PausePipeline, declared: Declarations) -> PipelinePaused:
    """Build nothing more of a pipeline or a stage; running builds are finished."""
    return await _set_paused(at, args, declared, paused=True)


@operation("POST /pipelines/{name}/resume", role="operator")
async def resume_pipeline(at: Reader, args: PausePipeline, declared: Declarations) -> PipelinePaused:
    """Let a paused pipeline or stage build again."""
    return await _set_paused(at, args, declared, paused=False)


@operation("POST /pipelines/{name}/clean", role="operator")
async def clean_pipeline(at: Reader, args: CleanPipeline, declared: Declarations) -> PipelineCleaned:
    """Archive or delete states whose inputs are gone. They are read again first: states with inputs are left alone."""
    snapshot, _ = await read_states(cache_of(at.database, declared.pipelines), args.name, fresh=True)
    found = orphans_of(snapshot, args.stage)
    if problems := snapshot.pipeline_view.problems:
        raise ConflictError(f"not everything can be read, so nothing is known to be gone: {problems[0]}")
    check_count(args.count, len(found))
    files = {"keep": 0, "archive": 0, "delete": 0}
    for each in found:
        files[args.how or each.how] += len(each.paths)
    # Audited first, because changes to files cannot be undone and may stop half-way.
    async with at.transaction() as tx:
        await tx.audit(
            "pipeline.clean",
            args.name if args.stage is None else f"{args.name}/{args.stage}",
            before={
                "orphans": len(found),
                "bytes": sum(each.bytes for each in found),
                "first": [path for each in found[:20] for path in each.paths][:20],
            },
            after=files,
        )
    orphans = [(stage, entity) for stage, entity in snapshot.plan.orphans if args.stage in (None, stage.name)]
    try:
        done = await clean_orphans(snapshot.pipeline_view, orphans, how=args.how)
    except (StateStoreError, OSError) as error:
        raise StoreError(f"not everything could be cleaned up: {error}") from error
    async with _changing(at, args.name, declared) as tx:
        await requests.announce(tx, args.name)
    return PipelineCleaned(len(done["keep"]), len(done["archive"]), len(done["delete"]))


@asynccontextmanager
async def _changing(at: Reader, pipeline: str, declared: Declarations) -> AsyncIterator[Transaction]:
    """A transaction that changes states of a pipeline, which is read again afterwards."""
    async with at.transaction() as tx:
        yield tx
    cache_of(at.database, declared.pipelines).has_changed(pipeline)


async def _selected(
    at: Reader, args: StateSelection | BackfillRange, declared: Declarations
) -> tuple[PipelineSnapshot, list[State]]:
    snapshot, jobs = await read_states(cache_of(at.database, declared.pipelines), args.name)
    given = {name: getattr(args, name) for name in Selection.__struct_fields__ if hasattr(args, name)}
    return snapshot, await choose(snapshot, jobs, Selection(**given))


def _built(snapshot: PipelineSnapshot, states: list[State]) -> list[State]:
    """The states that can be built again: they were built before, and their inputs exist."""
    records = snapshot.pipeline_view.world.records
    return [
        (stage, entity)
        for stage, entity in states
        if entity in records[stage.name] and not snapshot.is_orphan(stage.name, entity)
    ]


def _failed(snapshot: PipelineSnapshot, states: list[State]) -> list[State]:
    failures = snapshot.pipeline_view.world.failures
    return [(stage, entity) for stage, entity in states if entity in failures[stage.name]]


def _rate(given: str | float | None) -> float | None:
    rate = None if given is None else parse_rate(given, what="rate")
    if rate is not None and not 1 / 86400 <= rate <= 1e6:
        raise ConfigError(f"a rate of {given} is not possible: it is from one a day to a million a second")
    return rate


async def _approve(tx: Transaction, snapshot: PipelineSnapshot, stages: list[str]) -> None:
    for stage in stages:
        code = snapshot.stage(stage).code.total
        await requests.set_approved(tx, snapshot.pipeline.name, stage, code, seconds=APPROVED_FOR)


async def _set_paused(at: Reader, args: PausePipeline, declared: Declarations, *, paused: bool) -> PipelinePaused:
    pipeline = cache_of(at.database, declared.pipelines).require(args.name)
    if args.stage is not None and args.stage not in pipeline.stages:
        known = ", ".join(pipeline.stages)
        raise NotFoundError(f"pipeline {args.name} has no stage {args.stage!r}; its stages: {known}")
    async with _changing(at, args.name, declared) as tx:
        await requests.set_paused(tx, args.name, args.stage or "", paused=paused)
    return PipelinePaused(args.name, args.stage, paused)
