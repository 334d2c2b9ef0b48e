"""`tidemill monitor roster`: the entities that a monitor follows."""

from __future__ import annotations

from cyclopts import App

from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.monitors.options import pair, some, value, with_monitor
from tidemill.cli.monitors.view import roster_table
from tidemill.cli.paging import read_pages
from tidemill.cli.render import out, print_json
from tidemill.ops.monitors.roster import ChangeRoster, LabelEntity, ListRoster, change_roster, label_entity, list_roster

roster = App(name="roster", help="The entities that a monitor follows.")


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
        The entities.
    monitor
        The monitor; needed when there are several.
    past
        How far back to read.
    no_backfill
        Do not read their past.
    """
    some(entities)
    wanted = None if no_backfill else past
    added = with_monitor(
        place,
        monitor,
        lambda at, name: at.do(change_roster, ChangeRoster(name=name, add=list(entities), past=wanted)),
    ).added
    for entity in entities:
        out().print(f"{entity} is followed{' now' if entity in added else ' already'}")


@roster.command(name="remove")
def roster_remove(*entities: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Stop following entities: their events are ignored, their open alerts resolved.

    Parameters
    ----------
    entities
        The entities.
    monitor
        The monitor; needed when there are several.
    """
    some(entities)
    gone = with_monitor(
        place, monitor, lambda at, name: at.do(change_roster, ChangeRoster(name=name, remove=list(entities)))
    ).removed
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
    """List the entities that a monitor follows, and how far the reading of their past has come.

    Parameters
    ----------
    monitor
        The monitor; needed when there are several.
    all
        Also those that are no longer followed.
    limit
        How many to show.
    json
        Print one JSON document.
    """
    rows, _ = with_monitor(
        place, monitor, lambda at, name: read_pages(at, list_roster, ListRoster(name=name, everybody=all), limit)
    )
    if json:
        return print_json(rows)
    return out().print(roster_table(rows) if rows else "no entity is followed")


@roster.command(name="label")
def roster_label(entity: str, /, *labels: str, monitor: str | None = None, place: ServerOptions = ANYWHERE) -> None:
    """Put labels on an entity: present=false keeps triggers about absence quiet.

    Parameters
    ----------
    entity
        The entity.
    labels
        As in present=false room=12.
    monitor
        The monitor; needed when there are several.
    """
    some(labels)
    read = {name: value(text) for name, text in (pair(label) for label in labels)}
    with_monitor(
        place, monitor, lambda at, name: at.do(label_entity, LabelEntity(name=name, entity=entity, labels=read))
    )
    out().print(f"{entity}: {', '.join(labels)}")
