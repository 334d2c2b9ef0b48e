"""`tidemill queues`: what is in each queue, and how fast its jobs may start."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import out, print_json, rate, short, table
from tidemill.ops.jobs.queues import LimitQueue, ListQueues, Queue, limit_queue, list_queues

RECENT = 3600.0

commands = App(name="queues", help="Count what is in each queue; limit how fast its jobs start.")


@commands.default
def queues(*, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Count the jobs of each queue, with those that ended in the last hour.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    rows = place.do(list_queues, ListQueues(ended_within=RECENT)).items
    if json:
        return print_json(rows)
    if not rows:
        return out().print("no queue is in use: enqueueing a job to a queue makes it", style="dim")
    return out().print(queues_table(rows))


@commands.command
def limit(name: str, rate: str, /, *, place: ServerOptions = ANYWHERE) -> None:
    """Limit how fast the jobs of a queue start, over all workers together.

    Parameters
    ----------
    name
        The queue.
    rate
        100/s, 30/m, 5/h, 1000/d, or none for no limit.
    """
    wanted = None if rate == "none" else rate
    place.do(limit_queue, LimitQueue(name=name, rate=wanted))
    out().print(f"queue {name}: {'no limit' if wanted is None else f'at most {rate}'}")


def queues_table(rows: Sequence[Queue]) -> Table:
    counts = ("wait", "sched", "throttled", "run", "done/h", "fail/h", "oldest", "workers", "limit")
    made = table("queue", *counts, numbers=counts)
    for row in rows:
        failed, blocked = row.unsuccessful or 0, row.throttled + row.no_worker
        made.add_row(
            row.name,
            *(f"{number or 0:,}" for number in (row.waiting, row.scheduled, blocked, row.running, row.succeeded)),
            Text(f"{failed:,}", style="bold red" if failed else ""),
            "" if row.oldest is None else short(row.oldest),
            Text(str(row.workers) if row.workers else "none", style="" if row.workers else "yellow"),
            rate(row.rate),
        )
    return made
