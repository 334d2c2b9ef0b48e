"""The overview: what fails now, what waits, and how much was done."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from tidemill.declarations import Declarations
from tidemill.ops.jobs.jobs import JobLine
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.ops.runs.runs import RunLine
from tidemill.store.jobs.pages import JobFilter, RunFilter, list_job_page, list_run_page
from tidemill.store.telemetry.overview import count_all, list_failed_states, read_done
from tidemill.store.telemetry.throughput import read_pace
from tidemill.store.transaction import Reader

NEWEST = 10
MOST_POINTS = 1000


class GetThroughput(Arguments, frozen=True, kw_only=True):
    """Over which time."""

    within: Annotated[float, doc("How far back, in seconds.", gt=0, le=86_400)] = 3600.0
    every: Annotated[float, doc("At most one point in this many seconds.", ge=1, le=3600)] = 30.0


class Counts(msgspec.Struct, frozen=True):
    """How much there is now."""

    jobs_waiting: int
    jobs_scheduled: Annotated[int, doc("Not due yet.")]
    jobs_throttled: Annotated[int, doc("Waiting for a limit.")]
    jobs_no_worker: Annotated[int, doc("Waiting for a worker that knows their task.")]
    jobs_running: int
    oldest_waiting: Annotated[float | None, Meta(description="Seconds since the job that waits longest became due.")]
    runs_live: int
    runs_needing_attention: int
    inputs_open: int
    workers_alive: int
    workers_silent: int
    schedules: int
    schedules_paused: int


class AttemptsEnded(msgspec.Struct, frozen=True):
    """Attempts at jobs that ended since counting began, by queue, task and outcome: two readings give a rate."""

    queue: str
    task: str
    outcome: str
    total: Annotated[float, doc("How many since counting began: two readings give a rate.")]


class FailedStates(msgspec.Struct, frozen=True):
    """How many states of a pipeline have failed, how many of those need attention, and the newest of them."""

    pipeline: str
    states: int
    needs_attention: Annotated[int, doc("How many of them are not tried again by themselves.")]
    stage: str
    entity: Annotated[str, doc("The newest of them.")]
    note: str
    failed_at: datetime


class Overview(msgspec.Struct, frozen=True):
    """What fails now, the backlog, and totals."""

    at: datetime
    counts: Counts
    done: list[AttemptsEnded]
    failed_jobs: Annotated[list[JobLine], Meta(description="The newest jobs that failed.")]
    failed_runs: list[RunLine]
    failed_states: Annotated[
        list[FailedStates], Meta(description="By pipeline, without states that are due to be tried again.")
    ]


class Throughput(msgspec.Struct, frozen=True):
    """Up to a point in time: attempts a second that ended, and those among them that did not succeed."""

    at: datetime
    done: Annotated[float, doc("Attempts a second that ended.")]
    failed: Annotated[float, doc("Those among them that did not succeed.")]


@operation("GET /overview", role="viewer")
async def get_overview(at: Reader, args: Nothing, declared: Declarations) -> Overview:
    """What fails now, the backlog, and totals of what was done."""
    row = dict(await count_all(at.database))
    time = row.pop("at")
    jobs = await list_job_page(at.database, JobFilter(state=("failed",)), limit=NEWEST)
    runs = await list_run_page(at.database, RunFilter(state=("failed", "needs_attention", "timed_out")), limit=NEWEST)
    names = [name for name in RunLine.__struct_fields__ if name != "ticks"]
    states = await list_failed_states(at.database, list(declared.pipelines.known))
    return Overview(
        time,
        Counts(**row),
        [AttemptsEnded(*each) for each in await read_done(at.database)],
        [JobLine(**each) for each in jobs],
        [RunLine(ticks=each["seq"], **{name: each[name] for name in names}) for each in runs],
        [FailedStates(*each) for each in states],
    )


@operation("GET /throughput", role="viewer")
async def get_throughput(at: Reader, args: GetThroughput) -> ListOf[Throughput]:
    """Attempts that ended, a second, between each two points. Recorded while a server runs, and kept for a day."""
    rows = await read_pace(at.database, within=args.within, every=max(args.every, args.within / MOST_POINTS))
    found: list[Throughput] = []
    for before, after in pairwise(rows):
        seconds = (after["at"] - before["at"]).total_seconds()
        done, failed = after["done"] - before["done"], after["failed"] - before["failed"]
        if seconds > 0 and done >= 0 and failed >= 0:
            found.append(Throughput(after["at"], done / seconds, failed / seconds))
    return ListOf(found)
