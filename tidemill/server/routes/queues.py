"""Queues: how much waits and for how long, how fast jobs may start, and whether workers take any."""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter

from tidemill.core.job import check_name
from tidemill.server.server_state import TheDesk, caller_of
from tidemill.store.jobs.queues import list_queues
from tidemill.store.jobs.workers import QueueLimit, set_control, set_limit
from tidemill.store.telemetry.throughput import read_waits

LATELY = 300.0


class Queue(msgspec.Struct, frozen=True):
    """What goes on in a queue now. `oldest` is how many seconds the job that waits longest has been due."""

    name: str
    waiting: int
    delayed: int
    held: int
    running: int
    oldest: float | None
    workers: int
    rate: float | None
    burst: float | None
    limited_by: str | None
    """Who has set the limit; null if the application declares it."""
    control: list[str]
    """What operators want of it, such as `*=pause`: the host, and the mode."""
    succeeded: int | None = None
    """How many jobs ended well of late, if that was asked for with `ended_within`."""
    unsuccessful: int | None = None
    """How many failed, expired or were cancelled of late."""
    half_within: float | None = None
    """Half of the jobs that started in the last minutes had waited no longer than this many seconds since they were
    due; null where none has started, or nobody has measured."""
    most_within: float | None = None
    """The same for 99 in 100."""


class Queues(msgspec.Struct, frozen=True):
    items: list[Queue]


class NewLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast jobs may start: `100/s`, `30/m`; null for no limit. `burst` may start at once after a quiet time."""

    rate: str | float | None
    burst: float | None = None


class Held(msgspec.Struct, frozen=True):
    """What was wanted of a queue before, and what is now."""

    queue: str
    before: str
    now: str


@get("/queues", opt={"scope": "read"}, summary="List queues")
async def get_queues(
    desk: TheDesk,
    internal: Annotated[
        bool, QueryParameter(description="Also those that Tidemill itself uses, as for monitors.")
    ] = False,
    ended_within: Annotated[
        float, QueryParameter(ge=0, le=86_400, description="Also count jobs that ended in the last seconds.")
    ] = 0.0,
) -> Queues:
    """Every queue in use, with its depth, its oldest job, how long jobs wait, its workers and its limit."""
    waits = await read_waits(desk.database, within=LATELY)
    return Queues(
        [
            Queue(*row, *(waited(waits[row["name"]], part) if row["name"] in waits else None for part in (0.5, 0.99)))
            for row in await list_queues(desk.database, internal=internal, ended_within=ended_within)
        ]
    )


@put("/queues/{name:str}/limit", opt={"scope": "operate"}, summary="Limit a queue")
async def limit(
    desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[NewLimit]
) -> NewLimit:
    """Limit how fast the jobs of a queue start, over all workers together, from now on."""
    limit = QueueLimit.of(name, data.rate, None if data.rate is None else data.burst)
    await set_limit(desk.database, limit, by=caller_of(request).name)
    return NewLimit(limit.rate, limit.burst)


@post("/queues/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a queue")
async def pause(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> Held:
    """Let no worker on any host take jobs of this queue; running ones finish."""
    before = await set_control(desk.database, "*", check_name("queue", name), "pause", by=caller_of(request).name)
    return Held(name, before, "pause")


@post("/queues/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a queue")
async def resume(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> Held:
    """Let workers take jobs of this queue again, on all hosts."""
    before = await set_control(desk.database, "*", check_name("queue", name), "run", by=caller_of(request).name)
    return Held(name, before, "run")


routes = [get_queues, limit, pause, resume]


def waited(bounds: dict[str, float], part: float) -> float | None:
    """The bound within which this part of the times falls; None where it falls beyond the last one."""
    wanted, so_far = sum(bounds.values()) * part, 0.0
    for bound, number in sorted((float(bound), number) for bound, number in bounds.items()):
        so_far += number
        if so_far >= wanted:
            return bound if math.isfinite(bound) else None
    return None
