"""`tidemill monitor`: run the monitors of an application, see their status, and act on their alerts."""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions, require_database
from tidemill.cli.monitors import alerts
from tidemill.cli.monitors.backtest import backtest
from tidemill.cli.monitors.options import with_monitor
from tidemill.cli.monitors.roster import roster
from tidemill.cli.monitors.view import print_event, print_status
from tidemill.cli.render import out, print_json
from tidemill.cli.run.roles import Part, application, play
from tidemill.core.errors import ConfigError
from tidemill.ops.monitors.monitors import (
    ListMonitorEvents,
    ListMonitors,
    MonitorRef,
    SwitchTrigger,
    list_monitors,
    pause_monitor,
    resume_monitor,
    switch_trigger,
)
from tidemill.ops.monitors.roster import BackfillMonitor, ResetMonitor, backfill_monitor, reset_monitor
from tidemill.ops.operator.operation import Operator
from tidemill.ops.waiting import follow_events, wait_for_backfill
from tidemill.roles import monitors_role

commands = App(name="monitor", help="Follow entities, and act on alerts.")
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
    found = place.do(list_monitors, ListMonitors(name=name)).items
    if json:
        return print_json(found)
    if not found:
        return out().print("no monitors: declare one with app.monitor(Monitor(...))", style="dim")
    for row in found:
        print_status(row)
    return None


@commands.command
def backfill(
    *entities: str,
    monitor: str | None = None,
    past: str = "24h",
    wait: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Read the past of entities again; events that are in the log already are not stored twice.

    Parameters
    ----------
    entities
        The entities; all of them, if none is named.
    monitor
        The monitor; needed when there are several.
    past
        How far back to read.
    wait
        Return when their past has been read.
    """

    async def work(at: Operator, name: str) -> None:
        wanted = BackfillMonitor(name=name, entities=list(entities) or None, past=past)
        out().print(f"the past of {(await at.do(backfill_monitor, wanted)).count} entities will be read")
        if wait:
            await wait_for_backfill(at, name, entities)
            out().print("it has been read")

    with_monitor(place, monitor, work)


@commands.command
def reset(*entities: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Rebuild states from the log. Alerts stay, and no notice is sent twice.

    Parameters
    ----------
    entities
        The entities; all of them, if none is named.
    monitor
        The monitor; needed when there are several.
    """
    wanted = list(entities) or None
    done = with_monitor(place, monitor, lambda at, name: at.do(reset_monitor, ResetMonitor(name=name, entities=wanted)))
    out().print(f"the states of {done.count} entities will be made anew")


@commands.command
def pause(*, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Stop polling and evaluating; nothing is lost, since the cursor stays.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    done = with_monitor(place, monitor, lambda at, name: at.do(pause_monitor, MonitorRef(name=name)))
    out().print(f"monitor {done.name} is paused")


@commands.command
def resume(*, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Go on where it was paused.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    """
    done = with_monitor(place, monitor, lambda at, name: at.do(resume_monitor, MonitorRef(name=name)))
    out().print(f"monitor {done.name} goes on")


@commands.command
def trigger(
    name: str, to: Literal["on", "off"], /, *, monitor: str | None = None, place: ServerOptions = ANYWHERE
) -> None:
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
    with_monitor(
        place, monitor, lambda at, known: at.do(switch_trigger, SwitchTrigger(name=known, trigger=name, wanted=to))
    )
    out().print(f"trigger {name} is {to}")


@commands.command
def tail(
    *, monitor: str | None = None, entity: str | None = None, lines: int = 20, follow: bool = False,
    json: bool = False, place: ServerOptions = ANYWHERE,
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

    async def work(at: Operator, name: str) -> None:
        async for event in follow_events(at, ListMonitorEvents(name=name, entity=entity, limit=lines), follow=follow):
            print_event(event, json=json)

    with_monitor(place, monitor, work)
