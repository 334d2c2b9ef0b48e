"""The audit trail: who did what to which object, and how it was before and after."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import QueryParameter

from tidemill.server.resources.cursor import following, read_cursor
from tidemill.server.resources.json_rows import readable
from tidemill.server.resources.paging import Cursor, Limit
from tidemill.server.server_state import TheDesk
from tidemill.store.audit import page_audit


class Entry(msgspec.Struct, frozen=True):
    """One thing that somebody did."""

    id: int
    at: datetime
    who: str
    action: str
    target: str
    before: Any
    after: Any


class Trail(msgspec.Struct, frozen=True):
    """Entries, newest first."""

    items: list[Entry]
    next: str | None


@get("/audit", opt={"scope": "read"}, summary="Who did what")
async def get_audit(
    desk: TheDesk,
    who: Annotated[str | None, QueryParameter(max_length=200)] = None,
    action: Annotated[
        str | None, QueryParameter(max_length=100, description="`job.cancel`, or `job` for all of a kind.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Trail:
    """What operators did, newest first."""
    rows = await page_audit(desk.database, who=who, action=action, before=read_cursor(cursor), limit=limit)
    return Trail(
        [Entry(**readable(row, ("before", "after"))) for row in rows], following([row["id"] for row in rows], limit)
    )


routes = [get_audit]
