"""Retention: how long things are kept, and how much room they take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Nothing, operation
from tidemill.store.maintenance import retention_settings as store
from tidemill.store.maintenance.retention_settings import Retention
from tidemill.store.transaction import Reader


class RetentionLine(msgspec.Struct, frozen=True):
    """One kind of thing: for how many days it is kept, what an operator has set, its size and its oldest day."""

    days: int
    set: int | None
    bytes: int
    oldest: date | None


class RetentionReport(msgspec.Struct, frozen=True):
    """Finished jobs (with what they logged), ended runs, and the event log."""

    jobs: RetentionLine
    runs: RetentionLine
    events: RetentionLine
    configured: Annotated[int, Meta(description="The days that count where nothing is set.")]
    set_by: str | None
    set_at: datetime | None


@operation("GET /retention", role="viewer")
async def get_retention(at: Reader, args: Nothing, declared: Declarations) -> RetentionReport:
    """For how many days things are kept, and how much there is of them."""
    wanted, row = await store.read_retention(at.database)
    return _report(wanted, row, await store.measure_kept(at.database), declared.settings.keep_days)


@operation("PUT /retention", role="admin")
async def set_retention(at: Reader, args: Retention, declared: Declarations) -> RetentionReport:
    """Keep things for this many days; null leaves it to the configuration. Maintenance drops what is older."""
    async with at.transaction() as tx:
        await store.set_retention(tx, args)
    return await get_retention.run(at, Nothing(), declared)


def _report(wanted: Retention, row: Any, sizes: Mapping[str, Any], configured: int) -> RetentionReport:
    def kept(set_days: int | None, *families: str) -> RetentionLine:
        found = [sizes[family] for family in families if family in sizes]
        days = [each["oldest"] for each in found if each["oldest"]]
        oldest = datetime.strptime(min(days), "%Y%m%d").date() if days else None
        return RetentionLine(set_days or configured, set_days, sum(each["bytes"] for each in found), oldest)

    return RetentionReport(
        kept(wanted.jobs, "jobs", "logs"),
        kept(wanted.runs, "runs"),
        kept(wanted.events, "events"),
        configured,
        None if row is None else row["by"],
        None if row is None else row["at"],
    )
