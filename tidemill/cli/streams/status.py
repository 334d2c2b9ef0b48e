"""How streams stand, from the database or told by a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.cli.render import plain, read_json
from tidemill.store.database import Database
from tidemill.store.streams import streams as store

if TYPE_CHECKING:
    from tidemill.cli.client import RowClient

EVERY = 1.0


async def look(database: Database, stream: str | None = None) -> dict[str, Any]:
    """Everything that `status` shows, as plain data."""
    rows = await store.read_status(database, stream)
    dispatchers = [{**plain(dict(row), "status", "dispatcher"), **read_json(row["status"])} for row in rows]
    names = sorted({row["stream"] for row in rows})
    kept = {row["stream"]: dict(row) for row in await database.fetch(store.COUNT_KEPT, names)}
    return {"dispatchers": dispatchers, "kept": kept}


def look_there(server: RowClient, stream: str | None = None) -> dict[str, Any]:
    """The same from a server, which tells of streams that nobody runs as well."""
    found = [
        each for each in server.items("streams") if each["dispatchers"] and (stream is None or each["name"] == stream)
    ]
    dispatchers = [{"stream": each["name"], **dispatcher} for each in found for dispatcher in each["dispatchers"]]
    kept = {each["name"]: {"stream": each["name"], "retries": each["retries"], "dead": each["dead"]} for each in found}
    return {"dispatchers": dispatchers, "kept": kept}
