"""`tidemill history`: what tasks, queues, hosts and workers did over a day or a month."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import ago, short, show, table
from tidemill.core.did_you_mean import did_you_mean
from tidemill.ops.admin.history import (
    GetHistory,
    ListHistory,
    WorkDone,
    WorkOf,
    WorkPeriod,
    get_history,
    list_history,
)
from tidemill.ops.jobs.workers import ListWorkers, WorkerNumber, get_worker, list_workers
from tidemill.ops.operator.operation import Operator
from tidemill.store.telemetry.history import KEPT_DAYS, Kind

_TIMES = ("ended", "failed", "mean", "p50", "p99")


def history(
    kind: Annotated[Kind, Parameter(help="task, queue, host or worker.")],
    name: Annotated[
        str | None, Parameter(help="Which one, a worker as HOST:PID; all of them, if it is left out.")
    ] = None,
    /,
    *,
    within: Annotated[str, Parameter(help="How far back: 6h, 1d, 30d; at most 31 days.")] = "1d",
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Show how much tasks, queues, hosts or workers did, how long it took and how much of it failed."""
    none = f"no {kind} did anything in this time" if name is None else f"{kind} {name} did nothing in this time"
    if name is None:
        return show(
            connection.do(list_history, ListHistory(kind=kind, within=within)).items, sums_table, json=json, none=none
        )
    periods = connection.do(get_history, GetHistory(kind=kind, name=name, within=within)).items
    if not periods and not json:
        none += connection.run(lambda at: meant_name(at, kind, name))
    return show(periods, periods_table, json=json, none=none)


async def meant_name(at: Operator, kind: Kind, name: str) -> str:
    """The name that a misspelt task, queue, host or worker probably meant; nothing for one that did something."""
    known = [row.name for row in (await at.do(list_history, ListHistory(kind=kind, within=f"{KEPT_DAYS}d"))).items]
    if kind == "task":  # The workers also know tasks that have not run yet.
        workers = (await at.do(list_workers, ListWorkers(ended_within=0.0))).items
        newest = max((row.id for row in workers if row.queues and row.tasks), default=None)
        known += [] if newest is None else (await at.do(get_worker, WorkerNumber(id=newest))).tasks
    return "" if name in known else did_you_mean(name, known)


def sums_table(rows: Sequence[WorkOf], now: datetime) -> Table:
    made = table("name", *_TIMES, numbers=_TIMES)
    for row in rows:
        made.add_row(row.name, *_cells(row))
    return made


def periods_table(rows: Sequence[WorkPeriod], now: datetime) -> Table:
    waits = ("waited p50", "waited p99")
    made = table("since", *_TIMES, *waits, numbers=(*_TIMES, *waits))
    for row in rows:
        made.add_row(ago(row.at, now), *_cells(row), *map(_length, (row.waited_p50, row.waited_p99)))
    return made


def _cells(row: WorkDone) -> list[str | Text]:
    mean = row.seconds / row.ended if row.ended else None
    failed = Text(f"{row.failed:,}", style="bold red" if row.failed else "")
    return [f"{row.ended:,}", failed, *map(_length, (mean, row.p50, row.p99))]


def _length(seconds: float | None) -> str:
    return "" if seconds is None else short(seconds)
