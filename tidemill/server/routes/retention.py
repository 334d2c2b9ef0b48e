"""How long things are kept, and how much room they take."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import msgspec
from litestar import Request, get, put
from litestar.params import JSONBody

from tidemill.server.server_state import Desk, TheDesk, caller_of
from tidemill.store.retention_settings import Retention, measure_kept, read_retention, set_retention


class Kept(msgspec.Struct, frozen=True):
    """One kind of thing: for how many days it is kept, what an operator has set, its size and its oldest day."""

    days: int
    set: int | None
    bytes: int
    oldest: date | None


class Retained(msgspec.Struct, frozen=True):
    """Finished jobs (with what they logged), ended runs, and the event log. `configured` holds where nothing is set."""

    jobs: Kept
    runs: Kept
    events: Kept
    configured: int
    set_by: str | None
    set_at: datetime | None


@get("/retention", opt={"scope": "read"}, summary="How long things are kept")
async def get_retention(desk: TheDesk) -> Retained:
    """For how many days things are kept, and how much there is of them."""
    return await _tell(desk)


@put("/retention", opt={"scope": "admin"}, summary="Set how long things are kept")
async def put_retention(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[Retention]) -> Retained:
    """Keep things for so many days; null leaves it to the configuration. Maintenance drops what is older soon."""
    await set_retention(desk.database, data, by=caller_of(request).name)
    return await _tell(desk)


routes = [get_retention, put_retention]


async def _tell(desk: Desk) -> Retained:
    wanted, row = await read_retention(desk.database)
    sizes = await measure_kept(desk.database)
    configured = desk.app.settings.keep_days

    def kept(set_days: int | None, *families: str) -> Kept:
        found = [sizes[family] for family in families if family in sizes]
        days = [each["oldest"] for each in found if each["oldest"]]
        oldest = datetime.strptime(min(days), "%Y%m%d").date() if days else None
        return Kept(set_days or configured, set_days, sum(each["bytes"] for each in found), oldest)

    return Retained(
        kept(wanted.jobs, "jobs", "logs"),
        kept(wanted.runs, "runs"),
        kept(wanted.events, "events"),
        configured,
        None if row is None else row["by"],
        None if row is None else row["at"],
    )
