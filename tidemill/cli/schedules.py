"""`tidemill schedules`: what is enqueued by itself, and when next."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.place import HERE, Place, opened, operator
from tidemill.cli.render import ago, out, plain, print_json, table
from tidemill.core.codec import decode
from tidemill.core.schedule import Cron, Schedule, describe
from tidemill.store.schedules import list_schedules, run_now, set_paused

commands = App(name="schedules", help="List schedules; pause, resume or run them.")


@commands.default
def schedules(*, json: bool = False, place: Place = HERE) -> None:
    """List the schedules and their next fires.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    rows = asyncio.run(_list(place))
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        return out().print('no schedules: declare one with @app.task(cron="*/5 * * * *")', style="dim")
    return out().print(schedules_table(rows, datetime.now(UTC)))


@commands.command
def pause(name: str, /, *, place: Place = HERE) -> None:
    """Stop a schedule from firing.

    Parameters
    ----------
    name
        The schedule.
    """
    asyncio.run(_set_paused(place, name, True))
    out().print(f"schedule {name} is paused")


@commands.command
def resume(name: str, /, *, place: Place = HERE) -> None:
    """Let a schedule fire again, from now on.

    Parameters
    ----------
    name
        The schedule.
    """
    asyncio.run(_set_paused(place, name, False))
    out().print(f"schedule {name} fires again")


@commands.command
def run(name: str, /, *, place: Place = HERE) -> None:
    """Enqueue a schedule's job once, now; prints its id.

    Parameters
    ----------
    name
        The schedule.
    """
    out().print(str(asyncio.run(_run_now(place, name))))


def schedules_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    columns = ("schedule", "when", "task", "queue", "next", "last", "fired", "missed")
    made = table(*columns, numbers=("fired", "missed"), wide="when")
    for row in rows:
        made.add_row(
            row["name"],
            when(decode(row["spec"], Schedule)),
            row["task"],
            row["queue"],
            Text("paused", style="yellow") if row["paused"] else ago(row["next_fire"], now),
            ago(row["last_fire"], now),
            f"{row['fired']:,}",
            Text(f"{row['missed']:,}", style="yellow" if row["missed"] else ""),
        )
    return made


def when(spec: Schedule) -> str:
    """A schedule as its author wrote it."""
    if isinstance(spec, Cron):
        return spec.expr if spec.timezone == "UTC" else f"{spec.expr}  {spec.timezone}"
    return describe(spec)


async def _list(place: Place) -> list[dict[str, Any]]:
    async with opened(place.settings()) as database:
        return [dict(row) for row in await list_schedules(database)]


async def _set_paused(place: Place, name: str, paused: bool) -> None:
    async with opened(place.settings()) as database:
        await set_paused(database, name, paused, by=operator())


async def _run_now(place: Place, name: str) -> int:
    async with opened(place.settings()) as database:
        return (await run_now(database, name, by=operator())).id
