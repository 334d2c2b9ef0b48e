"""What can be asked of jobs and done with them, whichever way the request came: HTTP or gRPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.job import JobRef
from tidemill.engine.explain import explain_job
from tidemill.engine.jobs.calls import job_of_call
from tidemill.engine.models.spec import require_model
from tidemill.server.middleware.authentication import Caller
from tidemill.server.resources.cursor import page_json, read_cursor
from tidemill.server.resources.json_rows import readable
from tidemill.server.server_state import Desk
from tidemill.store.audit import write_audit
from tidemill.store.database import Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.jobs.operate import Outcome
from tidemill.store.jobs.pages import JobsWanted, write_job_page
from tidemill.store.jobs.read import show_job

MOST_IDS = 10_000


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


class Done(msgspec.Struct, frozen=True):
    """What an action did. `done` at once; `asked` to stop, or enqueued anew; `unchanged` as they were."""

    count: int
    done: int
    asked: int
    unchanged: int
    ids: list[int]
    """The first of those that were reached; of a retry, the new jobs."""


async def write_page(desk: Desk, wanted: JobsWanted, *, limit: int, cursor: str | None) -> bytes:
    """A page of jobs, newest first: a `JobPage` as JSON."""
    page = await write_job_page(desk.database, wanted, before=read_cursor(cursor), limit=limit, days=desk.days)
    return page_json(page, limit)


async def find_job(desk: Desk, job_id: int) -> Job:
    """Everything about one job, and why it is as it is."""
    row = await show_job(desk.database, job_id) if 0 < job_id < 2**63 else None
    if row is None:
        raise NotFoundError(f"there is no job {job_id}: it never was, or its history has been dropped")
    known = readable(row)
    fields = {name: value for name, value in known.items() if name in Job.__struct_fields__}
    return Job(**fields, why=explain_job(known))


async def put_job(
    desk: Desk, caller: Caller, new: NewJob, *, within: Callable[[Executor, Enqueued], Awaitable[None]] | None = None
) -> Enqueued:
    """Enqueue a job. `within` is done in the same transaction, once it is known what the answer will be."""
    task = desk.app.tasks.require(new.task)
    wishes = {name: value for name, value in msgspec.structs.asdict(new).items() if name not in ("task", "args")}
    job = job_of_call(task, (), new.args, wishes, origin=desk.origin(caller)).validate()
    require_model(job.options and job.options.required_model, desk.app.models)
    async with desk.database.transaction(patience=10.0) as connection:
        ref: JobRef = (await insert_jobs(desk.database, connection, [job], notify=True))[0]
        answer = Enqueued(ref.id, ref.created)
        await write_audit(
            desk.database,
            connection,
            who=caller.name,
            action="job.enqueue",
            target=str(ref.id),
            after={"task": job.task, "queue": job.queue, "created": ref.created},
        )
        if within is not None:
            await within(connection, answer)
    return answer


def checked_ids(ids: list[int]) -> list[int]:
    """Ids of jobs, each once, if they can be ids."""
    found = list(dict.fromkeys(ids))
    if not found:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    if len(found) > MOST_IDS:
        raise ConfigError(f"{len(found):,} ids are too many at once: {MOST_IDS:,} is the most, or use a filter")
    if bad := [each for each in found if not 0 < each < 2**63]:
        raise NotFoundError(f"there is no job {bad[0]}")
    return found


def told(outcomes: list[Outcome]) -> Done:
    """What several actions did together."""
    done = sum(len(each.done) for each in outcomes)
    asked = sum(len(each.asked) for each in outcomes)
    unchanged = sum(len(each.unchanged) for each in outcomes)
    reached = [number for each in outcomes for number in (*each.done, *each.asked)]
    return Done(done + asked, done, asked, unchanged, reached[:1000])
