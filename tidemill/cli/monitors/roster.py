"""`tidemill monitor roster`: whom a monitor follows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cyclopts import App

from tidemill.cli.connection_options import ANYWHERE, ServerOptions, operator
from tidemill.cli.monitors.options import pair, some, value, with_monitor
from tidemill.cli.monitors.view import roster_table
from tidemill.cli.render import out, print_json, read_json
from tidemill.core.duration import parse_duration
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.monitors.runner.ingest import EntityBackfill
from tidemill.store.database import Database
from tidemill.store.monitors import roster as roster_store

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

roster = App(name="roster", help="Whom a monitor follows.")


@roster.command(name="add")
def roster_add(
    *entities: str,
    monitor: str | None = None,
    past: str = "24h",
    no_backfill: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """Follow entities, and read their past once.

    Parameters
    ----------
    entities
        Whom to follow.
    monitor
        The monitor; needed when there are several.
    past
        How far back to read.
    no_backfill
        Do not read their past.
    """
    some(entities)
    plan = None if no_backfill else EntityBackfill(time.time() - parse_duration(past, what="--past"))

    async def stored(database: Database, name: str) -> list[str]:
        shards = [shard_of(entity) for entity in entities]
        return await roster_store.add_to_roster(database, name, entities, shards, backfill=plan, by=operator())

    def served(server: RowClient, name: str) -> list[str]:
        body = {"add": entities, "past": None if no_backfill else past}
        return server.post("monitors", name, "roster", body=body)["added"]

    added = with_monitor(place, monitor, stored, served)
    for entity in entities:
        out().print(f"{entity} is followed{' now' if entity in added else ' already'}")


@roster.command(name="remove")
def roster_remove(*entities: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Follow entities no longer: their events are ignored, their open alerts resolved.

    Parameters
    ----------
    entities
        Whom to follow no longer.
    monitor
        The monitor; needed when there are several.
    """
    some(entities)

    async def stored(database: Database, name: str) -> list[str]:
        return await roster_store.remove_from_roster(database, name, entities, by=operator())

    def served(server: RowClient, name: str) -> list[str]:
        return server.post("monitors", name, "roster", body={"remove": entities})["removed"]

    gone = with_monitor(place, monitor, stored, served)
    for entity in entities:
        out().print(f"{entity} {'is no longer followed' if entity in gone else 'was not followed'}")


@roster.command(name="list")
def roster_list(
    *,
    monitor: str | None = None,
    all: bool = False,
    limit: int = 1000,
    json: bool = False,
    place: ServerOptions = ANYWHERE,
) -> None:
    """List whom a monitor follows, and how far the reading of their past has come.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    all
        Those who are followed no longer, too.
    limit
        How many to show.
    json
        Print one JSON document.
    """

    async def stored(database: Database, name: str) -> list[dict[str, Any]]:
        rows = await roster_store.list_roster(database, name, everybody=all, limit=limit)
        return [{**row, "labels": read_json(row["labels"]), "backfill": read_json(row["backfill"])} for row in rows]

    def served(server: RowClient, name: str) -> list[dict[str, Any]]:
        return server.pages("monitors", name, "roster", limit=limit, everybody=all)

    rows = with_monitor(place, monitor, stored, served)
    if json:
        return print_json(rows)
    return out().print(roster_table(rows) if rows else "nobody is followed")


@roster.command(name="label")
def roster_label(entity: str, /, *labels: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Put labels on an entity: present=false keeps triggers about absence quiet.

    Parameters
    ----------
    entity
        Whom.
    labels
        As in present=false room=12.
    monitor
        The monitor; needed when there are several.
    """
    some(labels)
    read = {name: value(text) for name, text in (pair(label) for label in labels)}

    async def stored(database: Database, name: str) -> None:
        await roster_store.label_entity(database, name, entity, read, by=operator())

    def served(server: RowClient, name: str) -> None:
        server.post("monitors", name, "labels", body={"entity": entity, "labels": read})

    with_monitor(place, monitor, stored, served)
    out().print(f"{entity}: {', '.join(labels)}")
