"""`tidemill monitor`: follow the monitors of an application, see how they stand, and act on their alerts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from cyclopts import App
from rich.text import Text

from tidemill.cli.backtests import backtest
from tidemill.cli.monitorplace import pair, some, with_monitor
from tidemill.cli.monitorview import alerts_table, print_alert, print_status, told_alert
from tidemill.cli.place import ANYWHERE, HERE, Place, Reach, operator, require_database, with_database
from tidemill.cli.render import local, out, plain, print_json, read_json, timely
from tidemill.cli.roles import Part, application, play
from tidemill.cli.roster import roster
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.monitors.drain import Backfill
from tidemill.store import alerts as alert_store
from tidemill.store import roster as roster_store
from tidemill.store.database import Database
from tidemill.store.monitors import list_monitors, list_problems
from tidemill.store.observed import read_tail

if TYPE_CHECKING:
    from tidemill.cli.remote import Remote

commands = App(name="monitor", help="Follow entities, and act on what monitors tell.")
commands.command(roster)
commands.command(backtest)


@commands.command
def run(app: str, /, *, metrics: str | None = None, place: Place = HERE) -> int:
    """Follow the monitors of an application until stopped; several processes share the entities.

    Parameters
    ----------
    app
        The application: app.py, app.py:name or package.module.
    metrics
        Serve Prometheus metrics at this address, such as 127.0.0.1:9464.
    """

    def cast() -> Part:
        known = application(app, place, metrics=metrics)
        require_database(known.settings)
        if not known.monitors:
            raise ConfigError(f"{known.source} declares no monitor: declare one with app.monitor(Monitor(...))")
        database = known.database(application=f"tidemill monitor {known.name}")
        return Part(known.monitor_runner(database=database), database, known.settings)

    return play(cast)


@commands.command
def status(name: str | None = None, /, *, json: bool = False, place: Place = HERE) -> None:
    """Show how monitors stand: health, cursor, the stages of the last tick, what went wrong.

    Parameters
    ----------
    name
        One monitor; all, if not given.
    json
        Print one JSON document.
    """

    async def look(database: Database) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        rows = [dict(row) for row in await list_monitors(database, name)]
        return [(row, [dict(each) for each in await list_problems(database, row["name"])]) for row in rows]

    found = with_database(place, look)
    if json:
        return print_json([{**plain(row), "problems": [plain(each) for each in problems]} for row, problems in found])
    if not found:
        return out().print("no monitors: declare one with app.monitor(Monitor(...))", style="dim")
    for row, problems in found:
        print_status(row, problems)
    return None


@commands.command
def backfill(*entities: str, monitor: str | None = None, past: str = "24h", place: Place = HERE) -> None:
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
    plan = Backfill(time.time() - parse_duration(past, what="--past"))

    async def start(database: Database, name: str) -> list[str]:
        return await roster_store.start_backfill(database, name, entities or None, plan, by=operator())

    out().print(f"the past of {len(with_monitor(place, monitor, start))} entities will be read")


@commands.command
def reset(*entities: str, monitor: str | None = None, place: Place = HERE) -> None:
    """Make states anew from the log. Alerts stay, and nobody is told again of what was told.

    Parameters
    ----------
    entities
        Whose state; everybody's, if nobody is named.
    monitor
        The monitor; needed when there are several.
    """

    async def start(database: Database, name: str) -> list[str]:
        return await roster_store.reset_monitor(database, name, entities or None, by=operator())

    out().print(f"the states of {len(with_monitor(place, monitor, start))} entities will be made anew")


@commands.command
def pause(*, monitor: str | None = None, place: Place = HERE) -> None:
    """Stop polling and judging; nothing is lost, for the cursor stays.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    out().print(f"monitor {with_monitor(place, monitor, _set_paused(True))} is paused")


@commands.command
def resume(*, monitor: str | None = None, place: Place = HERE) -> None:
    """Go on where it was paused.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    out().print(f"monitor {with_monitor(place, monitor, _set_paused(False))} goes on")


@commands.command
def trigger(name: str, to: str, /, *, monitor: str | None = None, place: Place = HERE) -> None:
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

    async def switch(database: Database, monitor_name: str) -> None:
        await roster_store.switch_trigger(database, monitor_name, name, to == "on", by=operator())

    with_monitor(place, monitor, switch)
    out().print(f"trigger {name} is {to}")


@commands.command
def alerts(
    *,
    monitor: str | None = None,
    entity: str | None = None,
    trigger: str | None = None,
    all: bool = False,
    limit: int = 50,
    json: bool = False,
    place: Reach = ANYWHERE,
) -> None:
    """List alerts, the newest first: open ones, and those resolved in the last two minutes.

    Parameters
    ----------
    monitor
        Only of this monitor.
    entity
        Only of this entity.
    trigger
        Only of this trigger.
    all
        Those resolved before, too.
    limit
        How many to show.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> list[dict[str, Any]]:
        rows = await alert_store.list_alerts(
            database, monitor, entity=entity, trigger=trigger, current=not all, limit=limit
        )
        return [told_alert(dict(row)) for row in rows]

    def served(server: Remote) -> list[dict[str, Any]]:
        return server.items("alerts", monitor=monitor, entity=entity, trigger=trigger, current=not all, limit=limit)

    rows = place.ask(stored, served)
    if json:
        return print_json(rows)
    return out().print(alerts_table(rows, datetime.now(UTC)) if rows else "no alerts")


@commands.command
def explain(id: int, /, *, json: bool = False, place: Reach = ANYWHERE) -> None:
    """Why an alert was opened: the rule, the events, the state; and what has happened to it since.

    Parameters
    ----------
    id
        The alert.
    json
        Print one JSON document.
    """

    async def stored(database: Database) -> dict[str, Any]:
        row = dict(await alert_store.show_alert(database, id))
        history = [dict(each) for each in await alert_store.show_history(database, id)]
        return {**told_alert(row), "explain": read_json(row["explain"]), "history": history}

    def served(server: Remote) -> dict[str, Any]:
        story = server.get("alerts", id)
        history = [timely(each) for each in story["history"]]
        return {**timely(story["alert"]), "explain": story["explain"], "history": history}

    alert = place.ask(stored, served)
    return print_json(alert) if json else print_alert(alert)


@commands.command
def ack(*ids: int, note: str | None = None, place: Reach = ANYWHERE) -> None:
    """Acknowledge alerts: somebody has seen them. A lasting one comes back if nothing changes.

    Parameters
    ----------
    ids
        The alerts.
    note
        A note to keep with them.
    """
    some(ids)

    async def stored(database: Database) -> set[int]:
        return await alert_store.ack_alerts(database, ids, by=operator(), at=time.time(), note=note)

    done = place.ask(stored, lambda server: set(server.post("alerts", "ack", body={"ids": ids, "note": note})["ids"]))
    for id in ids:
        out().print(f"alert {id} {'is acknowledged' if id in done else 'was acknowledged before'}")


@commands.command
def note(id: int, text: str, /, *, owner: str | None = None, place: Reach = ANYWHERE) -> None:
    """Put a note on an alert.

    Parameters
    ----------
    id
        The alert.
    text
        The note.
    owner
        Whose alert it is from now on.
    """

    async def stored(database: Database) -> None:
        await alert_store.note_alert(database, id, by=operator(), note=text, owner=owner)

    place.ask(stored, lambda server: server.post("alerts", id, "note", body={"note": text, "owner": owner}))
    out().print(f"alert {id} has a note")


@commands.command
def silence(
    *matchers: str, until: str = "1h", comment: str = "", end: int | None = None, monitor: str | None = None,
    place: Place = HERE,
) -> None:  # fmt: skip
    """Tell nobody of some alerts for a time; without matchers, list the silences.

    Parameters
    ----------
    matchers
        As in trigger=hot entity=press-*; all of them must fit.
    until
        For how long.
    comment
        Why.
    end
        End this silence now instead.
    monitor
        The monitor; needed when there are several.
    """
    if end is not None:
        number = end
        with_database(place, lambda database: alert_store.end_silence(database, number, by=operator()))
        return out().print(f"silence {end} has ended")
    if not matchers:
        for each in with_database(place, lambda database: alert_store.read_silences(database, monitor, time.time())):
            fits = " ".join(f"{name}={pattern}" for name, pattern in each.matchers.items())
            out().print(f"{each.id}  {each.monitor}  {fits}  until {local(datetime.fromtimestamp(each.ends_at, UTC))}")
        return None
    wanted = dict(pair(each) for each in matchers)
    now = time.time()
    ends = now + parse_duration(until, what="--until")

    async def add(database: Database, name: str) -> int:
        return await alert_store.add_silence(
            database, name, wanted, starts_at=now, ends_at=ends, by=operator(), comment=comment
        )

    out().print(f"silence {with_monitor(place, monitor, add)} until {local(datetime.fromtimestamp(ends, UTC))}")
    return None


@commands.command
def tail(
    *, monitor: str | None = None, entity: str | None = None, lines: int = 20, follow: bool = False,
    json: bool = False, place: Place = HERE,
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

    with_monitor(place, monitor, show)


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


def _set_paused(paused: bool) -> Callable[[Database, str], Awaitable[str]]:
    async def change(database: Database, name: str) -> str:
        await roster_store.set_paused(database, name, paused, by=operator())
        return name

    return change
