"""`tidemill queues`: what goes on in each queue, and how fast its jobs may start."""

from __future__ import annotations

import asyncio
from typing import Any

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.place import HERE, Place, opened, operator
from tidemill.cli.render import out, plain, print_json, rate, short, table
from tidemill.core.duration import parse_rate
from tidemill.core.job import check_name
from tidemill.store.inspect import count_queues
from tidemill.store.workers import QueueLimit, set_limit

commands = App(name="queues", help="Count what is in each queue; limit how fast its jobs start.")


@commands.default
def queues(*, json: bool = False, place: Place = HERE) -> None:
    """Count the jobs of each queue, with those that ended in the last hour.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    rows = asyncio.run(_count(place))
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        return out().print("no queue is in use: a queue is made by enqueueing to it", style="dim")
    return out().print(queues_table(rows))


@commands.command
def limit(name: str, rate: str, /, *, place: Place = HERE) -> None:
    """Limit how fast the jobs of a queue start, over all workers together.

    Parameters
    ----------
    name
        The queue.
    rate
        100/s, 30/m, 5/h, 1000/d, or none for no limit.
    """
    check_name("queue", name)
    per_second = None if rate == "none" else parse_rate(rate, what=f"rate of queue {name}")
    burst = None if per_second is None else max(1.0, per_second / 10)
    asyncio.run(_limit(place, QueueLimit(name, per_second, burst)))
    out().print(f"queue {name}: {'no limit' if per_second is None else f'at most {rate}'}")


def queues_table(rows: list[dict[str, Any]]) -> Table:
    counts = ("waiting", "delayed", "held", "running", "done 1h", "failed 1h", "oldest", "workers", "limit")
    made = table("queue", *counts, numbers=counts)
    for row in rows:
        made.add_row(
            row["queue"],
            *(f"{row[name]:,}" for name in ("ready", "delayed", "held", "running", "succeeded")),
            Text(f"{row['unsuccessful']:,}", style="bold red" if row["unsuccessful"] else ""),
            "" if row["oldest"] is None else short(row["oldest"]),
            Text(str(row["workers"]) if row["workers"] else "none", style="" if row["workers"] else "yellow"),
            rate(row["rate"]),
        )
    return made


async def _count(place: Place) -> list[dict[str, Any]]:
    async with opened(place.settings()) as database:
        return [dict(row) for row in await count_queues(database)]


async def _limit(place: Place, wanted: QueueLimit) -> None:
    async with opened(place.settings()) as database:
        await set_limit(database, wanted, by=operator())
