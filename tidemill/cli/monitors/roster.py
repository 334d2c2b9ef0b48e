"""`tidemill monitor roster`: the entities that a monitor follows."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.arguments import Json, Shown
from tidemill.cli.monitors.options import Past, on_monitor, pair, require_some, value
from tidemill.cli.monitors.view import roster_table
from tidemill.cli.paging import read_pages
from tidemill.cli.render import out, show
from tidemill.ops.monitors.roster import ChangeRoster, LabelEntity, ListRoster, change_roster, label_entity, list_roster
from tidemill.ops.operator.operation import Operator

roster = App(name="roster", help="The entities that a monitor follows.")

Named = Annotated[str, Parameter(help="The entities.")]


@roster.command(name="add")
@on_monitor
async def roster_add(
    at: Operator,
    monitor: str,
    *entities: Named,
    past: Past = "24h",
    no_backfill: Annotated[bool, Parameter(help="Do not read their past.")] = False,
) -> None:
    """Follow entities, and read their past once."""
    require_some(entities)
    wanted = ChangeRoster(name=monitor, add=list(entities), past=None if no_backfill else past)
    added = (await at.do(change_roster, wanted)).added
    for entity in entities:
        out().print(f"{entity} is followed{' now' if entity in added else ' already'}")


@roster.command(name="remove")
@on_monitor
async def roster_remove(at: Operator, monitor: str, *entities: Named) -> None:
    """Stop following entities: their events are ignored, their open alerts resolved."""
    require_some(entities)
    gone = (await at.do(change_roster, ChangeRoster(name=monitor, remove=list(entities)))).removed
    for entity in entities:
        out().print(f"{entity} {'is no longer followed' if entity in gone else 'was not followed'}")


@roster.command(name="list")
@on_monitor
async def roster_list(
    at: Operator,
    monitor: str,
    *,
    all: Annotated[bool, Parameter(help="Also those that are no longer followed.")] = False,
    limit: Shown = 1000,
    json: Json = False,
) -> None:
    """List the entities that a monitor follows, and how far the reading of their past has come."""
    rows, _ = await read_pages(at, list_roster, ListRoster(name=monitor, inactive=all), limit)
    show(rows, roster_table, json=json, none="no entity is followed")


@roster.command(name="label")
@on_monitor
async def roster_label(
    at: Operator,
    monitor: str,
    entity: Annotated[str, Parameter(help="The entity.")],
    /,
    *labels: Annotated[str, Parameter(help="As in present=false room=12.")],
) -> None:
    """Put labels on an entity: present=false keeps triggers about absence quiet."""
    require_some(labels)
    read = {name: value(text) for name, text in (pair(label) for label in labels)}
    await at.do(label_entity, LabelEntity(name=monitor, entity=entity, labels=read))
    out().print(f"{entity}: {', '.join(labels)}")
