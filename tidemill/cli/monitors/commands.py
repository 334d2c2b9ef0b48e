"""`tidemill monitor`: runs the monitors of an application, shows their status and events, pauses and resets them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from tidemill.cli.arguments import Application, Json, Metrics, Shown, Supervise
from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions
from tidemill.cli.monitors import alerts
from tidemill.cli.monitors.backtest import backtest
from tidemill.cli.monitors.options import Entities, Past, on_monitor
from tidemill.cli.monitors.roster import roster
from tidemill.cli.monitors.view import print_event, status_page
from tidemill.cli.render import counted, listed, out, show
from tidemill.cli.run.process_tree import ProcessTree, child, run_processes
from tidemill.cli.run.processes import load_monitors, run_monitors
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import NotFoundError
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

commands = App(name="monitor", help="Follow entities, and act on alerts.")
commands.command(roster)
commands.command(backtest)
for command in alerts.COMMANDS:
    commands.command(command)


@commands.command
def run(
    app: Application,
    /,
    *,
    supervise: Supervise = True,
    metrics: Metrics = None,
    connection: ConnectionOptions = HERE,
) -> int:
    """Follow the monitors of an application until stopped; several processes share the entities."""
    given = connection.arguments()
    if not supervise:
        return run_monitors(app, given=given, metrics=metrics)
    specs = [child("monitor", given, "monitor", "run", app, "--no-supervise")]
    return run_processes(lambda: ProcessTree(load_monitors(app, given, metrics).settings, specs, "tidemill monitor"))


@commands.command
def status(
    name: Annotated[str | None, Parameter(help="One monitor; all, if not given.")] = None,
    /,
    *,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Show monitors: health, cursor, the stages of the last tick, what went wrong."""
    found = connection.do(list_monitors, ListMonitors(name=name)).items
    if name is not None and not found:
        known = [each.name for each in connection.do(list_monitors, ListMonitors()).items]
        raise NotFoundError(f"there is no monitor {name!r}; there {listed(known)}{did_you_mean(name, known)}")
    show(found, status_page, json=json, none="no monitors: declare one with app.monitor(Monitor(...))")


@commands.command
@on_monitor
async def backfill(
    at: Operator,
    monitor: str,
    *entities: Entities,
    past: Past = "24h",
    wait: Annotated[bool, Parameter(help="Return when their past has been read.")] = False,
) -> None:
    """Read the past of entities again; events that are in the log already are not stored twice."""
    wanted = BackfillMonitor(name=monitor, entities=list(entities) or None, past=past)
    count = (await at.do(backfill_monitor, wanted)).count
    out().print(f"the past of {counted(count, 'entity', 'entities')} will be read")
    if wait:
        await wait_for_backfill(at, monitor, entities)
        out().print("it has been read")


@commands.command
@on_monitor
async def reset(at: Operator, monitor: str, *entities: Entities) -> None:
    """Rebuild states from the log. Alerts stay, and no notice is sent twice."""
    done = await at.do(reset_monitor, ResetMonitor(name=monitor, entities=list(entities) or None))
    out().print(f"the states of {counted(done.count, 'entity', 'entities')} will be built again")


@commands.command
@on_monitor
async def pause(at: Operator, monitor: str) -> None:
    """Stop polling and evaluating; nothing is lost, since the cursor stays."""
    await at.do(pause_monitor, MonitorRef(name=monitor))
    out().print(f"monitor {monitor} is paused")


@commands.command
@on_monitor
async def resume(at: Operator, monitor: str) -> None:
    """Go on where it was paused."""
    await at.do(resume_monitor, MonitorRef(name=monitor))
    out().print(f"monitor {monitor} goes on")


@commands.command
@on_monitor
async def trigger(
    at: Operator,
    monitor: str,
    name: Annotated[str, Parameter(help="The trigger.")],
    to: Annotated[Literal["on", "off"], Parameter(help="on or off.")],
    /,
) -> None:
    """Switch a trigger off, which resolves its open alerts, or on again."""
    await at.do(switch_trigger, SwitchTrigger(name=monitor, trigger=name, wanted=to))
    out().print(f"trigger {name} is {to}")


@commands.command
@on_monitor
async def tail(
    at: Operator,
    monitor: str,
    *,
    entity: Annotated[str | None, Parameter(help="Only of this entity.")] = None,
    lines: Shown = 20,
    follow: Annotated[bool, Parameter(help="Keep showing what arrives.")] = False,
    json: Annotated[bool, Parameter(help="One JSON object a line.")] = False,
) -> None:
    """Show the newest events of a monitor's log, as they arrived."""
    async for event in follow_events(at, ListMonitorEvents(name=monitor, entity=entity, limit=lines), follow=follow):
        print_event(event, json=json)
