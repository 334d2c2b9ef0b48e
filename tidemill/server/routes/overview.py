"""The overview: what is broken now, what waits, and how much was done; every figure leads to a list."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import QueryParameter

from tidemill.server.resources.jobs import JobLine
from tidemill.server.resources.runs import RunLine
from tidemill.server.server_state import TheDesk
from tidemill.store.jobs.pages import JobsWanted, RunsWanted, list_job_page, list_run_page
from tidemill.store.telemetry.overview import count_all, list_failed_states, read_done
from tidemill.store.telemetry.throughput import read_pace


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


class FailedStates(msgspec.Struct, frozen=True):
    """How many states of a pipeline have failed, how many of those are parked, and the newest of them."""

    pipeline: str
    states: int
    parked: int
    stage: str
    entity: str
    note: str
    failed_at: datetime


class Overview(msgspec.Struct, frozen=True):
    at: datetime
    counts: Counts
    done: list[Done]
    failed_jobs: list[JobLine]
    """The newest that failed."""
    failed_runs: list[RunLine]
    failed_states: list[FailedStates]
    """By pipeline; what is due to be tried again is not among them."""


class Pace(msgspec.Struct, frozen=True):
    """Up to a moment: attempts a second that ended, and those among them that did not succeed."""

    at: datetime
    done: float
    failed: float


class Paces(msgspec.Struct, frozen=True):
    """Points, the oldest first."""

    items: list[Pace]


@get("/overview", opt={"scope": "read"}, summary="Everything at a glance")
async def get_overview(desk: TheDesk) -> Overview:
    """What is broken now, the backlog, and totals of what was done."""
    row = dict(await count_all(desk.database))
    at = row.pop("at")
    done = [Done(*each) for each in await read_done(desk.database)]
    jobs = await list_job_page(desk.database, JobsWanted(states=("failed",)), limit=10, days=desk.days)
    runs = await list_run_page(desk.database, RunsWanted(states=("failed", "parked", "timed_out")), limit=10)
    states = await list_failed_states(desk.database, desk.overlook.names)
    return Overview(
        at,
        Counts(**row),
        done,
        [JobLine(*each) for each in jobs],
        [RunLine(*each) for each in runs],
        [FailedStates(*each) for each in states],
    )


@get("/pace", opt={"scope": "read"}, summary="How much was done over time")
async def get_pace(
    desk: TheDesk,
    within: Annotated[float, QueryParameter(gt=0, le=86_400, description="How far back, in seconds.")] = 3600.0,
    every: Annotated[float, QueryParameter(ge=1, le=3600, description="At most one point in so many seconds.")] = 30.0,
) -> Paces:
    """Attempts that ended, a second, between each two points. It is noted while a server runs, and kept for a day."""
    rows = await read_pace(desk.database, within=within, every=max(every, within / 1000))
    found: list[Pace] = []
    for before, after in pairwise(rows):
        seconds = (after["at"] - before["at"]).total_seconds()
        done, failed = after["done"] - before["done"], after["failed"] - before["failed"]
        if seconds > 0 and done >= 0 and failed >= 0:
            found.append(Pace(after["at"], done / seconds, failed / seconds))
    return Paces(found)


routes = [get_overview, get_pace]
