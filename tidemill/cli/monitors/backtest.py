"""`tidemill monitor backtest`: what the triggers of an application would have opened in a stored span."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from tidemill.cli.connection_options import HERE, ConnectionOptions, opened
from tidemill.cli.render import out, print_json, table
from tidemill.cli.run.roles import application
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.monitors.definition.triggers import Trigger
from tidemill.monitors.view.backtest import BacktestReport, as_identity, identity
from tidemill.monitors.view.backtest import backtest as run_backtest
from tidemill.monitors.view.backtest import compare as compare_reports
from tidemill.monitors.view.backtest import replay as run_replay
from tidemill.monitors.view.backtest_chart import svg as draw
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.monitors.events import moment


def backtest(
    app: str,
    /,
    *,
    monitor: str | None = None,
    since: str | None = None,
    until: str | None = None,
    last: str = "1d",
    trigger: list[str] | None = None,
    against: str | None = None,
    svg: str | None = None,
    replay: bool = False,
    json: bool = False,
    place: ConnectionOptions = HERE,
) -> int:
    """Say what triggers would have opened in a stored span, before they are turned on.

    Parameters
    ----------
    app
        The application: app.py, app.py:name or package.module.
    monitor
        Its monitor; needed when there are several.
    since
        The beginning of the span, as in 2026-03-02T08:00.
    until
        Its end; now, if not given.
    last
        In place of --since: this long before the end.
    trigger
        Only this trigger; say it again for more.
    against
        Another application with a monitor of the same name, to compare with: next.py.
    svg
        Draw a picture into this file.
    replay
        Go through the ticks as they were instead, and check that the stored alerts come out again.
    json
        Print one JSON document.
    """
    end = time.time() if until is None else moment(until, what="--until")
    begin = end - parse_duration(last, what="--last") if since is None else moment(since, what="--since")
    if begin >= end:
        raise ConfigError("the span ends before it begins: check --since and --until")
    watch = application(app, place).monitors.require(monitor)
    other = None if against is None else application(against, place).monitors.require(watch.name)
    wanted = _chosen(watch.triggers, trigger)

    async def go() -> tuple[BacktestReport, BacktestReport | None, bool | None]:
        async with opened(place.settings()) as database:
            if replay:
                report = await run_replay(database, watch, -1e12, end)
                stored = await list_alerts(database, watch.name, limit=1_000_000)
                return report, None, identity(report) == as_identity([dict(row) for row in stored])
            report = await run_backtest(database, watch, begin, end, triggers=wanted)
            if other is None:
                return report, None, None
            then = _chosen(other.triggers, trigger)
            return report, await run_backtest(database, other, begin, end, triggers=then), None

    report, second, same = asyncio.run(go())
    if svg is not None:
        Path(svg).write_text(draw(second or report), encoding="utf-8")
    if json:
        print_json(_as_json(report, second, same))
    else:
        _print(report, second, same)
    return 1 if same is False else 0


def _chosen(triggers: tuple[Trigger, ...], names: list[str] | None) -> tuple[Trigger, ...]:
    if names is None:
        return triggers
    known = {trigger.name for trigger in triggers}
    if unknown := set(names) - known:
        raise ConfigError(f"there is no trigger {min(unknown)!r}; there are {', '.join(sorted(known))}")
    return tuple(trigger for trigger in triggers if trigger.name in names)


def _as_json(report: BacktestReport, second: BacktestReport | None, same: bool | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "entities": report.entities,
        "events": report.events,
        "counts": report.counts(),
        "replayed": same,
    }
    told["alerts"] = [
        {name: getattr(alert, name) for name in alert.__struct_fields__ if name != "explain"} for alert in report.alerts
    ]
    if second is not None:
        found = compare_reports(report, second)
        told["against"] = second.counts()
        told["differs"] = {
            "both": len(found.both), "only_first": len(found.only_first), "only_second": len(found.only_second)
        }  # fmt: skip
    return told


def _print(report: BacktestReport, second: BacktestReport | None, same: bool | None) -> None:
    out().print(f"{report.events:,} events of {report.entities:,} entities")
    made = table("trigger", "would open", *(() if second is None else ("then",)), numbers=("would open", "then"))
    then = {} if second is None else second.counts()
    for name in sorted({*report.counts(), *then}):
        counts = [report.counts().get(name, 0), *(() if second is None else (then.get(name, 0),))]
        made.add_row(name, *(f"{count:,}" for count in counts))
    out().print(made)
    if second is not None:
        found = compare_reports(report, second)
        out().print(
            f"{len(found.both)} the same, {len(found.only_first)} no longer, {len(found.only_second)} only then"
        )
    for problem in report.problems[:5]:
        out().print(f"problem: {problem.place} for {problem.entity}: {problem.error}", style="yellow")
    if same is not None:
        out().print("the stored alerts came out again" if same else "the stored alerts are others", style="bold")
