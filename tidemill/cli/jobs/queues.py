"""`tidemill queues`: what goes on in each queue, and how fast its jobs may start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.connection_options import ANYWHERE, Reach, operator
from tidemill.cli.render import out, print_json, rate, short, table
from tidemill.store.database import Database
from tidemill.store.jobs.queues import list_queues
from tidemill.store.jobs.workers import QueueLimit, set_limit

LATELY = 3600.0

commands = App(name="queues", help="Count what is in each queue; limit how fast its jobs start.")


@commands.default
def queues(*, json: bool = False, place: Reach = ANYWHERE) -> None:
    """Count the jobs of each queue, with those that ended in the last hour.

    Parameters
    ----------
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> list[dict[str, Any]]:
        return [_told(dict(row)) for row in await list_queues(database, ended_within=LATELY)]

    rows = place.ask(stored, lambda server: [_told(row) for row in server.items("queues", ended_within=LATELY)])
    if json:
        return print_json(rows)
    if not rows:
        return out().print("no queue is in use: a queue is made by enqueueing to it", style="dim")
    return out().print(queues_table(rows))


@commands.command
def limit(name: str, rate: str, /, *, place: Reach = ANYWHERE) -> None:
    """Limit how fast the jobs of a queue start, over all workers together.

    Parameters
    ----------
    name
        The queue.
    rate
        100/s, 30/m, 5/h, 1000/d, or none for no limit.
    """
    wanted = None if rate == "none" else rate
    checked = QueueLimit.of(name, wanted)
    place.ask(
        lambda database: set_limit(database, checked, by=operator()),
        lambda server: server.put("queues", name, "limit", body={"rate": wanted}),
    )
    out().print(f"queue {name}: {'no limit' if wanted is None else f'at most {rate}'}")


def queues_table(rows: list[dict[str, Any]]) -> Table:
    counts = ("wait", "later", "held", "run", "done/h", "fail/h", "oldest", "workers", "limit")
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


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    told = ("delayed", "held", "running", "oldest", "succeeded", "unsuccessful", "workers", "rate")
    return {"queue": row["name"], "ready": row["waiting"], **{name: row[name] for name in told}}
