"""Search: one box for ids, names, keys and tags."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import QueryParameter

from tidemill.server.server_state import TheDesk
from tidemill.store.search import Hit, search


class Hits(msgspec.Struct, frozen=True):
    """What was found, the best first."""

    items: list[Hit]


@get("/search", opt={"scope": "read"}, summary="Find anything")
async def find(
    desk: TheDesk,
    q: Annotated[
        str, QueryParameter(min_length=1, max_length=200, description="An id (12, r12), a name, a key, a tag.")
    ],
    limit: Annotated[int, QueryParameter(ge=1, le=50)] = 8,
) -> Hits:
    """Jobs and runs by id, key or tag; queues, tasks, flows, dags and all else that has a name by its name."""
    names = dict.fromkeys(desk.app.tasks, "task") | dict.fromkeys(desk.app.runs.flows, "flow")
    names |= dict.fromkeys(desk.app.runs.dags, "dag") | dict.fromkeys(desk.app.streams.declared, "stream")
    names |= dict.fromkeys(desk.app.monitors, "monitor") | dict.fromkeys(desk.overlook.names, "pipeline")
    found = await search(desk.database, q, limit=limit)
    known = {(hit.kind, hit.id) for hit in found}
    declared = [
        Hit(kind, name, name, why="name")
        for name, kind in names.items()
        if q.strip().lower() in name.lower() and (kind, name) not in known
    ]
    return Hits(found + declared[:limit])


routes = [find]
