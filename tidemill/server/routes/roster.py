"""Whom monitors follow: with their states, followed and no longer, labelled, their past read again, made anew."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.ops.cursor import read_row_cursor, write_row_cursor
from tidemill.ops.json_rows import readable
from tidemill.server.resources.paging import Limit, NameCursor
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.monitors import roster as store
from tidemill.store.monitors.event_counts import count_events

MOST_ENTITIES = 10_000
COUNT_PARTS = 30


class Entities(msgspec.Struct, frozen=True):
    """Whom a monitor follows, with the state of each as it was folded last, and how many events came in each part of
    the last `within` seconds (`spark`). `next` is the cursor of the page after, or null on the last one."""

    items: list[dict[str, Any]]
    within: float
    next: str | None = None


class Followed(msgspec.Struct, frozen=True):
    """Somebody whom a monitor follows, or did: how far it has come with them, and with the reading of their past."""

    entity: str
    active: bool
    added_at: datetime
    last_at: float | None
    count: int
    folded: int
    behind: bool
    due_at: float | None
    labels: dict[str, Any] | None
    problem: str | None
    backfill: dict[str, Any] | None


class Roster(msgspec.Struct, frozen=True):
    """Whom a monitor follows, by name; `next` is the cursor of the page after, or null on the last one."""

    items: list[Followed]
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


class Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels to put on an entity; those that are not named stay."""

    entity: str
    labels: dict[str, str | bool | int | float | None]


class Some(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These entities; everybody, if nobody is named."""

    entities: list[str] | None = None


class Past(Some, frozen=True, forbid_unknown_fields=True):
    """Whose past, and how far back."""

    past: str | float = "24h"


class Reached(msgspec.Struct, frozen=True):
    """How many entities are concerned."""

    count: int


@get("/monitors/{name:str}/entities", opt={"scope": "read"}, summary="Whom a monitor follows")
async def get_entities(
    server_state: TheServerState,
    name: FromPath[str],
    limit: Annotated[int, QueryParameter(ge=1, le=2000)] = 500,
    within: Annotated[
        float, QueryParameter(ge=60, le=604_800, description="How far back `spark` looks, in seconds.")
    ] = 3600,
    cursor: NameCursor = None,
) -> Entities:
    """Every entity with its folded state, its labels, and how busy it was."""
    rows = await store.show_states(server_state.database, name, after=read_row_cursor(cursor), limit=limit)
    names = [row["entity"] for row in rows]
    sparks = await count_events(server_state.database, name, names, within=within, parts=COUNT_PARTS) if names else {}
    quiet = [0] * COUNT_PARTS
    items = [{**readable(row, ("state", "labels")), "spark": sparks.get(row["entity"], quiet)} for row in rows]
    return Entities(items, within, write_row_cursor(names[-1]) if len(names) == limit else None)


@get("/monitors/{name:str}/roster", opt={"scope": "read"}, summary="A monitor's roster")
async def get_roster(
    server_state: TheServerState,
    name: FromPath[str],
    everybody: Annotated[FromQuery[bool], QueryParameter(description="Also who is followed no longer.")] = False,
    limit: Limit = 50,
    cursor: NameCursor = None,
) -> Roster:
    """How far a monitor is with each whom it follows, without their states."""
    after = read_row_cursor(cursor)
    rows = await store.list_roster(server_state.database, name, everybody=everybody, after=after, limit=limit)
    items = [Followed(**readable(row, ("labels", "backfill"))) for row in rows]
    return Roster(items, write_row_cursor(items[-1].entity) if len(items) == limit else None)


@post("/monitors/{name:str}/roster", opt={"scope": "operate"}, status_code=200, summary="Follow or no longer follow")
async def change_roster(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[RosterChange]
) -> RosterChanged:
    """Follow entities, whose past is read once; or follow them no longer, which resolves their alerts."""
    if not data.add and not data.remove:
        raise ConfigError("say whom to add or to remove")
    _check([*data.add, *data.remove])
    by, added, removed = caller_of(request).name, [], []
    plan = None if data.past is None else _plan(data.past)
    if data.add:
        names = list(dict.fromkeys(data.add))
        shards = [shard_of(each) for each in names]
        added = await store.add_to_roster(server_state.database, name, names, shards, backfill=plan, by=by)
    if data.remove:
        removed = await store.remove_from_roster(server_state.database, name, list(dict.fromkeys(data.remove)), by=by)
    return RosterChanged(added, removed)


@post("/monitors/{name:str}/labels", opt={"scope": "operate"}, status_code=200, summary="Label an entity")
async def label(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Labels]
) -> Labels:
    """Put labels on an entity: `present` false keeps triggers about absence quiet."""
    _check([data.entity])
    if not data.labels:
        raise ConfigError("say at least one label")
    await store.label_entity(server_state.database, name, data.entity, dict(data.labels), by=caller_of(request).name)
    return data


@post("/monitors/{name:str}/backfill", opt={"scope": "operate"}, status_code=200, summary="Read the past again")
async def backfill(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Past]
) -> Reached:
    """Read the past of entities again; what is in the log already is not stored twice."""
    _check(data.entities or [])
    plan, by = _plan(data.past), caller_of(request).name
    return Reached(len(await store.start_backfill(server_state.database, name, data.entities, plan, by=by)))


@post("/monitors/{name:str}/reset", opt={"scope": "operate"}, status_code=200, summary="Make states anew")
async def reset(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[Some]
) -> Reached:
    """Make states anew from the log. Alerts stay, and nobody is told again of what was told."""
    _check(data.entities or [])
    return Reached(
        len(await store.reset_monitor(server_state.database, name, data.entities, by=caller_of(request).name))
    )


routes = [get_entities, get_roster, change_roster, label, backfill, reset]


def _check(entities: list[str]) -> None:
    if len(entities) > MOST_ENTITIES:
        raise ConfigError(f"no more than {MOST_ENTITIES:,} entities at once")
    if any(not each or len(each) > 400 or not each.isprintable() for each in entities):
        raise ConfigError("an entity has 1 to 400 printable characters")


def _plan(past: str | float) -> EntityBackfill:
    return EntityBackfill(time.time() - parse_duration(past, what="past"))
