"""Monitors: how they stand, whom they follow, and their alerts with the story of each; acknowledge, silence, pause."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import Parameter

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.server.desk import Desk, caller_of
from tidemill.server.reading import readable
from tidemill.server.routes.jobs import Word
from tidemill.store import alerts as alert_store
from tidemill.store.monitors import list_monitors, list_problems
from tidemill.store.roster import set_paused, show_states

MOST_IDS = 1000


class Monitors(msgspec.Struct, frozen=True):
    """Monitors; `status` is what the last tick told, `problems` what went wrong lately."""

    items: list[dict[str, Any]]


class Entities(msgspec.Struct, frozen=True):
    """Whom a monitor follows, with the state of each as it was folded last."""

    items: list[dict[str, Any]]


class Alert(msgspec.Struct, frozen=True):
    """Something that needs somebody."""

    id: int
    monitor: str
    trigger: str
    entity: str
    kind: str
    severity: str
    started_at: datetime | None
    opened_at: datetime
    resolved_at: datetime | None
    resolution: str | None
    acked_at: datetime | None
    acked_by: str | None
    owner: str | None
    note: str | None
    silence: int | None
    realert: bool | int | None = None


class Alerts(msgspec.Struct, frozen=True):
    items: list[Alert]


class Story(msgspec.Struct, frozen=True):
    """An alert, why it opened, and everything that happened to it."""

    alert: Alert
    explain: Any
    history: list[dict[str, Any]]


class Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ids: list[int]
    note: str | None = None


class Acked(msgspec.Struct, frozen=True):
    """Those that nobody had acknowledged before."""

    ids: list[int]


class NewSilence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tell nobody of some alerts for a time; matchers are by trigger, entity and severity, with `*` and `?`."""

    matchers: dict[str, str]
    lasts: str | float = "1h"
    comment: str = ""


class Silenced(msgspec.Struct, frozen=True):
    id: int


class MonitorPaused(msgspec.Struct, frozen=True):
    name: str
    paused: bool


@get("/monitors", opt={"scope": "read"}, summary="List monitors")
async def get_monitors(desk: Desk) -> Monitors:
    """How each monitor stands: health, cursor, entities, open alerts, what went wrong."""
    found: list[dict[str, Any]] = []
    for row in await list_monitors(desk.database):
        problems = [dict(each) for each in await list_problems(desk.database, row["name"], limit=5)]
        found.append({**readable(row, ("status",)), "problems": problems})
    return Monitors(found)


@get("/monitors/{name:str}/entities", opt={"scope": "read"}, summary="Whom a monitor follows")
async def get_entities(desk: Desk, name: str, limit: Annotated[int, Parameter(ge=1, le=2000)] = 500) -> Entities:
    """Every entity with its folded state and its labels."""
    rows = await show_states(desk.database, name, limit=limit)
    return Entities([readable(row, ("state", "labels")) for row in rows])


@get("/alerts", opt={"scope": "read"}, summary="List alerts")
async def get_alerts(
    desk: Desk,
    monitor: Word = None,
    entity: Word = None,
    trigger: Word = None,
    current: bool = False,
    limit: Annotated[int, Parameter(ge=1, le=500)] = 100,
) -> Alerts:
    """Alerts, the newest first; with `current`, those that are open or were resolved a moment ago."""
    rows = await alert_store.list_alerts(
        desk.database, monitor, entity=entity, trigger=trigger, current=current, limit=limit
    )
    return Alerts([_alert(row) for row in rows])


@get("/alerts/{alert_id:int}", opt={"scope": "read"}, summary="An alert's story")
async def get_alert(desk: Desk, alert_id: int) -> Story:
    """Why it opened, and who did what since."""
    row = await alert_store.show_alert(desk.database, alert_id if 0 < alert_id < 2**63 else 0)
    history = [readable(each, ("detail",)) for each in await alert_store.show_history(desk.database, alert_id)]
    return Story(_alert(row), readable(row, ("explain",))["explain"], history)


@post("/alerts/ack", opt={"scope": "operate"}, status_code=200, summary="Acknowledge alerts")
async def ack(desk: Desk, request: Request[Any, Any, Any], data: Ack) -> Acked:
    """Somebody has seen them. A lasting one comes back if nothing changes."""
    if not 0 < len(data.ids) <= MOST_IDS or any(not 0 < each < 2**63 for each in data.ids):
        raise ConfigError(f"say which alerts: 1 to {MOST_IDS:,} ids")
    by = caller_of(request).name
    done = await alert_store.ack_alerts(desk.database, data.ids, by=by, at=time.time(), note=data.note)
    return Acked(sorted(done))


@post("/monitors/{name:str}/silences", opt={"scope": "operate"}, status_code=201, summary="Silence alerts")
async def silence(desk: Desk, request: Request[Any, Any, Any], name: str, data: NewSilence) -> Silenced:
    """Tell nobody of what these matchers fit, for a time. Alerts still open, and are listed."""
    now, lasts = time.time(), parse_duration(data.lasts, what="lasts")
    number = await alert_store.add_silence(
        desk.database,
        name,
        data.matchers,
        starts_at=now,
        ends_at=now + lasts,
        by=caller_of(request).name,
        comment=data.comment,
    )
    return Silenced(number)


@post("/monitors/{name:str}/pause", opt={"scope": "operate"}, status_code=200, summary="Pause a monitor")
async def pause(desk: Desk, request: Request[Any, Any, Any], name: str) -> MonitorPaused:
    """Let it follow nothing for a while; what happens meanwhile is read later."""
    await set_paused(desk.database, name, True, by=caller_of(request).name)
    return MonitorPaused(name, True)


@post("/monitors/{name:str}/resume", opt={"scope": "operate"}, status_code=200, summary="Resume a monitor")
async def resume(desk: Desk, request: Request[Any, Any, Any], name: str) -> MonitorPaused:
    """Let it follow its source again, from where it was."""
    await set_paused(desk.database, name, False, by=caller_of(request).name)
    return MonitorPaused(name, False)


routes = [get_monitors, get_entities, get_alerts, get_alert, ack, silence, pause, resume]


def _alert(row: Any) -> Alert:
    return Alert(**{name: row[name] for name in Alert.__struct_fields__})
