"""Queues: how much waits and for how long, how fast jobs may start, and whether workers take any."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError
from tidemill.core.jobs.job import check_name
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.jobs.queues import known_queues, list_queues as read_queues
from tidemill.store.jobs.workers import MOST_WEIGHT, QueueLimit, set_control, set_key_limit, set_limit, set_weight
from tidemill.store.telemetry.throughput import read_waits
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.declarations import Declarations

RECENT = 300.0

_DECLARE = "`app.queue({!r}, ...)` declares the limits and weights of one before it is used"
_PAUSE = "`tidemill workers pause '*' {}` pauses one before it is used"

QueueName = Annotated[str, doc("The queue.")]


class ListQueues(Arguments, frozen=True, kw_only=True):
    """Which queues, and over which time."""

    internal: Annotated[bool, doc("Also the queues that Tidemill itself uses, as for monitors.")] = False
    ended_within: Annotated[float, doc("Also count jobs that ended in the last seconds.", ge=0, le=86_400)] = 0.0


class QueueRef(Arguments, frozen=True, kw_only=True):
    """Which queue."""

    name: QueueName


class LimitQueue(Arguments, frozen=True, kw_only=True):
    """How fast the jobs of a queue may start."""

    name: QueueName
    rate: Annotated[str | float | None, doc("100/s, 30/m, 5/h, 1000/d; null for no limit.")]
    burst: Annotated[float | None, doc("How many may start at once after a quiet time.")] = None
    per_key: Annotated[bool, doc("The rate is for the jobs of each rate key, and not for all of them.")] = False


class WeighKey(Arguments, frozen=True, kw_only=True):
    """The share that a fair key has of its queue."""

    name: QueueName
    fair_key: Annotated[str, doc("The fair key.")]
    weight: Annotated[int, doc("Its share; 1 for keys without a weight.", ge=1, le=MOST_WEIGHT)]


class Weighed(msgspec.Struct, frozen=True):
    """The share of a fair key."""

    fair_key: str
    weight: int


class QueueLine(msgspec.Struct, frozen=True):
    """A queue now. `oldest` is how many seconds ago the job that waits longest became due."""

    name: str
    waiting: Annotated[int, doc("Jobs that are due and have not started.")]
    scheduled: Annotated[int, doc("Jobs that are not due yet.")]
    throttled: Annotated[int, doc("Jobs that wait for a limit.")]
    no_worker: Annotated[int, doc("Jobs whose task no worker knows.")]
    running: int
    oldest: Annotated[float | None, doc("How many seconds ago the job that waits longest became due.")]
    workers: int
    rate: float | None
    burst: float | None
    limited_by: Annotated[str | None, Meta(description="The operator who set the limit; null if it is declared.")]
    control: Annotated[list[str], Meta(description="What operators have set, such as `*=pause`: host and mode.")]
    succeeded: Annotated[int | None, Meta(description="Jobs that succeeded within `ended_within`.")] = None
    unsuccessful: Annotated[int | None, Meta(description="Jobs that failed, expired or were cancelled.")] = None
    waited_p50: Annotated[
        float | None,
        Meta(description="Half of the jobs that started in the last minutes had waited at most this many seconds."),
    ] = None
    waited_p99: Annotated[float | None, Meta(description="The same for 99 in 100.")] = None
    key_rate: Annotated[float | None, doc("Jobs a second of each rate key whose task declares no rate.")] = None


class Limited(msgspec.Struct, frozen=True):
    """The limit of a queue: jobs a second, and how many may start at once."""

    rate: Annotated[float | None, doc("Jobs a second; null for no limit.")]
    burst: Annotated[float | None, doc("How many may start at once.")]


class QueueMode(msgspec.Struct, frozen=True):
    """The mode that a queue had before, and the one it has now."""

    queue: str
    before: str
    now: str


@operation("GET /queues", role="viewer")
async def list_queues(at: Reader, args: ListQueues) -> ListOf[QueueLine]:
    """List the queues in use: their depth, oldest job, waiting times, workers and limit."""
    waits = await read_waits(at.database, within=RECENT)
    rows = await read_queues(at.database, internal=args.internal, ended_within=args.ended_within)
    lines: list[QueueLine] = []
    for row in rows:
        bounds = waits.get(row["name"], {})
        lines.append(QueueLine(**row, waited_p50=waited(bounds, 0.5), waited_p99=waited(bounds, 0.99)))
    return ListOf(lines)


@operation("PUT /queues/{name}/limit", role="operator")
async def limit_queue(tx: Transaction, args: LimitQueue, declared: Declarations | None) -> Limited:
    """Limit how fast the jobs of a queue start, over all workers together, from now on."""
    burst = None if args.rate is None else args.burst
    if args.per_key:
        limit = QueueLimit.of(args.name, key_rate=args.rate, key_burst=burst)
        await _require_known(tx, args.name, declared, _DECLARE)
        await set_key_limit(tx, limit)
        return Limited(limit.key_rate, limit.key_burst)
    limit = QueueLimit.of(args.name, args.rate, burst)
    await _require_known(tx, args.name, declared, _DECLARE)
    await set_limit(tx, limit)
    return Limited(limit.rate, limit.burst)


@operation("PUT /queues/{name}/weight", role="operator")
async def weigh_key(tx: Transaction, args: WeighKey, declared: Declarations | None) -> Weighed:
    """Set the share that a fair key has of a queue, on all workers, from now on."""
    await _require_known(tx, args.name, declared, _DECLARE)
    await set_weight(tx, args.name, args.fair_key, args.weight)
    return Weighed(args.fair_key, args.weight)


@operation("POST /queues/{name}/pause", role="operator")
async def pause_queue(tx: Transaction, args: QueueRef, declared: Declarations | None) -> QueueMode:
    """Let no worker on any host take jobs of a queue; running ones finish."""
    await _require_known(tx, args.name, declared, _PAUSE)
    return QueueMode(args.name, await set_control(tx, "*", check_name("queue", args.name), "pause"), "pause")


@operation("POST /queues/{name}/resume", role="operator")
async def resume_queue(tx: Transaction, args: QueueRef, declared: Declarations | None) -> QueueMode:
    """Let workers take jobs of a queue again, on all hosts."""
    await _require_known(tx, args.name, declared, _PAUSE)
    return QueueMode(args.name, await set_control(tx, "*", check_name("queue", args.name), "run"), "run")


async def _require_known(tx: Transaction, name: str, declared: Declarations | None, ahead: str) -> None:
    """Raise a `NotFoundError` for a queue that no worker, task, limit, operator or job names."""
    known = await known_queues(tx, check_name("queue", name))
    if declared is not None:
        known.update(declared.served_queues(), declared.limits)
    if name not in known:
        raise NotFoundError(
            f"there is no queue {name!r}: no worker serves it, no task names it and it has no jobs"
            f"{did_you_mean(name, known)}; {ahead.format(name)}"
        )


def waited(bounds: dict[str, float], part: float) -> float | None:
    """The bound within which this part of the waiting times falls; None beyond the last one, or without any."""
    wanted, so_far = sum(bounds.values()) * part, 0.0
    for bound, number in sorted((float(bound), number) for bound, number in bounds.items()):
        so_far += number
        if so_far >= wanted:
            return bound if math.isfinite(bound) else None
    return None
