"""`tidemill monitor backtest`: what the triggers of an application would have opened in a stored time span."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import Json
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.monitors.options import MonitorOption, with_monitor
from tidemill.cli.render import counted, out, print_json, table
from tidemill.core.errors import ConfigError
from tidemill.monitors.reducer.entity_state import AlertRecord
from tidemill.monitors.runner.backtest import BacktestReport, Difference, compare
from tidemill.monitors.view.backtest_chart import svg as draw
from tidemill.ops.monitors.backtests import Backtested, BacktestMonitor, backtest_monitor
from tidemill.ops.operator.operation import Operator
from tidemill.store.monitors.events import moment

MOST_ALERTS = 100_000


def backtest(
    app: Annotated[
        str | None,
        Parameter(help="The application: app.py, app.py:name or package.module; left out with a server, which has it."),
    ] = None,
    /,
    *,
    monitor: MonitorOption = None,
    since: Annotated[str | None, Parameter(help="The beginning of the span, as in 2026-03-02T08:00.")] = None,
    until: Annotated[str | None, Parameter(help="Its end; now, if not given.")] = None,
    last: Annotated[str, Parameter(help="In place of --since: this long before the end.")] = "1d",
    trigger: Annotated[list[str] | None, Parameter(help="Only this trigger; may be repeated.")] = None,
    against: Annotated[
        str | None, Parameter(help="Another application with a monitor of the same name, to compare with: next.py.")
    ] = None,
    svg: Annotated[str | None, Parameter(help="Draw a picture into this file.")] = None,
    replay: Annotated[
        bool, Parameter(help="Repeat all stored ticks instead, and check that the stored alerts are opened again.")
    ] = False,
    timeout: Annotated[float, Parameter(help="Give up after this many seconds.")] = 60.0,
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Say what triggers would have opened in a stored span, before they are turned on."""
    if connection.server_url is not None and (app or against):
        raise ConfigError("the server has the application: leave out APP and --against")
    wanted = BacktestMonitor(
        name="",
        last=last,
        since=None if since is None else datetime.fromtimestamp(moment(since, what="--since"), UTC),
        until=None if until is None else datetime.fromtimestamp(moment(until, what="--until"), UTC),
        triggers=trigger,
        replay=replay,
        most=MOST_ALERTS,
        timeout=timeout,
    )

    async def work(at: Operator, name: str) -> Backtested:
        return await at.do(backtest_monitor, msgspec.structs.replace(wanted, name=name))

    found = with_monitor(connection, monitor, work, app=app)
    second = None if against is None else with_monitor(connection, monitor, work, app=against)
    if svg is not None:
        Path(svg).write_text(draw(_report(second or found)), encoding="utf-8")
    if json:
        print_json(found if second is None else _compared(found, second))
    else:
        _print(found, second)
    return 1 if found.replayed is False else 0


def _report(found: Backtested) -> BacktestReport:
    """A result as it can be drawn and compared."""
    alerts = [
        AlertRecord(
            monitor=found.monitor,
            trigger=each.trigger,
            entity=each.entity,
            kind=each.kind,
            severity=each.severity,
            started_at=each.started_at.timestamp(),
            opened_at=each.opened_at.timestamp(),
            tick=0,
            key=each.key,
            resolved_at=None if each.resolved_at is None else each.resolved_at.timestamp(),
        )
        for each in found.alerts
    ]
    since, until = found.since.timestamp(), found.until.timestamp()
    return BacktestReport(found.monitor, since, until, alerts, entities=found.entities, events=found.events)


def _difference(found: Backtested, second: Backtested) -> Difference:
    return compare(_report(found), _report(second))


def _compared(found: Backtested, second: Backtested) -> dict[str, Any]:
    differs = {name: len(alerts) for name, alerts in msgspec.structs.asdict(_difference(found, second)).items()}
    return {**msgspec.structs.asdict(found), "against": second.counts, "differs": differs}


def _print(found: Backtested, second: Backtested | None) -> None:
    out().print(f"{counted(found.events, 'event')} of {counted(found.entities, 'entity', 'entities')}")
    made = table("trigger", "would open", *(() if second is None else ("then",)), numbers=("would open", "then"))
    then = {} if second is None else second.counts
    for name in sorted({*found.counts, *then}):
        counts = [found.counts.get(name, 0), *(() if second is None else (then.get(name, 0),))]
        made.add_row(name, *(f"{count:,}" for count in counts))
    out().print(made)
    if second is not None:
        both = _difference(found, second)
        out().print(f"{len(both.both)} the same, {len(both.only_first)} no longer, {len(both.only_second)} only then")
    for problem in found.problems[:5]:
        out().print(f"problem: {problem}", style="yellow")
    if found.replayed is not None:
        verdict = "the replay opened the stored alerts" if found.replayed else "the replay opened other alerts"
        out().print(verdict, style="bold")
