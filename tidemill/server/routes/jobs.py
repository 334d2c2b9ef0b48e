"""Jobs: listed in pages, looked at with why they are so, enqueued, and cancelled or retried by id or filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import Parameter

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.job import FINAL_STATES, LIVE_STATES, JobRef
from tidemill.engine.calls import job_of_call
from tidemill.engine.modelspec import require_model
from tidemill.engine.why import explain_job
from tidemill.server.access import Caller
from tidemill.server.desk import Desk, caller_of
from tidemill.server.paging import Cursor, Limit, Number, following, read_cursor
from tidemill.server.reading import readable
from tidemill.store.audit import write_audit
from tidemill.store.inspect import show_job
from tidemill.store.jobs import insert_jobs
from tidemill.store.listing import JobsWanted, list_job_page, match_jobs
from tidemill.store.operate import Outcome, cancel_jobs, retry_jobs

MOST_IDS = 10_000
MOST_MATCHES = 100_000
AT_ONCE = 2_000
SAMPLE = 10

States = Annotated[list[str] | None, Parameter(query="state", description="Only in this state; may be repeated.")]
Word = Annotated[str | None, Parameter(max_length=400)]


class JobLine(msgspec.Struct, frozen=True):
    """A job in a list."""

    id: int
    state: str
    queue: str
    task: str
    priority: int
    attempt: int
    failures: int
    losses: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    note: str | None
    tags: list[str] | None
    run_id: int | None


class JobPage(msgspec.Struct, frozen=True):
    """Jobs, newest first; `next` is the cursor of the page after, or null on the last one."""

    items: list[JobLine]
    next: str | None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one job, and why it is as it is."""

    id: int
    state: str
    queue: str
    task: str
    priority: int
    attempt: int
    failures: int
    losses: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    deadline: datetime | None
    args: Any
    note: str | None
    tags: list[str] | None
    unique_key: str | None
    concurrency_key: str | None
    concurrency_max: int | None
    run_id: int | None
    work: int | None
    options: dict[str, Any] | None
    origin: dict[str, Any] | None
    errors: list[dict[str, Any]] | None
    worker_id: int | None
    worker_host: str | None
    worker_pid: int | None
    finished_at: datetime | None = None
    progress: float | None = None
    result: Any = None
    cancel_reason: str | None = None
    why: list[str]


class NewJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job to enqueue: the task, its arguments, and what is wished for this one. Durations are texts like `10s`."""

    task: str
    args: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    delay: str | float | None = None
    at: datetime | None = None
    deadline: str | float | None = None
    unique_key: str | None = None
    unique_for: str | float | None = None
    concurrency_key: str | None = None
    tags: list[str] | None = None


class Enqueued(msgspec.Struct, frozen=True):
    """Where the job is; `created` is false when a job with this unique key was there already."""

    id: int
    created: bool


class Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that are meant by what they are. `up_to` leaves out jobs that came after the preview."""

    state: list[str] = []
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    run: int | None = None
    key: str | None = None
    up_to: int | None = None

    def wanted(self) -> JobsWanted:
        return JobsWanted(tuple(self.state), self.queue, self.task, self.tag, self.run, self.key, self.up_to).validate()


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: by their ids, or everything that matches a filter."""

    ids: list[int] | None = None
    filter: Filter | None = None


class Preview(msgspec.Struct, frozen=True):
    """What an action would reach: how many (`more` if only the first were counted), some of them, and the newest."""

    count: int
    more: bool
    sample: list[int]
    up_to: int | None


class Done(msgspec.Struct, frozen=True):
    """What an action did. `done` at once; `asked` to stop, or enqueued anew; `unchanged` as they were."""

    count: int
    done: int
    asked: int
    unchanged: int
    ids: list[int]
    """The first of those that were reached; of a retry, the new jobs."""


@get("/jobs", opt={"scope": "read"}, summary="List jobs")
async def list_jobs(
    desk: Desk,
    states: States = None,
    queue: Word = None,
    task: Word = None,
    tag: Word = None,
    run: Number | None = None,
    key: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Jobs that match, unfinished and finished, newest first."""
    wanted = JobsWanted(tuple(states or ()), queue, task, tag, run, key)
    rows = await list_job_page(desk.database, wanted, before=read_cursor(cursor), limit=limit, days=desk.days)
    return JobPage([JobLine(*row) for row in rows], following([row["id"] for row in rows], limit))


@get("/jobs/{job_id:int}", opt={"scope": "read"}, summary="One job, and why")
async def get_job(desk: Desk, job_id: int) -> Job:
    """Everything about one job: why it exists, what it waits for, how each attempt went."""
    row = await show_job(desk.database, job_id) if 0 < job_id < 2**63 else None
    if row is None:
        raise NotFoundError(f"there is no job {job_id}: it never was, or its history has been dropped")
    known = readable(row)
    fields = {name: value for name, value in known.items() if name in Job.__struct_fields__}
    return Job(**fields, why=explain_job(known))


@post("/jobs", opt={"scope": "operate"}, status_code=201, summary="Enqueue a job")
async def enqueue(desk: Desk, request: Request[Any, Any, Any], data: NewJob) -> Enqueued:
    """Enqueue a job; when this is answered, it is stored."""
    caller = caller_of(request)
    task = desk.app.tasks.require(data.task)
    wishes = {name: value for name, value in msgspec.structs.asdict(data).items() if name not in ("task", "args")}
    job = job_of_call(task, (), data.args, wishes, origin=desk.origin(caller)).validate()
    require_model(job.options and job.options.required_model, desk.app.models)
    async with desk.database.transaction(patience=10.0) as connection:
        ref: JobRef = (await insert_jobs(desk.database, connection, [job], notify=True))[0]
        await write_audit(
            desk.database,
            connection,
            who=caller.name,
            action="job.enqueue",
            target=str(ref.id),
            after={"task": job.task, "queue": job.queue, "created": ref.created},
        )
    return Enqueued(ref.id, ref.created)


@post("/jobs/cancel/preview", opt={"scope": "read"}, status_code=200, summary="What a cancel would reach")
async def preview_cancel(desk: Desk, data: Filter) -> Preview:
    """How many unfinished jobs match."""
    wanted = data.wanted()
    return await _preview(desk, wanted, live=wanted.live, ended=())


@post("/jobs/cancel", opt={"scope": "operate"}, status_code=200, summary="Cancel jobs")
async def cancel(desk: Desk, request: Request[Any, Any, Any], data: Selection) -> Done:
    """Cancel jobs: waiting ones at once, running ones as soon as their task lets them."""
    caller = caller_of(request)

    async def act(ids: list[int]) -> Outcome:
        return await cancel_jobs(desk.database, ids, by=caller.name)

    if data.ids is not None:
        return _told([await act(_checked(data))])
    wanted = _filter_of(data)
    outcomes = await _all_that_match(desk, wanted, wanted.live, (), act, AT_ONCE)
    await _note(desk, caller, "job.cancel_matching", data, outcomes)
    return _told(outcomes)


@post("/jobs/retry/preview", opt={"scope": "read"}, status_code=200, summary="What a retry would reach")
async def preview_retry(desk: Desk, data: Filter) -> Preview:
    """How many jobs that failed, or wait, match."""
    wanted = data.wanted()
    live, ended = _retried(wanted)
    return await _preview(desk, wanted, live=live, ended=ended)


@post("/jobs/retry", opt={"scope": "operate"}, status_code=200, summary="Retry jobs")
async def retry(desk: Desk, request: Request[Any, Any, Any], data: Selection) -> Done:
    """Run jobs again: waiting ones now, finished ones as new jobs. By filter, those that failed unless it says more."""
    caller = caller_of(request)

    async def act(ids: list[int]) -> Outcome:
        return await retry_jobs(desk.database, ids, by=caller.name)

    if data.ids is not None:
        return _told([await act(_checked(data))])
    wanted = _filter_of(data)
    live, ended = _retried(wanted)
    outcomes = await _all_that_match(desk, wanted, live, ended, act, AT_ONCE)
    await _note(desk, caller, "job.retry_matching", data, outcomes)
    return _told(outcomes)


routes = [list_jobs, get_job, enqueue, preview_cancel, cancel, preview_retry, retry]


# -- inner parts ----------------------------------------------------------------------------------


def _checked(data: Selection) -> list[int]:
    ids = list(dict.fromkeys(data.ids or ()))
    if data.filter is not None or not ids:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    if len(ids) > MOST_IDS:
        raise ConfigError(f"{len(ids):,} ids are too many at once: {MOST_IDS:,} is the most, or use a filter")
    if bad := [each for each in ids if not 0 < each < 2**63]:
        raise NotFoundError(f"there is no job {bad[0]}")
    return ids


def _filter_of(data: Selection) -> JobsWanted:
    if data.filter is None:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    return data.filter.wanted()


def _retried(wanted: JobsWanted) -> tuple[Sequence[str], Sequence[str]]:
    """Which states a retry reaches: failed ones, or those that are named, but never what runs or succeeded."""
    states = wanted.states or ("failed",)
    live = [state for state in states if state in LIVE_STATES and state != "running"]
    return live, [state for state in states if state in FINAL_STATES and state != "succeeded"]


async def _preview(desk: Desk, wanted: JobsWanted, *, live: Sequence[str], ended: Sequence[str]) -> Preview:
    ids = await match_jobs(desk.database, wanted, live=live, ended=ended, limit=MOST_MATCHES + 1)
    return Preview(min(len(ids), MOST_MATCHES), len(ids) > MOST_MATCHES, ids[:SAMPLE], ids[-1] if ids else None)


async def _all_that_match(
    desk: Desk,
    wanted: JobsWanted,
    live: Sequence[str],
    ended: Sequence[str],
    act: Callable[[list[int]], Awaitable[Outcome]],
    at_once: int,
) -> list[Outcome]:
    """Act on everything that matches now, some at a time; what comes meanwhile is left alone."""
    if wanted.up_to is None:
        newest = await list_job_page(desk.database, JobsWanted(), limit=1, days=desk.days)
        wanted = msgspec.structs.replace(wanted, up_to=newest[0]["id"] if newest else 0)
    outcomes: list[Outcome] = []
    after, reached = 0, 0
    while reached < MOST_MATCHES:
        ids = await match_jobs(desk.database, wanted, live=live, ended=ended, after=after, limit=at_once)
        if not ids:
            break
        outcomes.append(await act(ids))
        after, reached = ids[-1], reached + len(ids)
    return outcomes


async def _note(desk: Desk, caller: Caller, action: str, data: Selection, outcomes: list[Outcome]) -> None:
    told = _told(outcomes)
    await desk.note(
        caller,
        action,
        msgspec.json.encode(data.filter).decode(),
        after={"count": told.count, "done": told.done, "asked": told.asked},
    )


def _told(outcomes: list[Outcome]) -> Done:
    done = sum(len(each.done) for each in outcomes)
    asked = sum(len(each.asked) for each in outcomes)
    unchanged = sum(len(each.unchanged) for each in outcomes)
    reached = [number for each in outcomes for number in (*each.done, *each.asked)]
    return Done(done + asked, done, asked, unchanged, reached[:1000])
