"""`tidemill workers`: which workers there are; pause, drain, stop or resume them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.queues import unused_queue
from tidemill.cli.render import ago, counted, names, out, print_json, short, show, state, table
from tidemill.core.errors import ConfigError
from tidemill.ops.jobs.workers import (
    ControlWorkers,
    ListWorkers,
    WorkerDetails,
    WorkerLine,
    WorkerNumber,
    control_workers,
    get_worker,
    list_workers,
)
from tidemill.ops.operator.operation import Operator
from tidemill.ops.waiting import wait_until_drained
from tidemill.store.jobs.workers import Mode
from tidemill.store.runs.claims import DAG_KIND

commands = App(name="workers", help="List workers; pause, drain, stop or resume them.")

MODES: dict[str, str] = {"run": "running", "pause": "paused", "drain": "draining", "stop": "stopped"}

_TARGET = options_of(ControlWorkers, positional=("host", "queue"), without=("mode",))


@commands.default
def workers(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the workers that are alive, and those that ended in the last hour."""
    rows = connection.do(list_workers, ListWorkers()).items
    show(rows, workers_table, json=json, none="no worker runs: tidemill worker app.py")


@commands.command(name="show")
def show_worker(
    id: Annotated[str, Parameter(help="Its number, or its name as in the list: 8, vm:4711#8.")],
    /,
    *,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Show one worker: the jobs and runs that it holds, its models, its lease, and what ended before it."""
    number = id.rpartition("#")[2]
    if not number.isascii() or not number.isdigit():
        raise ConfigError(f"{id!r} is not a worker: write its number, 8 of vm:4711#8")
    details = connection.do(get_worker, WorkerNumber(id=int(number)))
    print_json(details) if json else _print(details, datetime.now(UTC))


@commands.command
@_TARGET
def pause(args: ControlWorkers, *, connection: ServerOptions = ANYWHERE) -> None:
    """Let workers take no more jobs; those that they have finish."""
    _control(connection, args, "pause")


@commands.command
@_TARGET
def drain(
    args: ControlWorkers,
    *,
    wait: Annotated[bool, Parameter(help="Wait until no job runs there.")] = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Let workers take no more jobs and give back those that have not started; running ones finish."""
    _control(connection, args, "drain", wait=wait)


@commands.command
@_TARGET
def stop(args: ControlWorkers, *, connection: ServerOptions = ANYWHERE) -> None:
    """Let workers give back all jobs, running ones too; the processes stay."""
    _control(connection, args, "stop")


@commands.command
@_TARGET
def resume(args: ControlWorkers, *, connection: ServerOptions = ANYWHERE) -> None:
    """Let workers work again."""
    _control(connection, args, "run")


def workers_table(rows: Sequence[WorkerLine], now: datetime) -> Table:
    made = table("worker", "status", "queues", "busy", "seen", "up", "remark", numbers=("busy",), wide="remark")
    for row in rows:
        ended = row.ended_at is not None
        made.add_row(
            _name(row),
            state(_status(row, now)),
            names(row.queues) or "drives runs",
            "" if ended or not row.max_concurrency else f"{row.running}/{row.max_concurrency}",
            ago(row.seen_at, now),
            ago(row.started_at, now).removesuffix(" ago"),
            _remark(row, now),
            style="dim" if ended else None,
        )
    return made


def _print(details: WorkerDetails, now: datetime) -> None:
    row, console = details.worker, out()
    console.print(Text.assemble((f"worker {_name(row)}  ", "bold"), state(_status(row, now))))
    lease = (
        "ended"
        if row.ended_at is not None
        else f"until {row.lease_until:%H:%M:%S} UTC, renewed {ago(row.seen_at, now)}"
    )
    facts = {
        "queues": names(row.queues),
        "tasks": names("dags" if name == DAG_KIND else name for name in details.tasks),
        "models": names(row.models),
        "started": ago(row.started_at, now),
        "lease": lease,
        "remark": _remark(row, now).plain,
    }
    for name, value in facts.items():
        if value:
            console.print(f"  {name:9}{value}", soft_wrap=True)
    held = [(str(job.id), job.task, f"attempt {job.attempt}", ago(job.started_at, now)) for job in details.jobs]
    held += [(f"r{run.id}", run.workflow, "run", ago(run.created_at, now)) for run in details.runs]
    _print_rows("holds", ("id", "name", "what", "since"), held)
    _print_rows(
        "ended on this host",
        ("worker", "state", "up", "ended", "why"),
        [
            (
                f"{row.host}:{each.pid}#{each.id}",
                state(each.status),
                short((each.ended_at - each.started_at).total_seconds()),
                ago(each.ended_at, now),
                each.end_reason or "",
            )
            for each in details.ended
        ],
    )


def _print_rows(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    if rows:
        made = table(*columns, wide=columns[-1])
        for row in rows:
            made.add_row(*row)
        out().print(Text(f"\n{title}", style="bold"))
        out().print(made)


def _name(row: WorkerLine) -> str:
    return f"{row.host}:{row.pid}#{row.id}"


def _status(row: WorkerLine, now: datetime) -> str:
    return row.status if row.ended_at is not None or row.lease_until > now else "silent"


def _remark(row: WorkerLine, now: datetime) -> Text:
    if row.ended_at is not None:
        return Text((row.end_reason or "").removeprefix("its lease lapsed: "))  # Its status says that it is lost.
    if row.lease_until <= now:
        return Text("its lease has lapsed: others take over its jobs", style="red")
    if row.flagged_at is not None:
        return Text("silent while it owns running jobs: look at the process", style="bold red")
    remarks: list[tuple[str, str]] = []
    if row.trouble:
        remarks.append((row.trouble, "bold red"))
    if row.control:
        remarks.append((names(map(_control_text, row.control)), "yellow"))
    if row.models:
        remarks.append((f"models: {names(row.models)}", ""))
    return Text("; ").join(Text(text, style=style) for text, style in remarks)


def _control_text(control: str) -> str:
    """What an operator has set for a place, `vm/mail=pause`, as the command that set it says it: `vm/mail paused`."""
    place, _, mode = control.rpartition("=")
    return f"{place} {MODES[mode]}"


def _control(connection: ServerOptions, args: ControlWorkers, mode: Mode, *, wait: bool = False) -> None:
    async def work(at: Operator) -> None:
        done = await at.do(control_workers, msgspec.structs.replace(args, mode=mode))
        if mode == "run" and done.before == "run":
            out().print(
                f"nothing was paused for {done.host}/{done.queue}: the remarks of `tidemill workers` show what is"
            )
            return
        now, before = ("runs again" if mode == "run" else MODES[mode]), MODES[done.before]
        reached = f"{counted(done.workers, 'worker')} {'takes' if done.workers == 1 else 'take'} from it"
        out().print(f"{done.host}/{done.queue}: {now}, was {before}; {reached}")
        out().print(await unused_queue(at, done.queue), style="yellow", end="")
        if wait:
            await wait_until_drained(at, done.host, done.queue)
            out().print("drained")

    connection.run(work)
