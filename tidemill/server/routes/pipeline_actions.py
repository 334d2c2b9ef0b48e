"""What operators do to pipelines: have states built again, retry, backfill, approve, pause, clean up after them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, post
from litestar.params import FromPath, JSONBody

from tidemill.core.duration import parse_rate
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.runner import operate
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.server.problems import Refused
from tidemill.server.resources.pipeline_cache import PipelineRead
from tidemill.server.resources.selection import Effect, State, StatesWanted, by_stage, check_count, choose, effect
from tidemill.server.routes.pipelines import looked, orphan_of
from tidemill.server.server_state import ServerState, TheServerState, caller_of
from tidemill.store.states import states as rows
from tidemill.store.states.backfills import NewBackfill, start_backfill, stop_backfill
from tidemill.store.states.requests import accept_code, retry_failures, set_approved, set_paused

#: How long a stage's states may be built again once somebody has approved it.
APPROVAL_LASTS = 86400.0


class Invalidate(StatesWanted, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which states to build again. `count` is what the preview said: if others are meant now, nothing is done."""

    count: int | None = None
    approve: bool = False
    """Also agree that they are so many."""


class Retry(StatesWanted, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which failed states to try again; all of them if nothing is said."""

    count: int | None = None


class BackfillWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The states of a stage from `first` to `last`, both included; from the beginning, or to the end, if not said."""

    stage: str
    first: str | None = None
    last: str | None = None
    downstream: bool = False


class NewBackfillWanted(BackfillWanted, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A backfill. `count` is what the preview said: if others are meant now, nothing is done. `rate` is how fast,
    such as `10/s` or `100/m`; as fast as builders are, if not said."""

    count: int | None = None
    approve: bool = False
    rate: str | float | None = None


class Backfilled(msgspec.Struct, frozen=True):
    """A backfill, and how many states it has."""

    id: int
    total: int


class Stopped(msgspec.Struct, frozen=True):
    """How many states of a backfill were left, and stay as they are."""

    id: int
    left: int


class StageNamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage."""

    stage: str


class PauseWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to pause or resume: a stage, or the whole pipeline if none is named."""

    stage: str | None = None


class Paused(msgspec.Struct, frozen=True):
    pipeline: str
    stage: str | None
    paused: bool


class Approved(msgspec.Struct, frozen=True):
    """A stage whose states may be built again by the code of now, and for how many seconds."""

    stage: str
    states: int
    lasts: float


class CleanWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which orphans, and what to do with them if not what their stages want. `count` is what the list said."""

    stage: str | None = None
    how: Literal["keep", "archive", "delete"] | None = None
    count: int | None = None


class Cleaned(msgspec.Struct, frozen=True):
    """How many files were kept, archived and deleted."""

    kept: int
    archived: int
    deleted: int


@post(
    "/pipelines/{name:str}/invalidate/preview",
    opt={"scope": "read"},
    status_code=200,
    summary="What an invalidation would reach",
)
async def preview_invalidate(server_state: TheServerState, name: FromPath[str], data: JSONBody[StatesWanted]) -> Effect:
    """How many states would be built again."""
    look, jobs = await looked(server_state, name)
    return effect(look, _built(look, await choose(look, jobs, data)), again=True)


@post("/pipelines/{name:str}/invalidate", opt={"scope": "operate"}, status_code=200, summary="Have states built again")
async def invalidate(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Invalidate]
) -> Effect:
    """Have states built again, whatever they look like; builds of them that are under way do not count."""
    look, jobs = await looked(server_state, name)
    states, by = _built(look, await choose(look, jobs, data)), caller_of(request).name
    check_count(data.count, len(states))
    reached = effect(look, states, again=True)
    if data.approve:
        await _approve(server_state, look, list(reached.approvals), by)
    await operate.invalidate(look.pipeline_view, states, by=by)
    server_state.overlook.has_changed(name)
    return msgspec.structs.replace(reached, approvals={}) if data.approve else reached


@post("/pipelines/{name:str}/retry/preview", opt={"scope": "read"}, status_code=200, summary="What a retry would reach")
async def preview_retry(server_state: TheServerState, name: FromPath[str], data: JSONBody[StatesWanted]) -> Effect:
    """How many states have failed or need attention, among those that are meant."""
    look, jobs = await looked(server_state, name)
    return effect(look, _failed(look, await choose(look, jobs, data)))


@post("/pipelines/{name:str}/retry", opt={"scope": "operate"}, status_code=200, summary="Try failed states again")
async def retry(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Retry]
) -> Effect:
    """Try failed states again, also those that need attention, at once, as if they had never failed."""
    look, jobs = await looked(server_state, name)
    states = _failed(look, await choose(look, jobs, data))
    check_count(data.count, len(states))
    for stage, entities in by_stage(states).items():
        await retry_failures(server_state.database, name, stage, entities, by=caller_of(request).name)
    server_state.overlook.has_changed(name)
    return effect(look, states)


@post(
    "/pipelines/{name:str}/backfill/preview",
    opt={"scope": "read"},
    status_code=200,
    summary="What a backfill would reach",
)
async def preview_backfill(server_state: TheServerState, name: FromPath[str], data: JSONBody[BackfillWanted]) -> Effect:
    """How many states would be built again."""
    look, jobs = await looked(server_state, name)
    return effect(look, _built(look, await choose(look, jobs, _range(data))), again=True)


@post("/pipelines/{name:str}/backfill", opt={"scope": "operate"}, status_code=201, summary="Begin a backfill")
async def backfill(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    name: FromPath[str],
    data: JSONBody[NewBackfillWanted],
) -> Backfilled:
    """Have a range of a stage's states built again, and see how far that is: `GET /pipelines/NAME/backfills`."""
    rate = _rate(data)
    look, jobs = await looked(server_state, name)
    states = _built(look, await choose(look, jobs, _range(data)))
    if not states:
        raise NotFoundError(f"no state of stage {data.stage} that was ever built is in this range")
    check_count(data.count, len(states))
    approvals = effect(look, states, again=True).approvals if data.approve else {}
    new = NewBackfill(
        name,
        data.stage,
        data.first,
        data.last,
        data.downstream,
        by_stage(states),
        {stage: look.stage(stage).code.total for stage in approvals},
        rate,
    )
    lasts = APPROVAL_LASTS + (0.0 if rate is None else len(states) / rate)
    number, total = await start_backfill(server_state.database, new, by=caller_of(request).name, lasts=lasts)
    server_state.overlook.has_changed(name)
    return Backfilled(number, total)


@post(
    "/pipelines/{name:str}/backfills/{backfill_id:int}/stop",
    opt={"scope": "operate"},
    status_code=200,
    summary="Stop a backfill",
)
async def stop(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], backfill_id: FromPath[int]
) -> Stopped:
    """Leave what it has not built yet as it is."""
    server_state.overlook.require(name)
    number = backfill_id if 0 < backfill_id < 2**63 else 0
    left = await stop_backfill(server_state.database, name, number, by=caller_of(request).name)
    if left is None:
        raise NotFoundError(f"pipeline {name} has no backfill {backfill_id} that could be stopped")
    server_state.overlook.has_changed(name)
    return Stopped(backfill_id, left)


@post("/pipelines/{name:str}/approve", opt={"scope": "operate"}, status_code=200, summary="Approve a mass rebuild")
async def approve(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[StageNamed]
) -> Approved:
    """Agree that many states of a stage are built again by its code of now, for a day."""
    look, jobs = await looked(server_state, name)
    look.stage(data.stage)
    await _approve(server_state, look, [data.stage], caller_of(request).name)
    server_state.overlook.has_changed(name)
    return Approved(data.stage, look.counts(data.stage, jobs).get("needs_approval", 0), APPROVAL_LASTS)


@post("/pipelines/{name:str}/accept", opt={"scope": "operate"}, status_code=200, summary="Accept a change of code")
async def accept(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[StageNamed]
) -> Effect:
    """Take a change of a stage's code as one that changes no result: its states count as built by the code of now."""
    look, _ = await looked(server_state, name)
    stage = look.stage(data.stage)
    done = await accept_code(
        server_state.database, name, stage.name, stage.code.total, None, by=caller_of(request).name
    )
    server_state.overlook.has_changed(name)
    return Effect(done, {stage.name: done} if done else {}, [])


@post("/pipelines/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a pipeline or a stage")
async def pause(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[PauseWanted]
) -> Paused:
    """Let nothing more be built of it; what is being built is finished."""
    return await _set_paused(server_state, request, name, data.stage, paused=True)


@post("/pipelines/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a pipeline or a stage")
async def resume(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[PauseWanted]
) -> Paused:
    """Let it go on."""
    return await _set_paused(server_state, request, name, data.stage, paused=False)


@post("/pipelines/{name:str}/clean", opt={"scope": "operate"}, status_code=200, summary="Clean up orphans")
async def clean(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[CleanWanted]
) -> Cleaned:
    """Archive or delete states whose inputs are gone, as each stage wants or as is said. First everything is looked
    at once more: what has inputs again is left alone."""
    look, _ = await looked(server_state, name, anew=True)
    if data.stage is not None:
        look.stage(data.stage)
    if look.pipeline_view.problems:
        raise Refused(
            409, f"not everything can be looked at, so nothing is known to be gone: {look.pipeline_view.problems[0]}"
        )
    chosen = [(stage, id) for stage, id in look.plan.orphans if data.stage is None or stage.name == data.stage]
    check_count(data.count, len(chosen))
    told = [orphan_of(look, stage, id) for stage, id in chosen]
    plan = msgspec.structs.replace(look.plan, orphans=chosen)
    wanted = {"keep": 0, "archive": 0, "delete": 0}
    for each in told:
        wanted[data.how or each.how] += len(each.paths)
    await server_state.note(  # First: what is done to files cannot be taken back, and it may end half-way.
        caller_of(request), "pipeline.clean", name if data.stage is None else f"{name}/{data.stage}",
        before={
            "orphans": len(told), "bytes": sum(each.bytes for each in told),
            "first": [path for each in told[:20] for path in each.paths][:20],
        },
        after=wanted,
    )  # fmt: skip
    try:
        done = await operate.clean(look.pipeline_view, plan, how=data.how)
    except (StateStoreError, OSError) as error:
        raise Refused(503, f"not everything could be cleaned up: {error}") from error
    async with server_state.database.transaction(patience=30.0) as connection:
        await rows.notify_states(server_state.database, connection, rows.News(name))
    server_state.overlook.has_changed(name)
    return Cleaned(len(done["keep"]), len(done["archive"]), len(done["delete"]))


routes = [
    preview_invalidate,
    invalidate,
    preview_retry,
    retry,
    preview_backfill,
    backfill,
    stop,
    approve,
    accept,
    pause,
    resume,
    clean,
]


def _built(look: PipelineRead, states: list[State]) -> list[State]:
    """Those that the database knows of: what was never built cannot be built again."""
    records = look.pipeline_view.world.records
    return [(stage, entity) for stage, entity in states if entity in records[stage.name]]


def _failed(look: PipelineRead, states: list[State]) -> list[State]:
    failures = look.pipeline_view.world.failures
    return [(stage, entity) for stage, entity in states if entity in failures[stage.name]]


def _range(data: BackfillWanted) -> StatesWanted:
    if data.first is not None and data.last is not None and not (data.first and data.last):
        raise ConfigError("`first` and `last` are entities; leave out what does not matter")
    return StatesWanted(stage=data.stage, first=data.first, last=data.last, downstream=data.downstream)


def _rate(data: NewBackfillWanted) -> float | None:
    rate = None if data.rate is None else parse_rate(data.rate, what="rate")
    if rate is not None and not 1 / 86400 <= rate <= 1e6:
        raise ConfigError(f"a rate of {data.rate} makes no sense here: it is from one a day to a million a second")
    return rate


async def _approve(server_state: ServerState, look: PipelineRead, stages: list[str], by: str) -> None:
    for stage in stages:
        code = look.stage(stage).code.total
        await set_approved(server_state.database, look.pipeline.name, stage, code, by=by, seconds=APPROVAL_LASTS)


async def _set_paused(
    server_state: ServerState, request: Request[Any, Any, Any], name: str, stage: str | None, *, paused: bool
) -> Paused:
    pipeline = server_state.overlook.require(name)
    if stage is not None and stage not in pipeline.stages:
        raise NotFoundError(f"pipeline {name} has no stage {stage!r}; its stages: {', '.join(pipeline.stages)}")
    await set_paused(server_state.database, name, stage or "", paused=paused, by=caller_of(request).name)
    server_state.overlook.has_changed(name)
    return Paused(name, stage, paused)
