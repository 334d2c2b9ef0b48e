"""Alerts: list, explain, acknowledge and note them; silences that keep their notices from being sent."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec

from tidemill.core.duration import parse_duration
from tidemill.core.encoding.json_rows import value_of, zoned
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.monitors.reducer.entity_state import HISTORY
from tidemill.monitors.view.alert_reasons import why_opened
from tidemill.ops.monitors.monitors import MonitorName, require_trigger
from tidemill.ops.operator.bulk import MOST_MATCHES, Preview, preview_of
from tidemill.ops.operator.cursor import following, read_cursor
from tidemill.ops.operator.operation import Arguments, Cursor, ListOf, PageOf, doc, operation
from tidemill.store.jobs.pages import Word
from tidemill.store.monitors import alerts as store
from tidemill.store.transaction import Reader, Transaction

MOST_IDS = 1000
LAST_MOMENT = 253_402_300_799  # the end of the year 9999

AlertId = Annotated[int, doc("The alert's id.")]


class ListAlerts(Arguments, frozen=True, kw_only=True):
    """Which alerts to list, and which page of them."""

    monitor: Annotated[Word | None, doc("Only of this monitor.")] = None
    entity: Annotated[Word | None, doc("Only of this entity.")] = None
    trigger: Annotated[Word | None, doc("Only of this trigger.")] = None
    current: Annotated[bool, doc("Only open ones, and those that were resolved in the last two minutes.")] = False
    since: Annotated[datetime | None, doc("Only those that opened at this time or later.")] = None
    until: Annotated[datetime | None, doc("Only those that opened before this time.")] = None
    limit: Annotated[int, doc("How many to show on a page.", ge=1, le=500)] = 100
    cursor: Cursor = None


class GetAlert(Arguments, frozen=True, kw_only=True):
    """Which alert."""

    id: AlertId


class AckAlerts(Arguments, frozen=True, kw_only=True):
    """Which alerts to acknowledge: by their ids, or all that match a filter."""

    ids: Annotated[list[int] | None, doc("The alerts' ids.")] = None
    filter: Annotated[store.UnackedFilter | None, doc("Conditions that the alerts match.")] = None
    note: Annotated[str | None, doc("A note to store with them.")] = None


class NoteAlert(Arguments, frozen=True, kw_only=True):
    """A note on an alert, or its owner."""

    id: AlertId
    note: Annotated[str | None, doc("The note.")] = None
    owner: Annotated[str | None, doc("The person who takes care of it.")] = None


class SilenceAlerts(Arguments, frozen=True, kw_only=True):
    """Alerts of which no notices are sent for a time."""

    name: MonitorName
    matchers: Annotated[dict[str, str], doc("trigger, entity and severity, with * and ?; all of them must fit.")]
    lasts: Annotated[str | float, doc("For how long: 30m, 1h, 2d.")] = "1h"
    comment: Annotated[str, doc("Why.")] = ""


class ListSilences(Arguments, frozen=True, kw_only=True):
    """Which silences."""

    monitor: Annotated[Word | None, doc("Only of this monitor.")] = None


class SilenceRef(Arguments, frozen=True, kw_only=True):
    """Which silence."""

    id: Annotated[int, doc("The silence's id.")]


AlertState = Literal["open", "acknowledged", "resolved", "fired", "history"]


class Alert(msgspec.Struct, frozen=True):
    """An alert, and what people did with it."""

    id: int
    state: Annotated[
        AlertState,
        doc(
            "open or resolved, or fired if it is momentary; acknowledged; history: momentary, and from before "
            "its entity was followed, with nothing to acknowledge."
        ),
    ]
    monitor: str
    trigger: Annotated[str, doc("The trigger that opened it.")]
    entity: Annotated[str, doc("What it is about.")]
    kind: Annotated[str, doc("The kind of its trigger.")]
    severity: str
    started_at: datetime | None
    opened_at: datetime
    resolved_at: datetime | None
    resolution: Annotated[str | None, doc("Why it was resolved.")]
    acked_at: datetime | None
    acked_by: str | None
    owner: str | None
    note: str | None
    silence: int | None
    realert: float | None = None


class AlertStep(msgspec.Struct, frozen=True):
    """One thing that happened to an alert, and the person or process that did it."""

    at: datetime
    action: str
    who: Annotated[str, doc("The person or process that did it.")]
    detail: str | None


class AlertDetails(msgspec.Struct, frozen=True):
    """An alert, why it opened, and its history."""

    alert: Alert
    why: list[str]
    record: Any
    """What was stored when it opened: the rule, the events, the state."""
    history: list[AlertStep]


class AlertsAcked(msgspec.Struct, frozen=True):
    """How many alerts were not acknowledged before, and the first of those."""

    count: int
    ids: list[int]


class AlertNoted(msgspec.Struct, frozen=True):
    """The note and the owner that an alert was given."""

    note: str | None
    owner: str | None


class SilenceAdded(msgspec.Struct, frozen=True):
    """The new silence, and when it ends."""

    id: int
    ends_at: Annotated[datetime, doc("When it ends.")]


class SilenceLine(msgspec.Struct, frozen=True):
    """A silence: no notices are sent of the alerts that it fits until it ends."""

    id: int
    monitor: str
    matchers: Annotated[dict[str, str], doc("The fields of alerts that it fits; `*` and `?` match anything.")]
    starts_at: datetime
    ends_at: datetime
    by: Annotated[str, doc("The person who silenced them.")]
    comment: str


@operation("GET /alerts", role="viewer")
async def list_alerts(at: Reader, args: ListAlerts) -> PageOf[Alert]:
    """List alerts, newest first."""
    rows = await store.list_alerts(
        at.database,
        args.monitor,
        entity=args.entity,
        trigger=args.trigger,
        current=args.current,
        since=zoned(args.since),
        until=zoned(args.until),
        before=read_cursor(args.cursor),
        limit=args.limit,
    )
    return PageOf([_alert(row) for row in rows], following([row["id"] for row in rows], args.limit))


@operation("GET /alerts/{id}", role="viewer")
async def get_alert(at: Reader, args: GetAlert) -> AlertDetails:
    """Why an alert opened: the rule, the events, the state; and what happened to it since."""
    row = await store.show_alert(at.database, _known(args.id))
    history = [AlertStep(*each) for each in await store.show_history(at.database, args.id)]
    alert, record = _alert(row), value_of(row["explain"])
    return AlertDetails(alert, why_opened(alert, record or {}), record, history)


@operation("POST /alerts/ack/preview", role="viewer")
async def preview_ack_alerts(at: Reader, args: store.UnackedFilter) -> Preview:
    """Count the alerts that match and are not acknowledged: open ones, and momentary ones."""
    return preview_of(await store.match_unacked(at.database, args, limit=MOST_MATCHES + 1))


@operation("POST /alerts/ack", role="operator", preview=preview_ack_alerts)
async def ack_alerts(at: Reader, args: AckAlerts) -> AlertsAcked:
    """Acknowledge alerts. A sustained one is opened again if nothing changes."""
    if (args.ids is None) == (args.filter is None):
        raise ConfigError("say which alerts: either `ids`, or a `filter`")
    now = time.time()
    if args.filter is not None:
        done = await store.ack_unacked(at, args.filter, at=now, note=args.note)
    else:
        ids = args.ids or []
        if not 0 < len(ids) <= MOST_IDS:
            raise ConfigError(f"say which alerts: 1 to {MOST_IDS:,} ids")
        for each in ids:
            _known(each)
        async with at.transaction() as tx:
            done = await store.ack_alerts(tx, ids, at=now, note=args.note)
    return AlertsAcked(len(done), done[:MOST_IDS])


@operation("POST /alerts/{id}/note", role="operator")
async def note_alert(tx: Transaction, args: NoteAlert) -> AlertNoted:
    """Put a note on an alert, or name its owner."""
    await store.note_alert(tx, _known(args.id), note=args.note, owner=args.owner)
    return AlertNoted(args.note, args.owner)


@operation("POST /monitors/{name}/silences", role="operator", status=201)
async def silence_alerts(tx: Transaction, args: SilenceAlerts) -> SilenceAdded:
    """Send no notices of the alerts that these matchers fit, for a time. Alerts still open, and are listed."""
    now = time.time()
    ends = now + parse_duration(args.lasts, what="lasts")
    number = await store.add_silence(tx, args.name, args.matchers, starts_at=now, ends_at=ends, comment=args.comment)
    await require_trigger(tx, args.name, args.matchers.get("trigger", "*"), fnmatchcase)
    return SilenceAdded(number, _moment(ends))


@operation("GET /silences", role="viewer")
async def list_silences(at: Reader, args: ListSilences) -> ListOf[SilenceLine]:
    """List the silences that have not ended."""
    found = await store.read_silences(at.database, args.monitor, time.time())
    return ListOf(
        [
            SilenceLine(
                each.id,
                each.monitor,
                each.matchers,
                _moment(each.starts_at),
                _moment(each.ends_at),
                each.by,
                each.comment,
            )
            for each in found
        ]
    )


@operation("DELETE /silences/{id}", role="operator")
async def end_silence(tx: Transaction, args: SilenceRef) -> None:
    """Send notices again from now on."""
    if not 0 < args.id < 2**63:
        raise NotFoundError(f"there is no silence {args.id}: `tidemill monitor silence` lists them")
    await store.end_silence(tx, args.id)


def _alert(row: Any) -> Alert:
    fields = {name: row[name] for name in Alert.__struct_fields__ if name != "state"}
    return Alert(state=_state(row), **fields)


def _state(row: Any) -> AlertState:
    if row["resolution"] == HISTORY:
        return "history"
    is_over = row["resolved_at"] is not None and row["kind"] != "momentary"
    if row["acked_at"] is not None and not is_over:
        return "acknowledged"
    return "resolved" if is_over else "fired" if row["kind"] == "momentary" else "open"


def _known(alert: int) -> int:
    if not 0 < alert < 2**63:
        raise NotFoundError(f"there is no alert {alert}: `tidemill monitor alerts` lists them")
    return alert


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(seconds, LAST_MOMENT), UTC)
