"""`tidemill audit`: who did what to which object."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tidemill.cli.connection_options import ANYWHERE, Reach
from tidemill.cli.render import ago, out, print_json, read_json, table
from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.store.audit import list_audit
from tidemill.store.database import Database


def audit(*, limit: int = 50, json: bool = False, place: Reach = ANYWHERE) -> None:
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

    async def stored(database: Database) -> list[dict[str, Any]]:
        return [
            {**row, "before": read_json(row["before"]), "after": read_json(row["after"])}
            for row in await list_audit(database, limit=limit)
        ]

    rows = place.ask(stored, lambda server: server.pages("audit", limit=limit))
    if json:
        return print_json(rows)
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
        for value in (row["before"], row["after"])
    )
    return f"{before} → {after}" if before else after
