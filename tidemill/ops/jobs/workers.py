"""Workers: which processes there are, what they run, and what operators want of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.jobs.workers import Mode, list_workers as read_workers, set_control
from tidemill.store.transaction import Reader, Transaction


class ListWorkers(Arguments, frozen=True, kw_only=True):
    """Which workers."""

    ended_within: Annotated[float, doc("Also those that ended in the last seconds.", ge=0, le=86_400)] = 3600.0


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
