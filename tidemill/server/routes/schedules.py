"""Schedules: what is enqueued by itself, when next; run now, pause, resume."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath

from tidemill.core.codec import decode
from tidemill.core.schedule import Schedule as Spec
from tidemill.core.schedule import describe, preview
from tidemill.server.resources.jobs import Enqueued
from tidemill.server.server_state import TheDesk, caller_of
from tidemill.store.jobs.schedules import list_schedules, run_now, set_paused

FORESEEN = 4


class Schedule(msgspec.Struct, frozen=True):
    """A schedule, and when it fires next. `missed` fires were let pass as its `catchup` says."""

    name: str
    task: str
    queue: str
    when: str
    catchup: str
    jitter: float
    paused: bool
    next_fire: datetime
    then: list[datetime]
    """The fires after that, as far as they can be foreseen."""
    last_fire: datetime | None
    last_job_id: int | None
    fired: int
    missed: int
    missed_at: datetime | None


class Schedules(msgspec.Struct, frozen=True):
    items: list[Schedule]


class Paused(msgspec.Struct, frozen=True):
    name: str
    paused: bool


@get("/schedules", opt={"scope": "read"}, summary="List schedules")
async def get_schedules(desk: TheDesk) -> Schedules:
    """Every schedule, by name."""
    rows = await list_schedules(desk.database)
    return Schedules(
        [
            Schedule(
                **{name: value for name, value in row.items() if name != "spec"},
                when=describe(_spec(row)),
                then=_then(row),
            )
            for row in rows
        ]
    )


@post("/schedules/{name:str}/run", opt={"scope": "operate"}, status_code=201, summary="Run a schedule's job now")
async def run(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> Enqueued:
    """Enqueue its job once, whatever its plan says."""
    ref = await run_now(desk.database, name, by=caller_of(request).name)
    return Enqueued(ref.id, ref.created)


@post("/schedules/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a schedule")
async def pause(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> Paused:
    """Stop it from firing."""
    await set_paused(desk.database, name, True, by=caller_of(request).name)
    return Paused(name, True)


@post("/schedules/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a schedule")
async def resume(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> Paused:
    """Let it fire again, from now on."""
    await set_paused(desk.database, name, False, by=caller_of(request).name)
    return Paused(name, False)


routes = [get_schedules, run, pause, resume]


def _then(row: Any) -> list[datetime]:
    fires = [] if row["paused"] else preview(_spec(row), row["next_fire"].timestamp(), FORESEEN)
    return [datetime.fromtimestamp(fire, UTC) for fire in fires]


def _spec(row: Any) -> Spec:
    return decode(row["spec"], Spec)
