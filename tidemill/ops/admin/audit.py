"""The audit trail: which caller did what to which object, and how it was before and after."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.encoding.json_rows import readable, zoned
from tidemill.ops.operator.cursor import following, read_cursor
from tidemill.ops.operator.operation import Arguments, Cursor, Limit, PageOf, doc, operation
from tidemill.store.access.audit import page_audit
from tidemill.store.transaction import Reader


class ListAudit(Arguments, frozen=True, kw_only=True):
    """Which entries of the audit trail."""

    who: Annotated[Annotated[str, Meta(max_length=200)] | None, doc("Entries of this caller.")] = None
    action: Annotated[
        Annotated[str, Meta(max_length=100)] | None, doc("Entries of this action: `job.cancel`, or `job` for a kind.")
    ] = None
    target: Annotated[Annotated[str, Meta(max_length=400)] | None, doc("Entries about this object: r12, mail.")] = None
    since: Annotated[datetime | None, doc("Entries of this time or later.")] = None
    until: Annotated[datetime | None, doc("Entries before this time.")] = None
    limit: Limit = 50
    cursor: Cursor = None


class AuditEntry(msgspec.Struct, frozen=True):
    """One thing that a caller did."""

    id: int
    at: datetime
    application: str | None
    who: str
    action: str
    target: str
    before: Any
    after: Any


@operation("GET /audit", role="viewer")
async def list_audit(at: Reader, args: ListAudit) -> PageOf[AuditEntry]:
    """List what operators did, newest first."""
    rows = await page_audit(
        at.database,
        who=args.who,
        action=args.action,
        target=args.target,
        since=zoned(args.since),
        until=zoned(args.until),
        before=read_cursor(args.cursor),
        limit=args.limit,
    )
    entries = [AuditEntry(**readable(row, ("before", "after"))) for row in rows]
    return PageOf(entries, following([entry.id for entry in entries], args.limit))
