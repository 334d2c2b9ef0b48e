"""Backtests: what the triggers of an application would have opened in a stored time span."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from tidemill.core.duration import parse_duration
from tidemill.core.encoding.json_rows import zoned
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError
from tidemill.declarations import Declarations
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.definition.triggers import Trigger
from tidemill.monitors.runner.backtest import BacktestReport, as_identity, backtest, identity, replay
from tidemill.ops.monitors.monitors import MonitorName
from tidemill.ops.operator.operation import Arguments, doc, operation
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts
from tidemill.store.transaction import Reader

MOST_ALERTS = 2_000
MOST_PROBLEMS = 20
LONGEST_SPAN = 92 * 86_400.0

#: One backtest at a time in a process: it runs the application's code.
_one = threading.Lock()


class BacktestMonitor(Arguments, frozen=True, kw_only=True):
    """The time span and the triggers to try: the last hours or days, or from one moment to another."""

    name: MonitorName
    last: Annotated[str | float, doc("In place of `since`: this long before the end.")] = "1d"
    since: Annotated[datetime | None, doc("The beginning of the span.")] = None
    until: Annotated[datetime | None, doc("Its end; now, if not given.")] = None
    triggers: Annotated[list[str] | None, doc("Only these triggers; all of them, if not given.")] = None
    replay: Annotated[bool, doc("Repeat all stored ticks instead, and compare with the stored alerts.")] = False
    most: Annotated[int, doc("How many alerts to return.", ge=1, le=1_000_000)] = MOST_ALERTS
    timeout: Annotated[float, doc("Give up after this many seconds.", gt=0, le=86_400)] = 60.0


class WouldOpen(msgspec.Struct, frozen=True):
    """An alert that would have been opened."""

    entity: str
    trigger: str
    kind: Annotated[str, doc("The kind of its trigger.")]
    severity: str
    started_at: datetime
    opened_at: datetime
    resolved_at: datetime | None
    key: str | None


class Backtested(msgspec.Struct, frozen=True):
    """What triggers would have opened: `counts` per trigger, the first of the alerts, and what went wrong."""

    monitor: str
    since: datetime
    until: datetime
    entities: int
    events: int
    counts: dict[str, int]
    alerts: list[WouldOpen]
    problems: list[str]
    replayed: Annotated[bool | None, Meta(description="Whether a replay opened exactly the stored alerts.")] = None


@operation("POST /monitors/{name}/backtest", role="operator")
async def backtest_monitor(at: Reader, args: BacktestMonitor, declared: Declarations) -> Backtested:
    """Say what triggers of the application would have opened in a stored time span; nothing is opened."""
    monitor: Monitor | None = declared.monitors.get(args.name)
    if monitor is None:
        raise NotFoundError(f"this application declares no monitor {args.name!r}")
    until = time.time() if args.until is None else zoned(args.until).timestamp()
    since = until - parse_duration(args.last, what="last") if args.since is None else zoned(args.since).timestamp()
    if not 0 < until - since <= LONGEST_SPAN:
        raise ConfigError("the span of a backtest ends after it begins, and has no more than 92 days")
    triggers = _chosen(monitor, args.triggers)
    async with declared.lifespan.opened() if monitor.fold.is_surrounded else nullcontext():
        report, replayed = await asyncio.to_thread(_alone, at.database, monitor, since, until, triggers, args)
    async with at.transaction() as tx:
        after = {"since": since, "until": until, "triggers": args.triggers, "alerts": len(report.alerts)}
        await tx.audit("monitor.backtest", args.name, after=after)
    return _backtested(report, replayed, args.most)


def _chosen(monitor: Monitor, names: list[str] | None) -> tuple[Trigger, ...]:
    known = {trigger.name: trigger for trigger in monitor.triggers}
    for name in names or ():
        if name not in known:
            raise ConfigError(f"monitor {monitor.name} has no trigger {name!r}; it has {', '.join(known)}")
    return monitor.triggers if names is None else tuple(known[name] for name in names)


def _alone(
    database: Database, monitor: Monitor, since: float, until: float, triggers: Sequence[Trigger], args: BacktestMonitor
) -> tuple[BacktestReport, bool | None]:
    """Run a backtest in a thread with an event loop and a connection of its own, so that others are not held up."""

    async def run() -> tuple[BacktestReport, bool | None]:
        async with asyncio.timeout(args.timeout), Database(database.settings, label="tidemill backtest") as own:
            if not args.replay:
                return await backtest(own, monitor, since, until, triggers=triggers), None
            report = await replay(own, monitor, -1e12, until)
            stored = await list_alerts(own, monitor.name, limit=1_000_000)
            return report, identity(report) == as_identity([dict(row) for row in stored])

    if not _one.acquire(blocking=False):
        raise ConflictError("another backtest is running here: try again when it has ended")
    try:
        return asyncio.run(run())
    except TimeoutError as error:
        took = f"this takes longer than {args.timeout:g} s"
        raise TimeoutError(f"{took}: choose a shorter span, or a longer timeout") from error
    finally:
        _one.release()


def _backtested(report: BacktestReport, replayed: bool | None, most: int) -> Backtested:
    alerts = [
        WouldOpen(
            alert.entity,
            alert.trigger,
            alert.kind,
            alert.severity,
            _moment(alert.started_at),
            _moment(alert.opened_at),
            None if alert.resolved_at is None else _moment(alert.resolved_at),
            alert.key,
        )
        for alert in report.alerts[:most]
    ]
    problems = [f"{each.place} for {each.entity}: {each.error}" for each in report.problems[:MOST_PROBLEMS]]
    return Backtested(
        report.monitor,
        _moment(max(report.since, 0.0)),
        _moment(report.until),
        report.entities,
        report.events,
        report.counts(),
        alerts,
        problems,
        replayed,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
