"""Schedules: what is enqueued again and again, and when next; run one now, pause it, resume it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.codec import decode
from tidemill.core.schedule import Schedule as Spec, describe, preview
from tidemill.ops.jobs.jobs import Enqueued
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, PauseState, doc, operation
from tidemill.store.jobs.schedules import list_schedules as read_schedules, run_now, set_paused
from tidemill.store.transaction import Reader, Transaction

FORESEEN = 4


class ScheduleRef(Arguments, frozen=True, kw_only=True):
    """Which schedule."""

    name: Annotated[str, doc("The schedule.")]


class ScheduleLine(msgspec.Struct, frozen=True):
    """A schedule, and when it fires next. `missed` fires were skipped, as its `catchup` says."""

    name: str
    task: Annotated[str, doc("The task that it enqueues.")]
    queue: str
    when: Annotated[str, doc("The cron expression or the interval.")]
    catchup: Annotated[str, doc("What is done about missed fires: skip, one or all.")]
    jitter: float
    paused: bool
    next_fire: datetime
    then: Annotated[list[datetime], Meta(description="The fires after the next one.")]
    last_fire: datetime | None
    last_job_id: int | None
    fired: int
    missed: Annotated[int, doc("Fires that were skipped.")]
    missed_at: datetime | None


@operation("GET /schedules", role="viewer")
async def list_schedules(at: Reader, args: Nothing) -> ListOf[ScheduleLine]:
    """List the schedules and their next fires."""
    return ListOf([_line(row) for row in await read_schedules(at.database)])


@operation("POST /schedules/{name}/run", role="operator", status=201)
async def run_schedule(tx: Transaction, args: ScheduleRef) -> Enqueued:
    """Enqueue a schedule's job once, now, whatever its plan says."""
    ref = await run_now(tx, args.name)
    return Enqueued(ref.id, ref.created)


@operation("POST /schedules/{name}/pause", role="operator")
async def pause_schedule(tx: Transaction, args: ScheduleRef) -> PauseState:
    """Stop a schedule from firing."""
    await set_paused(tx, args.name, True)
    return PauseState(args.name, True)


@operation("POST /schedules/{name}/resume", role="operator")
async def resume_schedule(tx: Transaction, args: ScheduleRef) -> PauseState:
    """Let a schedule fire again, from now on."""
    await set_paused(tx, args.name, False)
    return PauseState(args.name, False)


def _line(row: Any) -> ScheduleLine:
    spec = decode(row["spec"], Spec)
    fires = [] if row["paused"] else preview(spec, row["next_fire"].timestamp(), FORESEEN)
    fields = {name: value for name, value in row.items() if name != "spec"}
    return ScheduleLine(**fields, when=describe(spec), then=[datetime.fromtimestamp(fire, UTC) for fire in fires])
