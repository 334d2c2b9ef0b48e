"""Monitors: list them, pause and resume them, switch their triggers, and read their newest events."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tidemill.core.codec import decode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import NotFoundError
from tidemill.ops.operator.operation import Arguments, ListOf, PauseState, doc, operation
from tidemill.store.jobs.pages import Word
from tidemill.store.monitors import monitors as store, roster
from tidemill.store.monitors.events import read_tail
from tidemill.store.monitors.problems import list_problems
from tidemill.store.transaction import Reader, Transaction

MOST_EVENTS = 1000

MonitorName = Annotated[str, doc("The monitor.")]


class ListMonitors(Arguments, frozen=True, kw_only=True):
    """Which monitors."""

    name: Annotated[Word | None, doc("Only this monitor.")] = None


class MonitorRef(Arguments, frozen=True, kw_only=True):
    """Which monitor."""

    name: MonitorName


class SwitchTrigger(Arguments, frozen=True, kw_only=True):
    """Which trigger, and whether it is on."""

    name: MonitorName
    trigger: Annotated[str, doc("The trigger.")]
    wanted: Annotated[Literal["on", "off"], doc("on or off.")]


class ListMonitorEvents(Arguments, frozen=True, kw_only=True):
    """Which events of a monitor's log."""

    name: MonitorName
    entity: Annotated[Word | None, doc("Only of this entity.")] = None
    tick: Annotated[int, doc("Only those that arrived with this tick or later.", ge=0)] = 0
    limit: Annotated[int, doc("How many to show.", ge=1, le=MOST_EVENTS)] = 20


Health = Literal["not_started", "paused", "not_running", "healthy", "unhealthy"]


class MonitorProblem(msgspec.Struct, frozen=True):
    """An error of the application's code, and how often it occurred."""

    place: Annotated[str, doc("entity, fold, trigger NAME, source, backfill, channel NAME or tick.")]
    entity: Annotated[str, doc("The entity that it concerns; empty if it concerns none.")]
    error: str
    count: int
    first_at: datetime
    last_at: datetime


class MonitorLine(msgspec.Struct, frozen=True):
    """A monitor: how far it is, what it follows, and what went wrong."""

    name: str
    version: str
    tick: int
    tick_at: float
    cursor_at: float | None
    lateness: Annotated[float, doc("How late events usually are, in seconds.")]
    events: int
    duplicates: int
    ignored: int
    late: int
    paused: bool
    off: Annotated[list[str], Meta(description="Triggers that are switched off.")]
    status: Annotated[dict[str, Any] | None, Meta(description="What the last tick reported; null before the first.")]
    seen_at: datetime | None
    entities: int
    filling: Annotated[int, Meta(description="Entities whose past is being read.")]
    open: Annotated[int, Meta(description="Open alerts.")]
    members: Annotated[int, Meta(description="Processes that follow it.")]
    problems: list[MonitorProblem]
    health: Annotated[Health, doc("Whether it is followed, and its source and its ticks work.")]
    triggers: Annotated[list[str], Meta(description="The triggers of the processes that follow it.")]


class TriggerSwitched(msgspec.Struct, frozen=True):
    """Whether a trigger is on."""

    monitor: str
    trigger: str
    on: Annotated[bool, doc("Whether it is on now.")]


class MonitorEvent(msgspec.Struct, frozen=True):
    """An event of the log; `at` is when it happened, in seconds since 1970."""

    id: str
    at: Annotated[float, doc("When it happened, in seconds since 1970.")]
    entity: str
    tick: Annotated[int, doc("The tick that it arrived with.")]
    data: Any


@operation("GET /monitors", role="viewer")
async def list_monitors(at: Reader, args: ListMonitors) -> ListOf[MonitorLine]:
    """List monitors: health, cursor, entities, open alerts, and what went wrong lately."""
    found: list[MonitorLine] = []
    for row in await store.list_monitors(at.database, args.name):
        problems = [MonitorProblem(*each) for each in await list_problems(at.database, row["name"])]
        fields = readable(row, ("status",))
        health = _health(fields)
        found.append(MonitorLine(**fields, problems=problems, health=health, triggers=_triggers(fields["status"])))
    return ListOf(found)


@operation("POST /monitors/{name}/pause", role="operator")
async def pause_monitor(tx: Transaction, args: MonitorRef) -> PauseState:
    """Stop polling and evaluating; events that arrive meanwhile are read later."""
    await roster.set_paused(tx, args.name, True)
    return PauseState(args.name, True)


@operation("POST /monitors/{name}/resume", role="operator")
async def resume_monitor(tx: Transaction, args: MonitorRef) -> PauseState:
    """Let a monitor follow its source again, from where it was."""
    await roster.set_paused(tx, args.name, False)
    return PauseState(args.name, False)


@operation("POST /monitors/{name}/triggers/{trigger}/{wanted}", role="operator")
async def switch_trigger(tx: Transaction, args: SwitchTrigger) -> TriggerSwitched:
    """Switch a trigger off, which resolves its open alerts, or on, which evaluates all entities again."""
    await require_trigger(tx, args.name, args.trigger, str.__eq__)
    await roster.switch_trigger(tx, args.name, args.trigger, args.wanted == "on")
    return TriggerSwitched(args.name, args.trigger, args.wanted == "on")


async def require_trigger(tx: Transaction, monitor: str, wanted: str, fits: Callable[[str, str], bool]) -> None:
    """Refuse a trigger that a monitor does not have. The triggers of one that has never run are not known."""
    row = await store.read_monitor(tx, monitor)
    known = _triggers(None if row["status"] is None else decode(row["status"]))
    if known and not any(fits(each, wanted) for each in (*known, *row["off"])):
        guess = did_you_mean(wanted, known)
        raise NotFoundError(f"monitor {monitor} has no trigger {wanted!r}; it has {', '.join(known)}{guess}")


@operation("GET /monitors/{name}/events", role="viewer")
async def list_monitor_events(at: Reader, args: ListMonitorEvents) -> ListOf[MonitorEvent]:
    """List the newest events of a monitor's log, as they arrived."""
    await store.read_monitor(at.database, args.name)
    rows = await read_tail(at.database, args.name, entity=args.entity, tick=args.tick, limit=args.limit)
    return ListOf(
        [MonitorEvent(row["source_id"], row["at"], row["entity"], row["tick"], decode(row["data"])) for row in rows]
    )


def _health(row: dict[str, Any]) -> Health:
    if row["status"] is None:
        return "not_started"
    if row["paused"]:
        return "paused"
    if not row["members"]:
        return "not_running"
    return "healthy" if row["status"].get("health") == "healthy" else "unhealthy"


def _triggers(status: dict[str, Any] | None) -> list[str]:
    return (status or {}).get("triggers", [])
