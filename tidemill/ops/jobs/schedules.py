"""Schedules: what is started at which times; make, change, explain, run, pause and delete them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.codec import decode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.encoding.json_rows import zoned
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.core.schedule import Catchup, Overlap, Schedule as Spec, describe, preview
from tidemill.declarations import Declarations
from tidemill.engine.jobs.task import Periodic
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, PauseState, doc, operation
from tidemill.ops.operator.task_roles import check_tasks
from tidemill.ops.runs.start import WorkStarted
from tidemill.store.jobs.schedules import schedules as store
from tidemill.store.jobs.schedules.schedule_fires import read_fires
from tidemill.store.jobs.schedules.schedules import (
    DeclaredSchedule,
    list_schedules as read_schedules,
    run_now,
    set_paused,
)
from tidemill.store.transaction import Reader, Transaction

FORESEEN = 4
PAST_FIRES = 20
FIRST_YEAR = 2000


class ScheduleRef(Arguments, frozen=True, kw_only=True):
    """Which schedule."""

    name: Annotated[str, doc("The schedule.")]


class ScheduleLine(msgspec.Struct, frozen=True):
    """A schedule, and when it fires next. `missed` fires were skipped, as its `catchup` says."""

    name: str
    kind: Annotated[str, doc("What it starts: job or run.")]
    task: Annotated[str, doc("The task that it enqueues, or the workflow or dag that it starts.")]
    queue: str
    when: Annotated[str, doc("The cron expression or the interval.")]
    catchup: Annotated[str, doc("What is done about missed fires: skip, one or all.")]
    overlap: Annotated[str, doc("What a fire does while the previous one is unfinished: allow, skip, queue or cancel.")]
    jitter: float
    paused: bool
    next_fire: datetime
    then: Annotated[list[datetime], Meta(description="The fires after the next one.")]
    last_fire: datetime | None
    last_job_id: int | None
    last_run_id: int | None
    fired: int
    missed: Annotated[int, doc("Fires that were skipped.")]
    missed_at: datetime | None
    overlapped: Annotated[int, doc("Fires that were skipped because the previous one was unfinished.")]
    overlapped_at: datetime | None
    waiting: Annotated[int, doc("Fires that wait for the previous one.")]
    made_by: Annotated[str | None, doc("Who made it at run time; null if the application's code declares it.")]
    disabled_by: Annotated[str | None, doc("Who has disabled the workflow file that declares it: it does not fire.")]


class PutSchedule(ScheduleRef, frozen=True, kw_only=True):
    """A schedule to make or to change: what it starts, and when."""

    start: Annotated[str, doc("The name of the task, flow or dag that it starts.")]
    args: Annotated[dict[str, Any], doc("Its arguments.")] = msgspec.field(default_factory=dict)
    cron: Annotated[str | None, doc("When: a cron expression, such as 0 3 * * *.")] = None
    every: Annotated[str | float | None, doc("Or how often: 30s, 5m.")] = None
    timezone: Annotated[str, doc("The time zone of a cron expression.")] = "UTC"
    catchup: Annotated[Catchup, doc("What is done about missed fires: skip, one or all.")] = "one"
    overlap: Annotated[Overlap, doc("What a fire does while the previous one is unfinished.")] = "allow"
    jitter: Annotated[str | float, doc("What is started begins up to this much later.")] = 0


class ScheduleFire(msgspec.Struct, frozen=True):
    """What became of a fire."""

    fire: Annotated[datetime, doc("The time that it was due.")]
    at: Annotated[datetime, doc("When it was decided.")]
    outcome: Annotated[str, doc("started, waiting, skipped, missed or failed.")]
    reason: Annotated[str, doc("Why it was fired: due, catch-up, backfill or run now.")]
    note: Annotated[str | None, doc("Why it did not start.")]
    job_id: int | None
    run_id: int | None


class ScheduleExplained(msgspec.Struct, frozen=True):
    """Why a schedule fires when it does, in sentences, its next fires, and its last ones."""

    schedule: ScheduleLine
    why: list[str]
    fires: Annotated[list[ScheduleFire], Meta(description="The last fires, newest first.")]


class BackfillSchedule(ScheduleRef, frozen=True, kw_only=True):
    """The time range whose fires to start."""

    since: Annotated[datetime, doc("The beginning of the range.")]
    until: Annotated[datetime | None, doc("Its end, which is included; now at the latest.")] = None


class Backfilled(msgspec.Struct, frozen=True):
    """How many fires a backfill starts."""

    schedule: str
    fires: int


@operation("GET /schedules", role="viewer")
async def list_schedules(at: Reader, args: Nothing) -> ListOf[ScheduleLine]:
    """List the schedules and their next fires."""
    return ListOf([_line(row) for row in await read_schedules(at.database)])


@operation("PUT /schedules/{name}", role="operator")
async def put_schedule(tx: Transaction, args: PutSchedule, declared: Declarations) -> ScheduleLine:
    """Make a schedule at run time, or change one; those that the application's code declares are changed there."""
    times: Any = {name: getattr(args, name) for name in ("cron", "every", "timezone", "catchup", "jitter", "overlap")}
    check_name("schedule", args.name)
    if args.start in declared.tasks:
        check_tasks(tx, declared, [args.start])
        task = declared.tasks[args.start]
        periodic = Periodic.of(args.name, args.start, task.signature.pack(args.args), **times)
        work: store.Work = task.new_job(periodic.args)
    else:
        runs = [*declared.runs.flows, *declared.runs.dags]
        if args.start not in runs:
            known = [*declared.tasks, *runs]
            raise ConfigError(
                f"there is no task, flow or dag {args.start!r}; this application declares: "
                f"{', '.join(known) or 'none'}{did_you_mean(args.start, known)}"
            )
        work = declared.runs.template(args.start, args.args)
        periodic = Periodic.of(args.name, args.start, b"", **times)
    made = DeclaredSchedule(
        args.name, periodic.spec, work, periodic.catchup, periodic.jitter, store.OPERATOR, periodic.overlap
    )
    await store.put_schedule(tx, made)
    (row,) = await tx.fetch(store.LIST_SCHEDULES, args.name)
    return _line(row)


@operation("DELETE /schedules/{name}", role="operator")
async def delete_schedule(tx: Transaction, args: ScheduleRef) -> None:
    """Delete a schedule that was made at run time."""
    await store.delete_schedule(tx, args.name)


@operation("GET /schedules/{name}/explain", role="viewer")
async def explain_schedule(at: Reader, args: ScheduleRef) -> ScheduleExplained:
    """When a schedule fires next, what its last fire has started, and which fires it has skipped and why."""
    rows = await read_schedules(at.database, args.name)
    if not rows:
        raise await store.unknown_schedule(at, args.name)
    line = _line(rows[0])
    fires = [ScheduleFire(**row) for row in await read_fires(at.database, args.name, PAST_FIRES)]
    return ScheduleExplained(line, explain(line, fires), fires)


def explain(line: ScheduleLine, fires: Sequence[ScheduleFire] = ()) -> list[str]:
    """Why a schedule fires when it does."""
    what = f"enqueues task {line.task} on queue {line.queue}" if line.kind == "job" else f"starts a run of {line.task}"
    sentences = [f"It {what} {line.when}."]
    sentences.append(
        f"{line.made_by} has made it at run time." if line.made_by else "The application's code declares it."
    )
    if line.disabled_by is not None:
        name = line.task.removeprefix("workflow/")
        sentences.append(
            f"{line.disabled_by} has disabled its workflow, so it does not fire: "
            f"`tidemill workflow enable {shlex.quote(name)}`."
        )
    if line.paused:
        sentences.append(f"It is paused, so it does not fire: `tidemill schedules resume {shlex.quote(line.name)}`.")
    elif line.disabled_by is None:
        sentences.append(f"It fires next at {line.next_fire.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC.")
    if line.last_fire is None:
        is_late = line.missed or line.overlapped
        sentences.append("It has not started anything yet." if is_late else "It has not been due yet.")
    else:
        began = f"run r{line.last_run_id}" if line.last_run_id is not None else f"job {line.last_job_id}"
        sentences.append(f"It last fired for {line.last_fire.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {began}.")
    if line.missed and line.missed_at is not None:
        sentences.append(
            f"{_fires(line.missed, 'was', 'were')} missed, the last at "
            f"{line.missed_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, because no maintenance process could fire them "
            f"then; its catchup is {line.catchup}."
        )
    if line.overlapped and line.overlapped_at is not None:
        sentences.append(
            f"{_fires(line.overlapped, 'was', 'were')} skipped, the last at "
            f"{line.overlapped_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, because the previous one was unfinished."
        )
    if line.waiting:
        sentences.append(f"{_fires(line.waiting, 'waits', 'wait')} {_what_waits_for(line)}.")
    if (failed := next((each for each in fires if each.outcome == "failed"), None)) is not None:
        sentences.append(f"It could not fire at {failed.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {failed.note}.")
    return sentences


def _fires(count: int, one: str, several: str) -> str:
    return f"{count} fire {one}" if count == 1 else f"{count} fires {several}"


def _what_waits_for(line: ScheduleLine) -> str:
    """What fires wait for that were backfilled, or are due while the previous one is unfinished."""
    if line.disabled_by is not None:
        return "until its workflow is enabled"
    if line.paused:
        return "until it is resumed"
    return (
        "for a maintenance process"
        if line.overlap == "allow"
        else f"for the previous one: its overlap is {line.overlap}"
    )


@operation("POST /schedules/{name}/run", role="operator", status=201)
async def run_schedule(tx: Transaction, args: ScheduleRef) -> WorkStarted:
    """Start the task, workflow or dag of a schedule once, now, also if the schedule is paused."""
    return WorkStarted(*await run_now(tx, args.name), created=True)


@operation("POST /schedules/{name}/backfill", role="operator", status=202)
async def backfill_schedule(tx: Transaction, args: BackfillSchedule) -> Backfilled:
    """Start what a schedule would have started in a time range; what is started knows the fire times."""
    now = float(await tx.fetchval(store.DATABASE_NOW) or 0.0)
    since, until = zoned(args.since), now if args.until is None else min(now, zoned(args.until).timestamp())
    if since.year < FIRST_YEAR:
        raise ConfigError(f"a backfill begins in the year {FIRST_YEAR} or later")
    if since.timestamp() >= until:
        raise ConfigError("the range of a backfill ends after it begins, and begins in the past")
    return Backfilled(args.name, await store.backfill(tx, args.name, since.timestamp(), until))


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
    fires = [] if row["paused"] or row["disabled_by"] else preview(spec, row["next_fire"].timestamp(), FORESEEN)
    fields = {name: value for name, value in row.items() if name != "spec"}
    return ScheduleLine(**fields, when=describe(spec), then=[datetime.fromtimestamp(fire, UTC) for fire in fires])
