"""Jobs: list, explain, enqueue, cancel and retry them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError, NotFoundError, PayloadError
from tidemill.core.jobs.job import JobRef
from tidemill.engine.explain import explain_job
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.jobs.view import JobFacts
from tidemill.ops.jobs.job_options import OptionsOfOne
from tidemill.ops.jobs.logs import LogLine, read_lines
from tidemill.ops.operator.bulk import MOST_MATCHES, Preview, preview_of
from tidemill.ops.operator.cursor import page_json, read_cursor
from tidemill.ops.operator.local import encoded
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, ListOf, PageOf, doc, operation
from tidemill.ops.operator.task_roles import check_tasks
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.jobs.log import read_logs
from tidemill.store.jobs.operate import Outcome, cancel_jobs as cancel_stored, retry_jobs as retry_stored
from tidemill.store.jobs.pages import JobFilter, list_job_page, match_jobs, write_job_page
from tidemill.store.jobs.read import describe_job
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.declarations import Declarations

MOST_IDS = 10_000
BATCH = 2_000
MOST_NAMED = 1_000
MOST_COPIES = 5_000


class ListJobs(JobFilter, frozen=True, kw_only=True):
    """Which jobs to list, and which page of them."""

    limit: Limit = 50
    cursor: Cursor = None


class GetJob(Arguments, frozen=True, kw_only=True):
    """Which job."""

    id: Annotated[int, doc("The job's id.")]


class EnqueueJob(OptionsOfOne, frozen=True, kw_only=True):
    """A job to enqueue: its task, the task's arguments, and options of this job."""

    task: Annotated[str, doc("The name of the task.")]
    args: Annotated[dict[str, Any], doc("The task's arguments.")] = msgspec.field(default_factory=dict)


class EnqueueCopies(EnqueueJob, frozen=True, kw_only=True):
    """A job to enqueue several times."""

    count: Annotated[int, doc("Enqueue it this many times.", ge=1, le=MOST_COPIES)]


class JobSelection(Arguments, frozen=True, kw_only=True):
    """Which jobs: by their ids, or all that match a filter."""

    ids: Annotated[list[int] | None, doc("The jobs' ids.")] = None
    filter: Annotated[JobFilter | None, doc("Conditions that the jobs match.")] = None


class RetryJobs(JobSelection, frozen=True, kw_only=True):
    """Which jobs to run again, and with which arguments."""

    args: Annotated[dict[str, Any] | None, doc("Other arguments, in place of those of the same name.")] = None


class JobLine(JobFacts, frozen=True, kw_only=True):
    """A job in a list."""

    priority: int
    tags: list[str] | None
    run_id: int | None
    arguments: Annotated[
        str | None, doc("In a list the beginning of its arguments, as JSON; null if they are large, secret or sealed.")
    ] = None


class Job(JobLine, frozen=True, kw_only=True):
    """Everything about one job, and why it is in its state."""

    deadline: datetime | None
    args: Any
    unique_key: str | None
    concurrency_key: str | None
    max_concurrency: int | None
    fair_key: str | None
    rate_key: str | None
    batch_id: int | None
    work: int | None
    options: dict[str, Any] | None
    origin: dict[str, Any] | None
    errors: list[dict[str, Any]] | None
    worker_id: int | None
    worker_host: str | None
    worker_pid: int | None
    result: Any = None
    cancel_reason: str | None = None
    why: list[str]


class JobAttemptLog(msgspec.Struct, frozen=True):
    """The last lines of an attempt; `dropped` lines came before them and were not kept."""

    attempt: int
    began_at: datetime
    dropped: Annotated[int, doc("Lines that came before these and were not kept.")]
    lines: list[LogLine]


class Enqueued(msgspec.Struct, frozen=True):
    """The job; `created` is false when a job with this unique key existed already."""

    id: int
    created: Annotated[bool, doc("False when a job with this unique key existed already.")]


class JobsReached(msgspec.Struct, frozen=True):
    """What an operation did: `done` at once; `asked` to stop, or enqueued again; `unchanged`."""

    count: int
    done: Annotated[int, doc("Jobs that were changed at once.")]
    asked: Annotated[int, doc("Jobs that were asked to stop, or enqueued again.")]
    unchanged: int
    ids: Annotated[list[int], doc("The first of those that were reached; of a retry, the new jobs.")]


@operation("GET /jobs", role="viewer")
async def list_jobs(at: Reader, args: ListJobs) -> PageOf[JobLine]:
    """List jobs, unfinished and finished, newest first."""
    page = await write_job_page(at.database, args, before=read_cursor(args.cursor), limit=args.limit)
    return encoded(page_json(page, args.limit), PageOf[JobLine])


@operation("GET /jobs/{id}", role="viewer")
async def get_job(at: Reader, args: GetJob) -> Job:
    """Everything about one job: why it exists, what it waits for, how each attempt went."""
    row = await describe_job(at.database, args.id) if 0 < args.id < 2**63 else None
    if row is None:
        raise NotFoundError(f"there is no job {args.id}: it never existed, or its history has been dropped")
    known = readable(row)
    fields = {name: value for name, value in known.items() if name in Job.__struct_fields__}
    return Job(**{"finished_at": None, "progress": None, **fields}, why=explain_job(known))


@operation("GET /jobs/{id}/log", role="viewer")
async def get_job_log(at: Reader, args: GetJob) -> ListOf[JobAttemptLog]:
    """The last lines that each attempt of a job logged, the last attempt first."""
    rows = await read_logs(at.database, args.id) if 0 < args.id < 2**63 else []
    return ListOf(
        [JobAttemptLog(row["attempt"], row["began_at"], row["dropped"], read_lines(row["lines"])) for row in rows]
    )


@operation("POST /jobs", role="operator", status=201)
async def enqueue_job(tx: Transaction, args: EnqueueJob, declared: Declarations) -> Enqueued:
    """Enqueue a job; it is stored when this returns."""
    return (await _enqueue(tx, args, declared, 1))[0]


@operation("POST /jobs/copies", role="operator", status=201)
async def enqueue_copies(tx: Transaction, args: EnqueueCopies, declared: Declarations) -> ListOf[Enqueued]:
    """Enqueue a job several times in one transaction."""
    return ListOf(await _enqueue(tx, args, declared, args.count))


@operation("POST /jobs/cancel/preview", role="viewer")
async def preview_cancel_jobs(at: Reader, args: JobFilter) -> Preview:
    """Count the jobs that a cancel by this filter would reach."""
    return await _preview(at, args, args.live, ())


@operation("POST /jobs/cancel", role="operator", preview=preview_cancel_jobs)
async def cancel_jobs(at: Reader, args: JobSelection) -> JobsReached:
    """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped."""
    return await _reach(at, args, cancel_stored, lambda wanted: (wanted.live, ()))


@operation("POST /jobs/retry/preview", role="viewer")
async def preview_retry_jobs(at: Reader, args: JobFilter) -> Preview:
    """Count the jobs that a retry by this filter would reach."""
    return await _preview(at, args, *args.retried)


@operation("POST /jobs/retry", role="operator", preview=preview_retry_jobs)
async def retry_jobs(at: Reader, args: RetryJobs, declared: Declarations | None) -> JobsReached:
    """Run jobs again: waiting ones now, finished ones as new jobs. A filter without states means failed jobs.

    With `args`, each of them gets these arguments in place of its own of the same name; all must fit their tasks.
    """
    if args.args is None:
        return await _reach(at, args, retry_stored, lambda wanted: wanted.retried)

    async def retry_edited(tx: Transaction, ids: list[int], *, why: object = None) -> Outcome:
        def check(row: Any, before: bytes, arguments: bytes) -> Mapping[str, str]:
            if declared is None or row["task"] not in declared.tasks:
                return {}
            check_tasks(tx, declared, [row["task"]])
            task = declared.tasks[row["task"]]
            try:
                task.signature.check(arguments)
                return task.changed_keys(row, before, arguments)
            except PayloadError as error:
                raise PayloadError(f"job {row['id']}: {error}; nothing was retried") from error

        return await retry_stored(tx, ids, why=why, edited=args.args, check=check)

    return await _reach(at, args, retry_edited, lambda wanted: wanted.retried)


States = tuple[Sequence[str], Sequence[str]]


async def _enqueue(tx: Transaction, args: EnqueueJob, declared: Declarations, count: int) -> list[Enqueued]:
    # Imported here, because lists of jobs do not need it.
    from tidemill.engine.jobs.calls import job_of_call
    from tidemill.engine.models.spec import require_model
    from tidemill.engine.telemetry.tracing import enqueueing

    task = declared.tasks.require(args.task)
    check_tasks(tx, declared, [args.task])
    options = msgspec.structs.asdict(args)
    arguments = options.pop("args")
    for name in ("task", "count"):
        options.pop(name, None)
    origin = origin_here(tx.by)
    job = job_of_call(task, task.signature.pack(arguments), options, origin=origin)
    require_model(job.options and job.options.required_model, declared.models)
    declared.check_webhook(options, task)
    with enqueueing(job) as job:
        refs: list[JobRef] = await insert_jobs(tx.database, tx.connection, [job] * count, notify=True)
    after = {"task": job.task, "queue": job.queue, "created": sum(ref.created for ref in refs) == count}
    if count > 1:
        after |= {"count": count}
    await tx.audit("job.enqueue", str(refs[0].id), after=after)
    return [Enqueued(ref.id, ref.created) for ref in refs]


async def _preview(at: Reader, wanted: JobFilter, live: Sequence[str], ended: Sequence[str]) -> Preview:
    return preview_of(await match_jobs(at.database, wanted.validate(), live=live, ended=ended, limit=MOST_MATCHES + 1))


async def _reach(
    at: Reader,
    args: JobSelection,
    act: Callable[..., Awaitable[Outcome]],
    states: Callable[[JobFilter], States],
) -> JobsReached:
    """Act on the jobs that are meant, one transaction and one audit entry per batch."""
    outcomes: list[Outcome] = []
    if (args.ids is None) == (args.filter is None):
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    if args.filter is None:
        async with at.transaction() as tx:
            outcomes.append(await act(tx, _checked(args.ids or [])))
    else:
        async for ids in _batches(at, args.filter.validate(), states(args.filter)):
            async with at.transaction() as tx:
                outcomes.append(await act(tx, ids, why=args.filter))
    await end_batches(at.database, {batch for each in outcomes for batch in each.batches})
    done, asked, unchanged = (
        sum(len(getattr(each, name)) for each in outcomes) for name in ("done", "asked", "unchanged")
    )
    reached = [number for each in outcomes for number in (*each.done, *each.asked)]
    return JobsReached(done + asked, done, asked, unchanged, reached[:MOST_NAMED])


async def _batches(at: Reader, wanted: JobFilter, states: States) -> AsyncIterator[list[int]]:
    """The ids of jobs that match now, in batches; jobs that are enqueued meanwhile are left alone."""
    if wanted.up_to is None:
        newest = await list_job_page(at.database, JobFilter(), limit=1)
        wanted = msgspec.structs.replace(wanted, up_to=newest[0]["id"] if newest else 0)
    live, ended = states
    after, reached = 0, 0
    while reached < MOST_MATCHES:
        ids = await match_jobs(at.database, wanted, live=live, ended=ended, after=after, limit=BATCH)
        if not ids:
            return
        yield ids
        after, reached = ids[-1], reached + len(ids)


def _checked(ids: list[int]) -> list[int]:
    found = list(dict.fromkeys(ids))
    if not found:
        raise ConfigError("say which jobs: either `ids`, or a `filter`")
    if len(found) > MOST_IDS:
        raise ConfigError(f"{len(found):,} ids are too many at once: {MOST_IDS:,} is the most, or use a filter")
    if bad := [each for each in found if not 0 < each < 2**63]:
        raise NotFoundError(f"there is no job {bad[0]}: `tidemill jobs` lists them")
    return found
