"""History of tasks, queues, hosts and workers: how much they did, how long it took and waited, how much failed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ArgumentError
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.telemetry.history import KEPT_DAYS, SLOT, Kind, read_history, read_sums, within
from tidemill.store.transaction import Reader

MOST_NAMES = 500
MOST_PERIODS = 100

Within = Annotated[str, doc("How far back: 6h, 1d, 30d; at most 31 days.", max_length=20)]
HistoryKind = Annotated[Kind, doc("task, queue, host or worker.")]


class ListHistory(Arguments, frozen=True, kw_only=True):
    """Of what, and over which time."""

    kind: HistoryKind
    within: Within = "1d"


class GetHistory(Arguments, frozen=True, kw_only=True):
    """Of which task, queue, host or worker, and over which time."""

    kind: HistoryKind
    name: Annotated[str, doc("Its name; a worker process is HOST:PID.")]
    within: Within = "1d"


class WorkDone(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that ended, and how long they took, in seconds."""

    ended: Annotated[int, doc("Attempts that ended.")]
    failed: Annotated[int, doc("Those among them that raised an error, retried or not.")]
    seconds: Annotated[float, doc("How long all of them took together.")]
    p50: Annotated[float | None, doc("Half of them took at most this many seconds.")] = None
    p99: Annotated[float | None, doc("99 of 100 took at most this many seconds.")] = None


class WorkOf(WorkDone, frozen=True, kw_only=True):
    """What was done of a task, in a queue, on a host or by a worker process."""

    name: str


class WorkPeriod(WorkDone, frozen=True, kw_only=True):
    """What was done in a period, and how long it had waited."""

    at: Annotated[datetime, doc("When the period began.")]
    lasts: Annotated[float, doc("The length of the period in seconds.")]
    waited_p50: Annotated[float | None, doc("Half of those that started had waited at most this many seconds.")] = None
    waited_p99: Annotated[float | None, doc("99 of 100 had waited at most this many seconds.")] = None


@operation("GET /history/{kind}", role="viewer")
async def list_history(at: Reader, args: ListHistory) -> ListOf[WorkOf]:
    """What was done of each task, in each queue, on each host or by each worker; those that took most time first."""
    rows = await read_sums(at.database, args.kind, _begin(_span(args.within)), most=MOST_NAMES)
    return ListOf(
        [WorkOf(name=row["name"], **_done(row["ended"], row["failed"], row["seconds"], row["ran"])) for row in rows]
    )


@operation("GET /history/{kind}/{name:path}", role="viewer")
async def get_history(at: Reader, args: GetHistory) -> ListOf[WorkPeriod]:
    """What was done of a task, in a queue, on a host or by a worker over time, from the first period with any."""
    span = _span(args.within)
    lasts = SLOT * -(-span // (SLOT * MOST_PERIODS))
    rows = await read_history(at.database, args.kind, args.name, _begin(span))
    if not rows:
        return ListOf([])
    periods = {_slot(row["at"], lasts): list[int]() for row in rows}
    for index, row in enumerate(rows):
        periods[_slot(row["at"], lasts)].append(index)
    first, last = min(periods), int(SYSTEM_CLOCK.now()) // lasts * lasts
    found: list[WorkPeriod] = []
    for start in range(first, last + 1, lasts):
        here = [rows[index] for index in periods.get(start, ())]
        waited = _summed([row["waited"] for row in here])
        done = _done(
            sum(row["ended"] for row in here),
            sum(row["failed"] for row in here),
            sum(row["seconds"] for row in here),
            _summed([row["ran"] for row in here]),
        )
        found.append(
            WorkPeriod(
                at=datetime.fromtimestamp(start, UTC),
                lasts=float(lasts),
                waited_p50=within(waited, 0.5),
                waited_p99=within(waited, 0.99),
                **done,
            )
        )
    return ListOf(found)


def _done(ended: int, failed: int, seconds: float, ran: list[int]) -> dict[str, Any]:
    times = {"p50": within(ran, 0.5), "p99": within(ran, 0.99)}
    return {"ended": ended, "failed": failed, "seconds": round(seconds, 3), **times}


def _summed(histograms: list[list[int]]) -> list[int]:
    return [sum(numbers) for numbers in zip(*histograms, strict=True)]


def _span(text: str) -> int:
    seconds = int(parse_duration(text, what="within"))
    if not 0 < seconds <= KEPT_DAYS * 86_400:
        raise ArgumentError("within", f"is at most {KEPT_DAYS} days: that is how long the history is kept")
    return seconds


def _begin(span: int) -> datetime:
    return datetime.fromtimestamp(SYSTEM_CLOCK.now() - span, UTC)


def _slot(at: datetime, lasts: int) -> int:
    return int(at.timestamp()) // lasts * lasts
