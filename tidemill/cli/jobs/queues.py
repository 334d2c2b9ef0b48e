"""`tidemill queues`: what is in each queue, and how fast its jobs may start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import held_columns, out, rate, short, show, table
from tidemill.core.did_you_mean import did_you_mean
from tidemill.ops.jobs.queues import LimitQueue, ListQueues, QueueLine, WeighKey, limit_queue, list_queues, weigh_key
from tidemill.ops.operator.operation import Operator

RECENT = 3600.0

commands = App(name="queues", help="Count what is in each queue; limit how fast its jobs start.")


@commands.default
def queues(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Count the jobs of each queue, with those that ended in the last hour."""
    rows = connection.do(list_queues, ListQueues(ended_within=RECENT)).items
    show(rows, queues_table, json=json, none="no queue is in use: enqueueing a job to a queue makes it")


@commands.command
@options_of(LimitQueue, positional=("name",))
def limit(
    args: LimitQueue,
    rate: Annotated[str, Parameter(help="100/s, 30/m, 5/h, 1000/d; none for no limit.")],
    /,
    *,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Limit how fast the jobs of a queue start, over all workers together."""
    wanted = None if rate == "none" else rate
    connection.do(limit_queue, msgspec.structs.replace(args, rate=wanted))
    each = " for each rate key" if args.per_key else ""
    out().print(f"queue {args.name}: {'no limit' if wanted is None else f'at most {wanted}'}{each}")


@commands.command
@options_of(WeighKey, positional=("name", "fair_key", "weight"))
def weight(args: WeighKey, *, connection: ServerOptions = ANYWHERE) -> None:
    """Set the share that a fair key has of a queue; keys without a weight have 1."""
    connection.do(weigh_key, args)
    out().print(f"queue {args.name}: fair key {args.fair_key} has weight {args.weight}")


async def unused_queue(at: Operator, name: str) -> str:
    """A note, if no job is in a queue and no worker takes jobs from it; nothing otherwise."""
    rows = (await at.do(list_queues, ListQueues(internal=True))).items
    counts = ("workers", "waiting", "scheduled", "running", "throttled", "no_worker")
    known = [row.name for row in rows if any(getattr(row, each) for each in counts)]
    if name in (*known, "*"):
        return ""
    return f"note: queue {name} has no jobs and no workers{did_you_mean(name, known)}\n"


def queues_table(rows: Sequence[QueueLine], now: datetime) -> Table:
    held = held_columns((row.throttled for row in rows), (row.no_worker for row in rows))
    counts = ("wait", "sched", *held, "run", "done/h", "fail/h", "oldest", "workers", "limit")
    made = table("queue", *counts, numbers=counts)
    for row in rows:
        failed = row.unsuccessful or 0
        waiting = (row.waiting, row.scheduled, *(getattr(row, name) for name in held))
        made.add_row(
            row.name,
            *(f"{number or 0:,}" for number in (*waiting, row.running, row.succeeded)),
            Text(f"{failed:,}", style="bold red" if failed else ""),
            "" if row.oldest is None else short(row.oldest),
            Text(str(row.workers) if row.workers else "none", style="" if row.workers else "yellow"),
            rate(row.rate),
        )
    return made
