"""`tidemill schedules`: what is enqueued by itself, and when next."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.table import Table
from rich.text import Text

from tidemill.cli.connection_options import ANYWHERE, Reach, operator
from tidemill.cli.render import ago, out, print_json, table
from tidemill.core.codec import decode
from tidemill.core.schedule import Schedule, describe
from tidemill.store.database import Database
from tidemill.store.jobs.schedules import list_schedules, run_now, set_paused

if TYPE_CHECKING:
    from tidemill.cli.client import Remote

commands = App(name="schedules", help="List schedules; pause, resume or run them.")


@commands.default
def schedules(*, json: bool = False, place: Reach = ANYWHERE) -> None:
    """List the schedules and their next fires.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    rows = place.ask(_stored, _served)
    if json:
        return print_json(rows)
    if not rows:
        return out().print('no schedules: declare one with @app.task(cron="*/5 * * * *")', style="dim")
    return out().print(schedules_table(rows, datetime.now(UTC)))


@commands.command
def pause(name: str, /, *, place: Reach = ANYWHERE) -> None:
    """Stop a schedule from firing.

    Parameters
    ----------
    name
        The schedule.
    """
    _set_paused(place, name, True)
    out().print(f"schedule {name} is paused")


@commands.command
def resume(name: str, /, *, place: Reach = ANYWHERE) -> None:
    """Let a schedule fire again, from now on.

    Parameters
    ----------
    name
        The schedule.
    """
    _set_paused(place, name, False)
    out().print(f"schedule {name} fires again")


@commands.command
def run(name: str, /, *, place: Reach = ANYWHERE) -> None:
    """Enqueue a schedule's job once, now; prints its id.

    Parameters
    ----------
    name
        The schedule.
    """

    async def stored(database: Database) -> int:
        return (await run_now(database, name, by=operator())).id

    out().print(str(place.ask(stored, lambda server: server.post("schedules", name, "run")["id"])))


def schedules_table(rows: list[dict[str, Any]], now: datetime) -> Table:
    columns = ("schedule", "when", "task", "queue", "next", "last", "fired", "missed")
    made = table(*columns, numbers=("fired", "missed"), wide="when")
    for row in rows:
        made.add_row(
            row["name"],
            row["when"],
            row["task"],
            row["queue"],
            Text("paused", style="yellow") if row["paused"] else ago(row["next_fire"], now),
            ago(row["last_fire"], now),
            f"{row['fired']:,}",
            Text(f"{row['missed']:,}", style="yellow" if row["missed"] else ""),
        )
    return made


async def _stored(database: Database) -> list[dict[str, Any]]:
    return [
        {**_without(dict(row), "spec"), "when": describe(decode(row["spec"], Schedule))}
        for row in await list_schedules(database)
    ]


def _served(server: Remote) -> list[dict[str, Any]]:
    return [_without(row, "then") for row in server.items("schedules")]


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in row.items() if each != name}


def _set_paused(place: Reach, name: str, paused: bool) -> None:
    place.ask(
        lambda database: set_paused(database, name, paused, by=operator()),
        lambda server: server.post("schedules", name, "pause" if paused else "resume"),
    )
