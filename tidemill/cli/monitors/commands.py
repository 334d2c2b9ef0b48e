"""`tidemill monitor`: follow the monitors of an application, see how they stand, and act on their alerts."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App
from rich.text import Text

from tidemill.cli.connection_options import (
    ANYWHERE,
    HERE,
    ConnectionOptions,
    ServerOptions,
    operator,
    require_database,
    with_database,
)
from tidemill.cli.monitors import alerts
from tidemill.cli.monitors.backtest import backtest
from tidemill.cli.monitors.options import for_monitor, with_monitor
from tidemill.cli.monitors.roster import roster
from tidemill.cli.monitors.view import print_status
from tidemill.cli.render import local, out, print_json, read_json, timely
from tidemill.cli.run.roles import Part, application, play
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.roles import monitors_role
from tidemill.store.database import Database
from tidemill.store.monitors import roster as roster_store
from tidemill.store.monitors.events import read_tail
from tidemill.store.monitors.monitors import list_monitors, list_problems

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

commands = App(name="monitor", help="Follow entities, and act on what monitors tell.")
commands.command(roster)
commands.command(backtest)
for command in alerts.COMMANDS:
    commands.command(command)


@commands.command
def run(app: str, /, *, metrics: str | None = None, place: ConnectionOptions = HERE) -> int:
    """Follow the monitors of an application until stopped; several processes share the entities.

    Parameters
    ----------
    app
        The application: app.py, app.py:name or package.module.
    metrics
        Serve Prometheus metrics at this address, such as 127.0.0.1:9464.
    """

    def make() -> Part:
        known = application(app, place, metrics=metrics)
        require_database(known.settings)
        if not known.monitors:
            raise ConfigError(
                f"{known.declarations.source} declares no monitor: declare one with app.monitor(Monitor(...))"
            )
        database = known.database(label=f"tidemill monitor {known.name}")
        return Part(monitors_role(known.declarations, database=database), database, known.settings)

    return play(make)


@commands.command
def status(name: str | None = None, /, *, json: bool = False, place: ServerOptions = ANYWHERE) -> None:
    """Show how monitors stand: health, cursor, the stages of the last tick, what went wrong.

    Parameters
    ----------
    name
        One monitor; all, if not given.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for row in await list_monitors(database, name):
            problems = [dict(each) for each in await list_problems(database, row["name"])]
            found.append({**row, "status": read_json(row["status"]), "problems": problems})
        return found

    def served(server: RowClient) -> list[dict[str, Any]]:
        return [
            {each: value for each, value in row.items() if each != "triggers"}
            | {"problems": [timely(each) for each in row["problems"]]}
            for row in server.items("monitors")
            if name is None or row["name"] == name
        ]

    found = place.ask(stored, served)
    if json:
        return print_json(found)
    if not found:
        return out().print("no monitors: declare one with app.monitor(Monitor(...))", style="dim")
    for row in found:
        print_status(row)
    return None


@commands.command
def backfill(*entities: str, monitor: str | None = None, past: str = "24h", place: ServerOptions = ANYWHERE) -> None:
    """Read the past of entities again; what is in the log already is not stored twice.

    Parameters
    ----------
    entities
        Whose past; everybody's, if nobody is named.
    monitor
        The monitor; needed when there are several.
    past
        How far back to read.
    """
    plan = EntityBackfill(time.time() - parse_duration(past, what="--past"))

    async def stored(database: Database, name: str) -> int:
        return len(await roster_store.start_backfill(database, name, entities or None, plan, by=operator()))

    def served(server: RowClient, name: str) -> int:
        body = {"entities": entities or None, "past": past}
        return server.post("monitors", name, "backfill", body=body)["count"]

    out().print(f"the past of {with_monitor(place, monitor, stored, served)} entities will be read")


@commands.command
def reset(*entities: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Make states anew from the log. Alerts stay, and nobody is told again of what was told.

    Parameters
    ----------
    entities
        Whose state; everybody's, if nobody is named.
    monitor
        The monitor; needed when there are several.
    """

    async def stored(database: Database, name: str) -> int:
        return len(await roster_store.reset_monitor(database, name, entities or None, by=operator()))

    def served(server: RowClient, name: str) -> int:
        return server.post("monitors", name, "reset", body={"entities": entities or None})["count"]

    out().print(f"the states of {with_monitor(place, monitor, stored, served)} entities will be made anew")


@commands.command
def pause(*, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Stop polling and judging; nothing is lost, for the cursor stays.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    out().print(f"monitor {_set_paused(place, monitor, True)} is paused")


@commands.command
def resume(*, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Go on where it was paused.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    out().print(f"monitor {_set_paused(place, monitor, False)} goes on")


@commands.command
def trigger(name: str, to: str, /, *, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Switch a trigger off, which resolves its open alerts, or on again.

    Parameters
    ----------
    name
        The trigger.
    to
        on or off.
    monitor
        The monitor; needed when there are several.
    """
    if to not in ("on", "off"):
        raise ConfigError(f"{to!r}: say on or off")

    async def stored(database: Database, monitor_name: str) -> None:
        await roster_store.switch_trigger(database, monitor_name, name, to == "on", by=operator())

    def served(server: RowClient, monitor_name: str) -> None:
        server.post("monitors", monitor_name, "triggers", name, to)

    with_monitor(place, monitor, stored, served)
    out().print(f"trigger {name} is {to}")


@commands.command
def tail(
    *, monitor: str | None = None, entity: str | None = None, lines: int = 20, follow: bool = False,
    json: bool = False, place: ConnectionOptions = HERE,
) -> None:  # fmt: skip
    """Show the newest events of a monitor's log, as they arrived.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    entity
        Only of this entity.
    lines
        How many.
    follow
        Go on showing what arrives.
    json
        One JSON object a line.
    """

    async def show(database: Database, name: str) -> None:
        seen: set[str] = set()
        tick = 0
        while True:
            rows = await read_tail(database, name, entity=entity, tick=tick, limit=lines if not tick else 1000)
            for row in reversed(rows):
                if row["source_id"] not in seen:
                    _print_event(row, json=json)
            if rows:
                tick = rows[0]["tick"]
                seen = {row["source_id"] for row in rows}
            if not follow:
                return
            await asyncio.sleep(0.5)

    with_database(place, lambda database: for_monitor(database, monitor, show))


def _print_event(row: Any, *, json: bool) -> None:
    if json:
        told = {"id": row["source_id"], "at": row["at"], "entity": row["entity"], "data": msgspec.Raw(row["data"])}
        out().print(msgspec.json.encode(told).decode(), soft_wrap=True)
        return
    moment = local(datetime.fromtimestamp(row["at"], UTC))
    line = Text.assemble(
        f"{moment}  ", (row["entity"], "bold"), f"  {row['source_id']}  ", (str(read_json(row["data"])), "dim")
    )
    out().print(line, overflow="ellipsis", no_wrap=True)


def _set_paused(place: ServerOptions, monitor: str | None, paused: bool) -> str:
    """Pause a monitor or let it go on; returns which."""

    async def stored(database: Database, name: str) -> str:
        await roster_store.set_paused(database, name, paused, by=operator())
        return name

    def served(server: RowClient, name: str) -> str:
        return server.post("monitors", name, "pause" if paused else "resume")["name"]

    return with_monitor(place, monitor, stored, served)
