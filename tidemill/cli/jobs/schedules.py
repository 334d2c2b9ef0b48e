"""`tidemill schedules`: what is started on a schedule, and when next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import AppOption, Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.enqueue import read_arguments
from tidemill.cli.render import ago, out, print_json, show, table
from tidemill.ops.jobs.schedules import (
    BackfillSchedule,
    PutSchedule,
    ScheduleFire,
    ScheduleLine,
    ScheduleRef,
    backfill_schedule,
    delete_schedule,
    explain_schedule,
    list_schedules,
    pause_schedule,
    put_schedule,
    resume_schedule,
    run_schedule,
)
from tidemill.ops.operator.operation import Nothing

commands = App(
    name="schedules", help="List and explain schedules; make, change, delete, pause, resume, run or backfill them."
)

_NAME = options_of(ScheduleRef, positional=("name",))


@commands.default
def schedules(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the schedules and their next fires."""
    rows = connection.do(list_schedules, Nothing()).items
    show(rows, schedules_table, json=json, none='no schedules: declare one with @app.task(cron="*/5 * * * *")')


@commands.command
@_NAME
def pause(args: ScheduleRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Stop a schedule from firing."""
    connection.do(pause_schedule, args)
    out().print(f"schedule {args.name} is paused")


@commands.command
@_NAME
def resume(args: ScheduleRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Let a schedule fire again, from now on."""
    connection.do(resume_schedule, args)
    out().print(f"schedule {args.name} fires again")


@commands.command
@_NAME
def run(args: ScheduleRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Start what a schedule starts once, now; prints the id of the job or run."""
    started = connection.do(run_schedule, args)
    out().print(f"r{started.id}" if started.kind == "run" else str(started.id))


@commands.command
@options_of(PutSchedule, positional=("name", "start"), without=("args",))
def put(
    args: PutSchedule,
    arguments: Annotated[str, Parameter(help="The arguments of what it starts, as a JSON object.")] = "{}",
    /,
    *,
    app: AppOption = None,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Make a schedule for a task, flow or dag, or change one that was made at run time."""
    line = connection.do(put_schedule, msgspec.structs.replace(args, args=read_arguments(arguments)), app=app)
    out().print(f"schedule {line.name} starts {line.task} {line.when}, next {ago(line.next_fire)}")


@commands.command
@_NAME
def delete(args: ScheduleRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Delete a schedule that was made at run time."""
    connection.do(delete_schedule, args)
    out().print(f"schedule {args.name} is deleted")


@commands.command
@options_of(BackfillSchedule, positional=("name",))
def backfill(args: BackfillSchedule, *, connection: ServerOptions = ANYWHERE) -> None:
    """Start what a schedule would have started in a time range."""
    done = connection.do(backfill_schedule, args)
    out().print(f"schedule {done.schedule} starts {done.fires:,} fires of that time")


@commands.command
@_NAME
def explain(args: ScheduleRef, *, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Say when a schedule fires next, what it has started, and which fires it has skipped and why."""
    found = connection.do(explain_schedule, args)
    if json:
        print_json(found)
        return
    for sentence in found.why:
        out().print(sentence)
    if found.fires:
        out().print(fires_table(found.fires, datetime.now(UTC)))


def fires_table(rows: Sequence[ScheduleFire], now: datetime) -> Table:
    made = table("fire", "outcome", "reason", "started", "note", wide="note")
    for row in rows:
        began = f"r{row.run_id}" if row.run_id is not None else "" if row.job_id is None else f"job {row.job_id}"
        made.add_row(ago(row.fire, now), row.outcome, row.reason, began, row.note or "")
    return made


def schedules_table(rows: Sequence[ScheduleLine], now: datetime) -> Table:
    columns = ("schedule", "when", "task", "queue", "next", "last", "fired", "missed")
    made = table(*columns, numbers=("fired", "missed"), wide="when")
    for row in rows:
        stopped = "paused" if row.paused else "disabled" if row.disabled_by else None
        made.add_row(
            row.name,
            row.when,
            row.task,
            row.queue,
            Text(stopped, style="yellow") if stopped else ago(row.next_fire, now),
            ago(row.last_fire, now),
            f"{row.fired:,}",
            Text(f"{row.missed:,}", style="yellow" if row.missed else ""),
        )
    return made
