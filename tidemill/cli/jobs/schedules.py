"""`tidemill schedules`: what is enqueued again and again, and when next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import ago, out, show, table
from tidemill.ops.jobs.schedules import (
    ScheduleLine,
    ScheduleRef,
    list_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from tidemill.ops.operator.operation import Nothing

commands = App(name="schedules", help="List schedules; pause, resume or run them.")

_NAME = options_of(ScheduleRef, positional=("name",))


@commands.default
def schedules(*, json: Json = False, place: ServerOptions = ANYWHERE) -> None:
    """List the schedules and their next fires."""
    rows = place.do(list_schedules, Nothing()).items
    show(rows, schedules_table, json=json, none='no schedules: declare one with @app.task(cron="*/5 * * * *")')


@commands.command
@_NAME
def pause(args: ScheduleRef, *, place: ServerOptions = ANYWHERE) -> None:
    """Stop a schedule from firing."""
    place.do(pause_schedule, args)
    out().print(f"schedule {args.name} is paused")


@commands.command
@_NAME
def resume(args: ScheduleRef, *, place: ServerOptions = ANYWHERE) -> None:
    """Let a schedule fire again, from now on."""
    place.do(resume_schedule, args)
    out().print(f"schedule {args.name} fires again")


@commands.command
@_NAME
def run(args: ScheduleRef, *, place: ServerOptions = ANYWHERE) -> None:
    """Enqueue a schedule's job once, now; prints its id."""
    out().print(str(place.do(run_schedule, args).id))


def schedules_table(rows: Sequence[ScheduleLine], now: datetime) -> Table:
    columns = ("schedule", "when", "task", "queue", "next", "last", "fired", "missed")
    made = table(*columns, numbers=("fired", "missed"), wide="when")
    for row in rows:
        made.add_row(
            row.name,
            row.when,
            row.task,
            row.queue,
            Text("paused", style="yellow") if row.paused else ago(row.next_fire, now),
            ago(row.last_fire, now),
            f"{row.fired:,}",
            Text(f"{row.missed:,}", style="yellow" if row.missed else ""),
        )
    return made
