"""Monitors: how they stand, pause and resume, triggers switched, and backtests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody

from tidemill.core.duration import parse_duration
from tidemill.core.errors import NotFoundError
from tidemill.ops.json_rows import readable, zoned
from tidemill.server.resources.backtests import try_triggers
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.monitors.monitors import list_monitors, list_problems
from tidemill.store.monitors.roster import set_paused, switch_trigger

MOST_ALERTS = 2_000


class Monitors(msgspec.Struct, frozen=True):
    """Monitors; `status` is what the last tick told, `problems` what went wrong lately, `triggers` what is declared."""

    items: list[dict[str, Any]]


class MonitorPaused(msgspec.Struct, frozen=True):
    name: str
    paused: bool


class TriggerSwitched(msgspec.Struct, frozen=True):
    monitor: str
    trigger: str
    on: bool


class Span(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A span to try triggers on: the last hours or days, or from one moment to another; all triggers, or some."""

    last: str | float = "1d"
    since: datetime | None = None
    until: datetime | None = None
    triggers: list[str] | None = None


class WouldOpen(msgspec.Struct, frozen=True):
    """An alert that would have been opened."""

    entity: str
    trigger: str
    kind: str
    severity: str
    started_at: datetime
    opened_at: datetime
    resolved_at: datetime | None


class Backtested(msgspec.Struct, frozen=True):
    """What triggers would have done: `counts` per trigger, the first of the alerts, and what went wrong."""

    since: datetime
    until: datetime
    entities: int
    events: int
    counts: dict[str, int]
    alerts: list[WouldOpen]
    problems: list[str]


@get("/monitors", opt={"scope": "read"}, summary="List monitors")
async def get_monitors(server_state: TheServerState) -> Monitors:
    """How each monitor stands: health, cursor, entities, open alerts, what went wrong."""
    found: list[dict[str, Any]] = []
    for row in await list_monitors(server_state.database):
        problems = [dict(each) for each in await list_problems(server_state.database, row["name"])]
        declared = server_state.app.monitors.get(row["name"])
        triggers = [] if declared is None else [trigger.name for trigger in declared.triggers]
        found.append({**readable(row, ("status",)), "problems": problems, "triggers": triggers})
    return Monitors(found)


@post("/monitors/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a monitor")
async def pause(server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str]) -> MonitorPaused:
    """Let it follow nothing for a while; what happens meanwhile is read later."""
    await set_paused(server_state.database, name, True, by=caller_of(request).name)
    return MonitorPaused(name, True)


@post("/monitors/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a monitor")
async def resume(server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str]) -> MonitorPaused:
    """Let it follow its source again, from where it was."""
    await set_paused(server_state.database, name, False, by=caller_of(request).name)
    return MonitorPaused(name, False)


@post(
    "/monitors/{name:str}/triggers/{trigger:str}/{wanted:str}",
    opt={"scope": "operate"},
    status_code=200,
    summary="Switch a trigger on or off",
)
async def switch(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    name: FromPath[str],
    trigger: FromPath[str],
    wanted: FromPath[str],
) -> TriggerSwitched:
    """Off: its open alerts are resolved, and it opens none. On: everybody is looked at anew."""
    if wanted not in ("on", "off"):
        raise NotFoundError("a trigger is switched `on` or `off`")
    declared = server_state.app.monitors.get(name)
    if declared is not None and trigger not in {each.name for each in declared.triggers}:
        raise NotFoundError(f"monitor {name} has no trigger {trigger!r}")
    await switch_trigger(server_state.database, name, trigger, wanted == "on", by=caller_of(request).name)
    return TriggerSwitched(name, trigger, wanted == "on")


@post("/monitors/{name:str}/backtest", opt={"scope": "operate"}, status_code=200, summary="Try triggers on the past")
async def backtest(server_state: TheServerState, name: FromPath[str], data: JSONBody[Span]) -> Backtested:
    """What the triggers of the application would have opened in a stored span; nothing is opened."""
    watch = server_state.app.monitors.get(name)
    if watch is None:
        raise NotFoundError(f"this server's application declares no monitor {name!r}")
    until = time.time() if data.until is None else zoned(data.until).timestamp()
    since = until - parse_duration(data.last, what="last") if data.since is None else zoned(data.since).timestamp()
    report = await try_triggers(server_state, watch, since, until, data.triggers)
    alerts = [
        WouldOpen(
            alert.entity,
            alert.trigger,
            alert.kind,
            alert.severity,
            _moment(alert.started_at),
            _moment(alert.opened_at),
            None if alert.resolved_at is None else _moment(alert.resolved_at),
        )
        for alert in report.alerts[:MOST_ALERTS]
    ]
    problems = [f"{each.place} for {each.entity}: {each.error}" for each in report.problems[:20]]
    return Backtested(_moment(since), _moment(until), report.entities, report.events, report.counts(), alerts, problems)


routes = [get_monitors, pause, resume, switch, backtest]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
