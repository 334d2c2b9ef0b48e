"""Workers: who is there, what they do, and what operators want of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import JSONBody, QueryParameter

from tidemill.core.errors import ConfigError
from tidemill.core.job import check_name
from tidemill.server.resources.json_rows import readable
from tidemill.server.server_state import TheDesk, caller_of
from tidemill.store.jobs.workers import Mode, list_workers, set_control


class Worker(msgspec.Struct, frozen=True):
    """One worker process. Its lease is the only claim to be alive."""

    id: int
    host: str
    pid: int
    queues: list[str]
    concurrency: int
    versions: dict[str, Any]
    models: list[str] | None
    status: str
    running: int
    started_at: datetime
    seen_at: datetime
    lease_until: datetime
    flagged_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    tasks: int
    control: list[str]


class Workers(msgspec.Struct, frozen=True):
    items: list[Worker]


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted of the workers of a queue on a host; `*` stands for all.

    pause: take no more jobs. drain: give back those that have not started. stop: give back all. run: work again.
    """

    mode: Mode
    host: str = "*"
    queue: str = "*"


class Changed(msgspec.Struct, frozen=True):
    """What was wanted before and is now, and how many living workers that concerns."""

    host: str
    queue: str
    before: str
    now: str
    workers: int


@get("/workers", opt={"scope": "read"}, summary="List workers")
async def get_workers(
    desk: TheDesk,
    ended_within: Annotated[
        float, QueryParameter(ge=0, le=86_400, description="Also those that ended in the last seconds.")
    ] = 3600.0,
) -> Workers:
    """Worker processes: living ones first, then those that ended a while ago."""
    rows = await list_workers(desk.database, ended_within=ended_within)
    return Workers([Worker(**readable(row, ("versions",))) for row in rows])


@post("/workers/control", opt={"scope": "operate"}, status_code=200, summary="Pause, drain, stop or resume workers")
async def control(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[Wish]) -> Changed:
    """Say what is wanted of workers; those that are there obey at once, and those that come later too."""
    check_name("queue", data.queue)
    if not data.host or len(data.host) > 255 or not data.host.isprintable():
        raise ConfigError(f"{data.host!r} is not a host as workers name theirs")
    before = await set_control(desk.database, data.host, data.queue, data.mode, by=caller_of(request).name)
    rows = await list_workers(desk.database, ended_within=0.0)
    meant = [row for row in rows if data.host in (row["host"], "*") and data.queue in (*row["queues"], "*")]
    return Changed(data.host, data.queue, before, data.mode, len(meant))


routes = [get_workers, control]
