"""Jobs over HTTP: listed in pages, looked at with why they are so, enqueued, cancelled or retried by id or filter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from tidemill.core.errors import ConfigError
from tidemill.server.middleware.authentication import Caller
from tidemill.server.middleware.idempotency import keep_within
from tidemill.server.resources.jobs import (
    Done,
    Enqueued,
    Job,
    JobPage,
    NewJob,
    checked_ids,
    find_job,
    put_job,
    told,
    write_page,
)
from tidemill.server.resources.json_rows import as_it_is
from tidemill.server.resources.logs import JobLog, find_log
from tidemill.server.resources.paging import Cursor, Limit, Number
from tidemill.server.server_state import Desk, TheDesk, caller_of
from tidemill.store.database import Executor
from tidemill.store.jobs.operate import Outcome, cancel_jobs, retry_jobs
from tidemill.store.jobs.pages import JobsWanted, list_job_page, match_jobs

MOST_MATCHES = 100_000
AT_ONCE = 2_000
SAMPLE = 10

States = Annotated[list[str] | None, QueryParameter(name="state", description="Only in this state; may be repeated.")]
Word = Annotated[str | None, QueryParameter(max_length=400)]


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


@get("/jobs", opt={"scope": "read"}, summary="List jobs")
async def list_jobs(
    desk: TheDesk,
    states: States = None,
    queue: Word = None,
    task: Word = None,
    tag: Word = None,
    run: Number = None,
    key: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Jobs that match, unfinished and finished, newest first."""
    wanted = JobsWanted(tuple(states or ()), queue, task, tag, run, key)
    return as_it_is(await write_page(desk, wanted, limit=limit, cursor=cursor), JobPage)


@get("/jobs/{job_id:int}", opt={"scope": "read"}, summary="One job, and why")
async def get_job(desk: TheDesk, job_id: FromPath[int]) -> Job:
    """Everything about one job: why it exists, what it waits for, how each attempt went."""
    return await find_job(desk, job_id)


@get("/jobs/{job_id:int}/log", opt={"scope": "read"}, summary="What a job logged")
async def get_log(desk: TheDesk, job_id: FromPath[int]) -> JobLog:
    """The last lines that each attempt logged, the last attempt first; those of a running one as they come."""
    return await find_log(desk, job_id)


@post("/jobs", opt={"scope": "operate"}, status_code=201, summary="Enqueue a job")
async def enqueue(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[NewJob]) -> Enqueued:
    """Enqueue a job; when this is answered, it is stored."""

    async def keep(connection: Executor, answer: Enqueued) -> None:
        await keep_within(desk.database, connection, request.scope, 201, answer)

    return await put_job(desk, caller_of(request), data, within=keep)


@post("/jobs/cancel/preview", opt={"scope": "read"}, status_code=200, summary="What a cancel would reach")
async def preview_cancel(desk: TheDesk, data: JSONBody[Filter]) -> Preview:
    """How many unfinished jobs match."""
    wanted = data.wanted()
    return await _preview(desk, wanted, live=wanted.live, ended=())


@post("/jobs/cancel", opt={"scope": "operate"}, status_code=200, summary="Cancel jobs")
async def cancel(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[Selection]) -> Done:
    """Cancel jobs: waiting ones at once, running ones as soon as their task lets them."""
    caller = caller_of(request)

    async def act(ids: list[int]) -> Outcome:
        return await cancel_jobs(desk.database, ids, by=caller.name)

    if data.ids is not None:
        return told([await act(_checked(data))])
    wanted = _filter_of(data)
    outcomes = await _all_that_match(desk, wanted, wanted.live, (), act, AT_ONCE)
    await _note(desk, caller, "job.cancel_matching", data, outcomes)
    return told(outcomes)


@post("/jobs/retry/preview", opt={"scope": "read"}, status_code=200, summary="What a retry would reach")
async def preview_retry(desk: TheDesk, data: JSONBody[Filter]) -> Preview:
    """How many jobs that failed, or wait, match."""
    wanted = data.wanted()
    live, ended = wanted.retried
    return await _preview(desk, wanted, live=live, ended=ended)


@post("/jobs/retry", opt={"scope": "operate"}, status_code=200, summary="Retry jobs")
async def retry(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[Selection]) -> Done:
    """Run jobs again: waiting ones now, finished ones as new jobs. By filter, those that failed unless it says more."""
    caller = caller_of(request)

    async def act(ids: list[int]) -> Outcome:
        return await retry_jobs(desk.database, ids, by=caller.name)

    if data.ids is not None:
        return told([await act(_checked(data))])
    wanted = _filter_of(data)
    live, ended = wanted.retried
    outcomes = await _all_that_match(desk, wanted, live, ended, act, AT_ONCE)
    await _note(desk, caller, "job.retry_matching", data, outcomes)
    return told(outcomes)


def preview_of(ids: list[int]) -> Preview:
    """What an action would reach, from the ids that match, in their order, up to one more than are counted."""
    return Preview(min(len(ids), MOST_MATCHES), len(ids) > MOST_MATCHES, ids[:SAMPLE], ids[-1] if ids else None)


routes = [list_jobs, get_job, get_log, enqueue, preview_cancel, cancel, preview_retry, retry]


# -- inner parts ----------------------------------------------------------------------------------


def _checked(data: Selection) -> list[int]:
    if data.filter is not None:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    return checked_ids(data.ids or [])


def _filter_of(data: Selection) -> JobsWanted:
    if data.filter is None:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    return data.filter.wanted()


async def _preview(desk: Desk, wanted: JobsWanted, *, live: Sequence[str], ended: Sequence[str]) -> Preview:
    ids = await match_jobs(desk.database, wanted, live=live, ended=ended, limit=MOST_MATCHES + 1)
    return preview_of(ids)


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
    reached = told(outcomes)
    await desk.note(
        caller,
        action,
        msgspec.json.encode(data.filter).decode(),
        after={"count": reached.count, "done": reached.done, "asked": reached.asked},
    )
