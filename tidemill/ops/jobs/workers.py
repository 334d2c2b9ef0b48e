"""Workers: which processes there are, what they run, and what operators want of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.core.jobs.job import check_name
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.jobs.workers import Mode, list_workers as read_workers, read_worker, set_control
from tidemill.store.transaction import Reader, Transaction

MOST_HELD = 100


class ListWorkers(Arguments, frozen=True, kw_only=True):
    """Which workers."""

    ended_within: Annotated[float, doc("Also those that ended in the last seconds.", ge=0, le=86_400)] = 3600.0


class WorkerNumber(Arguments, frozen=True, kw_only=True):
    """Which worker."""

    id: Annotated[int, doc("The worker's number: 8 of vm:4711#8.")]


class ControlWorkers(Arguments, frozen=True, kw_only=True):
    """The mode to set for the workers of a queue on a host."""

    mode: Annotated[Mode, doc("pause: take no more jobs. drain: give back those that wait. stop: give back all. run.")]
    host: Annotated[str, doc("The host, as `tidemill workers` names it; '*' for all.")] = "*"
    queue: Annotated[str, doc("The queue; '*' for all.")] = "*"


class WorkerLine(msgspec.Struct, frozen=True):
    """One worker process. It is alive as long as it renews its lease."""

    id: int
    host: str
    pid: int
    queues: list[str]
    max_concurrency: int
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
    trouble: str | None = None
    lost_threads: Annotated[int, doc("How many of its threads have not come back.")] = 0


class HeldJob(msgspec.Struct, frozen=True):
    """A job that a worker runs."""

    id: int
    task: str
    queue: str
    attempt: int
    started_at: datetime | None


class DrivenRun(msgspec.Struct, frozen=True):
    """A run that a worker drives."""

    id: int
    workflow: str
    created_at: datetime


class EndedWorker(msgspec.Struct, frozen=True):
    """A process that has ended."""

    id: int
    pid: int
    started_at: datetime
    ended_at: datetime
    status: Annotated[str, doc("`ended` if it stopped by itself, `lost` if its lease lapsed.")]
    end_reason: str | None


class WorkerDetails(msgspec.Struct, frozen=True):
    """A worker process, what it holds, and the processes that did the same on its host before it."""

    worker: WorkerLine
    tasks: Annotated[list[str], doc("The tasks whose code it has.")]
    jobs: Annotated[list[HeldJob], doc(f"The jobs that it runs, at most {MOST_HELD}, the longest first.")]
    runs: Annotated[list[DrivenRun], doc(f"The runs that it drives, at most {MOST_HELD}.")]
    ended: Annotated[
        list[EndedWorker],
        doc("Processes of the same queues on the same host that ended in the last day, the newest first."),
    ]


class WorkersControlled(msgspec.Struct, frozen=True):
    """The mode before and now, and how many living workers it concerns."""

    host: Annotated[str, doc("The host; `*` for all.")]
    queue: Annotated[str, doc("The queue; `*` for all.")]
    before: str
    now: str
    workers: Annotated[int, doc("How many living workers it concerns.")]


@operation("GET /workers", role="viewer")
async def list_workers(at: Reader, args: ListWorkers) -> ListOf[WorkerLine]:
    """List worker processes: living ones first, then those that ended a while ago."""
    rows = await read_workers(at.database, ended_within=args.ended_within)
    return ListOf([WorkerLine(**readable(row, ("versions",))) for row in rows])


@operation("GET /workers/{id}", role="viewer")
async def get_worker(at: Reader, args: WorkerNumber) -> WorkerDetails:
    """Show a worker process: the jobs and runs that it holds, its models, its lease, and what ended before it."""
    found = await read_worker(at.database, args.id, most=MOST_HELD)
    if found is None:
        raise NotFoundError(
            f"there is no worker {args.id}: `tidemill workers` lists them; one that ended is kept for a day"
        )
    return WorkerDetails(
        WorkerLine(**readable(found.line, ("versions",))),
        found.tasks,
        [HeldJob(**row) for row in found.jobs],
        [DrivenRun(**row) for row in found.runs],
        [EndedWorker(**row) for row in found.ended],
    )


@operation("POST /workers/control", role="operator")
async def control_workers(tx: Transaction, args: ControlWorkers) -> WorkersControlled:
    """Pause, drain, stop or resume workers; those that start later obey as well."""
    check_name("queue", args.queue)
    if not args.host or len(args.host) > 255 or not args.host.isprintable():
        raise ConfigError(f"{args.host!r} is not a host as workers name theirs")
    before = await set_control(tx, args.host, args.queue, args.mode)
    rows = await read_workers(tx.database, ended_within=0.0)
    meant = [row for row in rows if args.host in (row["host"], "*") and args.queue in (*row["queues"], "*")]
    return WorkersControlled(args.host, args.queue, before, args.mode, len(meant))
