"""Alerts: listed, told with the story of each, acknowledged, noted, silenced."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.bulk import MOST_MATCHES, Preview, preview_of
from tidemill.ops.cursor import following, read_cursor
from tidemill.ops.json_rows import readable
from tidemill.server.resources.paging import Cursor, Word
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.monitors import alerts as store

MOST_IDS = 1000


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
    realert: float | None = None


class Alerts(msgspec.Struct, frozen=True):
    """Alerts, newest first; `next` is the cursor of the page after, or null on the last one."""

    items: list[Alert]
    next: str | None = None


class Story(msgspec.Struct, frozen=True):
    """An alert, why it opened, and everything that happened to it."""

    alert: Alert
    explain: Any
    history: list[dict[str, Any]]


class Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which alerts: by their ids, or everything that matches a filter; and a note to keep with them."""

    ids: list[int] | None = None
    filter: store.Unseen | None = None
    note: str | None = None


class Acked(msgspec.Struct, frozen=True):
    """How many of them nobody had acknowledged before, and the first of those."""

    count: int
    ids: list[int]


class Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody says about an alert, and whose it is."""

    note: str | None = None
    owner: str | None = None


class NewSilence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tell nobody of some alerts for a time; matchers are by trigger, entity and severity, with `*` and `?`."""

    matchers: dict[str, str]
    lasts: str | float = "1h"
    comment: str = ""


class Silenced(msgspec.Struct, frozen=True):
    id: int


class Silence(msgspec.Struct, frozen=True):
    """Alerts of which nobody is told until a moment."""

    id: int
    monitor: str
    matchers: dict[str, str]
    starts_at: datetime
    ends_at: datetime


class Silences(msgspec.Struct, frozen=True):
    """Silences that have not ended."""

    items: list[Silence]


@get("/alerts", opt={"scope": "read"}, summary="List alerts")
async def get_alerts(
    server_state: TheServerState,
    monitor: Word = None,
    entity: Word = None,
    trigger: Word = None,
    current: FromQuery[bool] = False,
    limit: Annotated[int, QueryParameter(ge=1, le=500)] = 100,
    cursor: Cursor = None,
) -> Alerts:
    """Alerts, the newest first; with `current`, those that are open or were resolved a moment ago."""
    rows = await store.list_alerts(
        server_state.database,
        monitor,
        entity=entity,
        trigger=trigger,
        current=current,
        before=read_cursor(cursor),
        limit=limit,
    )
    return Alerts([_alert(row) for row in rows], following([row["id"] for row in rows], limit))


@get("/alerts/{alert_id:int}", opt={"scope": "read"}, summary="An alert's story")
async def get_alert(server_state: TheServerState, alert_id: FromPath[int]) -> Story:
    """Why it opened, and who did what since."""
    row = await store.show_alert(server_state.database, _number(alert_id))
    history = [dict(each) for each in await store.show_history(server_state.database, alert_id)]
    return Story(_alert(row), readable(row, ("explain",))["explain"], history)


@post("/alerts/ack/preview", opt={"scope": "read"}, status_code=200, summary="What an acknowledgement would reach")
async def preview_ack(server_state: TheServerState, data: JSONBody[store.Unseen]) -> Preview:
    """How many alerts match that nobody has acknowledged: open ones, and those about a moment."""
    ids = await store.match_unseen(server_state.database, data, limit=MOST_MATCHES + 1)
    return preview_of(ids)


@post("/alerts/ack", opt={"scope": "operate"}, status_code=200, summary="Acknowledge alerts")
async def ack(server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[Ack]) -> Acked:
    """Somebody has seen them. A lasting one comes back if nothing changes."""
    if (data.ids is None) == (data.filter is None):
        raise ConfigError("say which alerts: either `ids`, or a `filter`")
    by, now = caller_of(request).name, time.time()
    if data.filter is not None:
        done = await store.ack_unseen(server_state.database, data.filter, by=by, at=now, note=data.note)
    else:
        done = sorted(
            await store.ack_alerts(server_state.database, _numbers(data.ids or []), by=by, at=now, note=data.note)
        )
    return Acked(len(done), done[:MOST_IDS])


@post("/alerts/{alert_id:int}/note", opt={"scope": "operate"}, status_code=200, summary="Note something on an alert")
async def note(
    server_state: TheServerState, request: Request[Any, Any, Any], alert_id: FromPath[int], data: JSONBody[Noted]
) -> Noted:
    """Put a note on an alert, or say whose it is."""
    by = caller_of(request).name
    await store.note_alert(server_state.database, _number(alert_id), by=by, note=data.note, owner=data.owner)
    return data


@post("/monitors/{name:str}/silences", opt={"scope": "operate"}, status_code=201, summary="Silence alerts")
async def silence(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[NewSilence]
) -> Silenced:
    """Tell nobody of what these matchers fit, for a time. Alerts still open, and are listed."""
    now, lasts = time.time(), parse_duration(data.lasts, what="lasts")
    number = await store.add_silence(
        server_state.database,
        name,
        data.matchers,
        starts_at=now,
        ends_at=now + lasts,
        by=caller_of(request).name,
        comment=data.comment,
    )
    return Silenced(number)


@get("/silences", opt={"scope": "read"}, summary="List silences")
async def get_silences(server_state: TheServerState, monitor: Word = None) -> Silences:
    """What nobody is told of at present, or will not be."""
    found = await store.read_silences(server_state.database, monitor, time.time())
    return Silences(
        [
            Silence(each.id, each.monitor, each.matchers, _moment(each.starts_at), _moment(each.ends_at))
            for each in found
        ]
    )


@delete("/silences/{silence_id:int}", opt={"scope": "operate"}, status_code=204, summary="End a silence")
async def end_silence(server_state: TheServerState, request: Request[Any, Any, Any], silence_id: FromPath[int]) -> None:
    """Tell people again from now on."""
    if not 0 < silence_id < 2**63:
        raise NotFoundError(f"there is no silence {silence_id}")
    await store.end_silence(server_state.database, silence_id, by=caller_of(request).name)


routes = [get_alerts, get_alert, preview_ack, ack, note, silence, get_silences, end_silence]


def _alert(row: Any) -> Alert:
    return Alert(**{name: row[name] for name in Alert.__struct_fields__})


def _number(alert_id: int) -> int:
    if not 0 < alert_id < 2**63:
        raise NotFoundError(f"there is no alert {alert_id}")
    return alert_id


def _numbers(ids: list[int]) -> list[int]:
    if not 0 < len(ids) <= MOST_IDS or any(not 0 < each < 2**63 for each in ids):
        raise ConfigError(f"say which alerts: 1 to {MOST_IDS:,} ids")
    return ids


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC)
