"""The overview: what is broken now, what waits, and how much was done; every figure leads to a list."""

from __future__ import annotations

from datetime import datetime

import msgspec
from litestar import get

from tidemill.server.desk import Desk
from tidemill.server.routes.jobs import JobLine
from tidemill.server.routes.runs import RunLine
from tidemill.store.listing import JobsWanted, RunsWanted, list_job_page, list_run_page
from tidemill.store.overview import count_all, read_done


class Counts(msgspec.Struct, frozen=True):
    """How much there is now."""

    jobs_waiting: int
    jobs_delayed: int
    jobs_held: int
    jobs_running: int
    oldest_waiting: float | None
    """Seconds since the job that waits longest was due."""
    runs_live: int
    runs_parked: int
    inputs_open: int
    workers_alive: int
    workers_silent: int
    schedules: int
    schedules_paused: int


class Done(msgspec.Struct, frozen=True):
    """Attempts at jobs that ended since counting began, by queue, task and outcome: two readings give a rate."""

    queue: str
    task: str
    outcome: str
    total: float


class Overview(msgspec.Struct, frozen=True):
    at: datetime
    counts: Counts
    done: list[Done]
    failed_jobs: list[JobLine]
    """The newest that failed."""
    failed_runs: list[RunLine]


@get("/overview", opt={"scope": "read"}, summary="Everything at a glance")
async def get_overview(desk: Desk) -> Overview:
    """What is broken now, the backlog, and totals of what was done."""
    row = dict(await count_all(desk.database))
    at = row.pop("at")
    done = [Done(*each) for each in await read_done(desk.database)]
    jobs = await list_job_page(desk.database, JobsWanted(states=("failed",)), limit=10, days=desk.days)
    runs = await list_run_page(desk.database, RunsWanted(states=("failed", "parked", "timed_out")), limit=10)
    return Overview(at, Counts(**row), done, [JobLine(*each) for each in jobs], [RunLine(*each) for each in runs])


routes = [get_overview]
