"""`tidemill audit`: who did what to which object."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tidemill.cli.place import HERE, Place, opened
from tidemill.cli.render import ago, out, plain, print_json, read_json, table
from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.store.audit import list_audit


def audit(*, limit: int = 50, json: bool = False, place: Place = HERE) -> None:
    """List what operators did, the newest first.

    Parameters
    ----------
    limit
        How many entries to show.
    json
        Print one JSON document.
    """
    if limit < 1:
        raise ConfigError(f"--limit {limit} would show nothing")
    rows = asyncio.run(_list(place, limit))
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        return out().print("nothing yet: pause, retry, cancel and their like are written down here", style="dim")
    made = table("when", "who", "action", "target", "change", wide="change")
    now = datetime.now(UTC)
    for row in rows:
        made.add_row(ago(row["at"], now), row["who"], row["action"], row["target"], change(row))
    return out().print(made)


def change(row: Mapping[str, Any]) -> str:
    """How something was before and is after."""
    before, after = (
        value if isinstance(value, str) else "" if value is None else encode(value).decode()
        for value in (read_json(row["before"]), read_json(row["after"]))
    )
    return f"{before} → {after}" if before else after


async def _list(place: Place, limit: int) -> list[dict[str, Any]]:
    async with opened(place.settings()) as database:
        return [dict(row) for row in await list_audit(database, limit=limit)]
