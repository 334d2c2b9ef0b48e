"""Entities of a monitor: list, add, remove and label them, read their past again, rebuild their states."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.duration import parse_duration
from tidemill.core.encoding.json_rows import readable
from tidemill.core.errors import ConfigError
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.ops.monitors.monitors import MonitorName
from tidemill.ops.operator.cursor import read_row_cursor, write_row_cursor
from tidemill.ops.operator.operation import Arguments, Limit, NameCursor, PageOf, doc, operation
from tidemill.store.monitors import roster as store
from tidemill.store.monitors.event_counts import count_events
from tidemill.store.transaction import Reader, Transaction

MOST_ENTITIES = 10_000
COUNT_PARTS = 30

Label = str | bool | int | float | None
EntityNames = Annotated[list[str] | None, doc("The entities; null means all of them.")]


class ListEntities(Arguments, frozen=True, kw_only=True):
    """Which page of a monitor's entities, and over which time events are counted."""

    name: MonitorName
    limit: Annotated[int, doc("How many to show on a page.", ge=1, le=2000)] = 500
    within: Annotated[float, doc("How far back events are counted, in seconds.", ge=60, le=604_800)] = 3600.0
    cursor: NameCursor = None


class ListRoster(Arguments, frozen=True, kw_only=True):
    """Which entities of a monitor, and which page of them."""

    name: MonitorName
    inactive: Annotated[bool, doc("Also entities that are no longer followed.")] = False
    filling: Annotated[bool, doc("Only entities whose past is being read.")] = False
    limit: Limit = 50
    cursor: NameCursor = None


class ChangeRoster(Arguments, frozen=True, kw_only=True):
    """Entities to follow from now on, and entities to follow no longer."""

    name: MonitorName
    add: Annotated[list[str], doc("Entities to follow.")] = msgspec.field(default_factory=list[str])
    remove: Annotated[list[str], doc("Entities to follow no longer.")] = msgspec.field(default_factory=list[str])
    past: Annotated[str | float | None, doc("How far back to read the past of new ones; null: not at all.")] = "24h"


class LabelEntity(Arguments, frozen=True, kw_only=True):
    """Labels to put on an entity; its other labels stay."""

    name: MonitorName
    entity: Annotated[str, doc("The entity.")]
    labels: Annotated[dict[str, Label], doc("The labels; null removes one.")]


class BackfillMonitor(Arguments, frozen=True, kw_only=True):
    """Whose past to read again, and how far back."""

    name: MonitorName
    entities: EntityNames = None
    past: Annotated[str | float, doc("How far back to read.")] = "24h"


class ResetMonitor(Arguments, frozen=True, kw_only=True):
    """Whose states to rebuild."""

    name: MonitorName
    entities: EntityNames = None


class EntityLine(msgspec.Struct, frozen=True):
    """An entity with its folded state; `spark` counts its events in equal parts of the time that was asked for."""

    entity: str
    last_at: float | None
    count: int
    folded: int
    state: Any
    labels: dict[str, Any] | None
    spark: list[int]


class EntityPage(msgspec.Struct, frozen=True):
    """Entities, by name; `next` is the cursor of the next page, or null on the last one."""

    items: list[EntityLine]
    within: Annotated[float, doc("The time that `spark` covers, in seconds.")]
    next: Annotated[str | None, doc("The cursor of the next page; null on the last one.")] = None


class RosterLine(msgspec.Struct, frozen=True):
    """An entity that a monitor follows or followed: how far it is with its events, and with the reading of its past."""

    entity: str
    active: Annotated[bool, doc("Whether it is followed now.")]
    added_at: datetime
    last_at: float | None
    count: int
    folded: int
    behind: Annotated[bool, doc("Whether some of its events are not evaluated yet.")]
    due_at: float | None
    labels: dict[str, Any] | None
    problem: str | None
    backfill: Annotated[dict[str, Any] | None, doc("How far the reading of its past is.")]


class RosterChanged(msgspec.Struct, frozen=True):
    """Entities that were not followed before, and entities that were."""

    added: list[str]
    removed: list[str]


class EntityLabelled(msgspec.Struct, frozen=True):
    """The labels that were put on an entity."""

    entity: str
    labels: dict[str, Label]


class EntitiesReached(msgspec.Struct, frozen=True):
    """How many entities are concerned."""

    count: int


@operation("GET /monitors/{name}/entities", role="viewer")
async def list_entities(at: Reader, args: ListEntities) -> EntityPage:
    """List the entities that a monitor follows, with the state, the labels and the activity of each."""
    rows = await store.describe_states(at.database, args.name, after=read_row_cursor(args.cursor), limit=args.limit)
    names = [row["entity"] for row in rows]
    sparks: dict[str, list[int]] = {}
    if names:
        sparks = await count_events(at.database, args.name, names, within=args.within, parts=COUNT_PARTS)
    quiet = [0] * COUNT_PARTS
    items = [EntityLine(**readable(row, ("state", "labels")), spark=sparks.get(row["entity"], quiet)) for row in rows]
    return EntityPage(items, args.within, _next(names, args.limit))


@operation("GET /monitors/{name}/roster", role="viewer")
async def list_roster(at: Reader, args: ListRoster) -> PageOf[RosterLine]:
    """List how far a monitor is with each entity, without their states."""
    rows = await store.list_roster(
        at.database,
        args.name,
        inactive=args.inactive,
        filling=args.filling,
        after=read_row_cursor(args.cursor),
        limit=args.limit,
    )
    items = [RosterLine(**readable(row, ("labels", "backfill"))) for row in rows]
    return PageOf(items, _next([each.entity for each in items], args.limit))


@operation("POST /monitors/{name}/roster", role="operator")
async def change_roster(tx: Transaction, args: ChangeRoster) -> RosterChanged:
    """Follow entities, whose past is read once; or follow them no longer, which resolves their alerts."""
    if not args.add and not args.remove:
        raise ConfigError("name the entities to add or to remove")
    _check([*args.add, *args.remove])
    plan = None if args.past is None else _plan(args.past)
    added, removed = list[str](), list[str]()
    if args.add:
        names = list(dict.fromkeys(args.add))
        added = await store.add_to_roster(tx, args.name, names, [shard_of(each) for each in names], backfill=plan)
    if args.remove:
        removed = await store.remove_from_roster(tx, args.name, list(dict.fromkeys(args.remove)))
    return RosterChanged(added, removed)


@operation("POST /monitors/{name}/labels", role="operator")
async def label_entity(tx: Transaction, args: LabelEntity) -> EntityLabelled:
    """Put labels on an entity: `present` false keeps triggers about absence quiet."""
    _check([args.entity])
    if not args.labels:
        raise ConfigError("give at least one label")
    await store.label_entity(tx, args.name, args.entity, dict(args.labels))
    return EntityLabelled(args.entity, args.labels)


@operation("POST /monitors/{name}/backfill", role="operator")
async def backfill_monitor(tx: Transaction, args: BackfillMonitor) -> EntitiesReached:
    """Read the past of entities again; events that are in the log already are not stored twice."""
    _check(args.entities or [])
    return EntitiesReached(len(await store.start_backfill(tx, args.name, args.entities, _plan(args.past))))


@operation("POST /monitors/{name}/reset", role="operator")
async def reset_monitor(tx: Transaction, args: ResetMonitor) -> EntitiesReached:
    """Rebuild states from the log. Alerts stay, and no notice is sent twice."""
    _check(args.entities or [])
    return EntitiesReached(len(await store.reset_monitor(tx, args.name, args.entities)))


def _next(names: list[str], limit: int) -> str | None:
    return write_row_cursor(names[-1]) if len(names) == limit else None


def _check(entities: list[str]) -> None:
    if len(entities) > MOST_ENTITIES:
        raise ConfigError(f"no more than {MOST_ENTITIES:,} entities at once")
    if any(not each or len(each) > 400 or not each.isprintable() for each in entities):
        raise ConfigError("an entity has 1 to 400 printable characters")


def _plan(past: str | float) -> EntityBackfill:
    return EntityBackfill(time.time() - parse_duration(past, what="past"))
