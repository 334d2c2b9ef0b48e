"""Monitors: how they stand, whom they follow, pause and resume, triggers switched, and backtests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.monitors.drain import Backfill
from tidemill.monitors.recompute import shard_of
from tidemill.server.backtesting import try_triggers
from tidemill.server.cursor import read_row_cursor, write_row_cursor
from tidemill.server.desk import TheDesk, caller_of
from tidemill.server.paging import NameCursor
from tidemill.server.reading import readable
from tidemill.store.monitors import list_monitors, list_problems
from tidemill.store.roster import add_to_roster, remove_from_roster, set_paused, show_states, switch_trigger
from tidemill.store.sparks import count_events

MOST_ENTITIES = 10_000
MOST_ALERTS = 2_000
SPARK_PARTS = 30


class Monitors(msgspec.Struct, frozen=True):
    """Monitors; `status` is what the last tick told, `problems` what went wrong lately, `triggers` what is declared."""

    items: list[dict[str, Any]]


class Entities(msgspec.Struct, frozen=True):
    """Whom a monitor follows, with the state of each as it was folded last, and how many events came in each part of
    the last `within` seconds (`spark`). `next` is the cursor of the page after, or null on the last one."""

    items: list[dict[str, Any]]
    within: float
    next: str | None = None


class RosterChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to follow from now on, and whom no longer. The past of the new ones is read once, as far back as `past`."""

    add: list[str] = []
    remove: list[str] = []
    past: str | float | None = "24h"


class RosterChanged(msgspec.Struct, frozen=True):
    """Those of whom that was not so before."""

    added: list[str]
    removed: list[str]


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
async def get_monitors(desk: TheDesk) -> Monitors:
    """How each monitor stands: health, cursor, entities, open alerts, what went wrong."""
    found: list[dict[str, Any]] = []
    for row in await list_monitors(desk.database):
        problems = [dict(each) for each in await list_problems(desk.database, row["name"], limit=5)]
        declared = desk.app.monitors.get(row["name"])
        triggers = [] if declared is None else [trigger.name for trigger in declared.triggers]
        found.append({**readable(row, ("status",)), "problems": problems, "triggers": triggers})
    return Monitors(found)


@get("/monitors/{name:str}/entities", opt={"scope": "read"}, summary="Whom a monitor follows")
async def get_entities(
    desk: TheDesk,
    name: FromPath[str],
    limit: Annotated[int, QueryParameter(ge=1, le=2000)] = 500,
    within: Annotated[
        float, QueryParameter(ge=60, le=604_800, description="How far back `spark` looks, in seconds.")
    ] = 3600,
    cursor: NameCursor = None,
) -> Entities:
    """Every entity with its folded state, its labels, and how busy it was."""
    rows = await show_states(desk.database, name, after=read_row_cursor(cursor), limit=limit)
    names = [row["entity"] for row in rows]
    sparks = await count_events(desk.database, name, names, within=within, parts=SPARK_PARTS) if names else {}
    quiet = [0] * SPARK_PARTS
    items = [{**readable(row, ("state", "labels")), "spark": sparks.get(row["entity"], quiet)} for row in rows]
    return Entities(items, within, write_row_cursor(names[-1]) if len(names) == limit else None)


@post("/monitors/{name:str}/roster", opt={"scope": "operate"}, status_code=200, summary="Follow or no longer follow")
async def change_roster(
    desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[RosterChange]
) -> RosterChanged:
    """Follow entities, whose past is read once; or follow them no longer, which resolves their alerts."""
    if not data.add and not data.remove:
        raise ConfigError("say whom to add or to remove")
    if len(data.add) + len(data.remove) > MOST_ENTITIES:
        raise ConfigError(f"no more than {MOST_ENTITIES:,} entities at once")
    if any(not each or len(each) > 400 or not each.isprintable() for each in (*data.add, *data.remove)):
        raise ConfigError("an entity has 1 to 400 printable characters")
    by, added, removed = caller_of(request).name, [], []
    plan = None if data.past is None else Backfill(time.time() - parse_duration(data.past, what="past"))
    if data.add:
        names = list(dict.fromkeys(data.add))
        shards = [shard_of(each) for each in names]
        added = await add_to_roster(desk.database, name, names, shards, backfill=plan, by=by)
    if data.remove:
        removed = await remove_from_roster(desk.database, name, list(dict.fromkeys(data.remove)), by=by)
    return RosterChanged(added, removed)


@post("/monitors/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a monitor")
async def pause(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> MonitorPaused:
    """Let it follow nothing for a while; what happens meanwhile is read later."""
    await set_paused(desk.database, name, True, by=caller_of(request).name)
    return MonitorPaused(name, True)


@post("/monitors/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a monitor")
async def resume(desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str]) -> MonitorPaused:
    """Let it follow its source again, from where it was."""
    await set_paused(desk.database, name, False, by=caller_of(request).name)
    return MonitorPaused(name, False)


@post(
    "/monitors/{name:str}/triggers/{trigger:str}/{wanted:str}",
    opt={"scope": "operate"},
    status_code=200,
    summary="Switch a trigger on or off",
)
async def switch(
    desk: TheDesk, request: Request[Any, Any, Any], name: FromPath[str], trigger: FromPath[str], wanted: FromPath[str]
) -> TriggerSwitched:
    """Off: its open alerts are resolved, and it opens none. On: everybody is looked at anew."""
    if wanted not in ("on", "off"):
        raise NotFoundError("a trigger is switched `on` or `off`")
    declared = desk.app.monitors.get(name)
    if declared is not None and trigger not in {each.name for each in declared.triggers}:
        raise NotFoundError(f"monitor {name} has no trigger {trigger!r}")
    await switch_trigger(desk.database, name, trigger, wanted == "on", by=caller_of(request).name)
    return TriggerSwitched(name, trigger, wanted == "on")


@post("/monitors/{name:str}/backtest", opt={"scope": "operate"}, status_code=200, summary="Try triggers on the past")
async def backtest(desk: TheDesk, name: FromPath[str], data: JSONBody[Span]) -> Backtested:
    """What the triggers of the application would have opened in a stored span; nothing is opened."""
    watch = desk.app.monitors.get(name)
    if watch is None:
        raise NotFoundError(f"this server's application declares no monitor {name!r}")
    until = time.time() if data.until is None else _seconds(data.until)
    since = until - parse_duration(data.last, what="last") if data.since is None else _seconds(data.since)
    report = await try_triggers(desk, watch, since, until, data.triggers)
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


routes = [get_monitors, get_entities, change_roster, pause, resume, switch, backtest]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime) -> float:
    if moment.tzinfo is None:
        raise ConfigError("a moment needs its time zone, as in 2026-03-02T08:00:00Z")
    return moment.timestamp()
