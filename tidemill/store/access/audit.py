"""The audit trail: who did what to which object. Entries are written in the transaction of the change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from tidemill.core.codec import encode
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor
from tidemill.store.large_values import cut, place_of

#: Adds one entry.
WRITE_AUDIT = """
INSERT INTO installation.audit (application, who, action, target, before, after)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::json, $6::json)
"""
#: The same for any driver's connection.
WRITE_AUDIT_TEXT = WRITE_AUDIT.replace("::json", "::text::json") + "RETURNING id"


async def write_audit(
    database: Database,
    connection: Executor,
    *,
    who: str,
    action: str,
    target: str,
    before: object,
    after: object,
) -> None:
    """Record who did what, in the transaction of the change."""
    entry = (database.application, who, action, target, database.seal(encode(before)), database.seal(encode(after)))
    await connection.execute(database.sql(WRITE_AUDIT), *entry)


def audit_statements(database: Database, *, who: str, action: str, target: str, after: object) -> Statements[None]:
    """The same for any driver's connection."""
    entry = (database.application, who, action, target, "null", database.seal(encode(after)).decode())
    yield WRITE_AUDIT_TEXT, entry


def targets(ids: Sequence[int], prefix: str = "") -> str:
    """The ids of several objects as one audit target, each after a prefix; the first twenty are listed."""
    shown = ", ".join(f"{prefix}{each}" for each in ids[:20])
    return shown if len(ids) <= 20 else f"{shown} and {len(ids) - 20} more"


#: A page of entries. `$2` is an action, or its part before the dot. `$5` is an application: its entries and those
#: of the installation; NULL for all applications.
PAGE_AUDIT = f"""
SELECT id, at, application, who, action, target, {cut("before", place_of("audit/before", "id"))} AS before,
       {cut("after", place_of("audit/after", "id"))} AS after FROM installation.audit
WHERE ($1::text IS NULL OR who = $1) AND ($2::text IS NULL OR action = $2 OR split_part(action, '.', 1) = $2)
  AND ($3::bigint IS NULL OR id < $3) AND ($5::text IS NULL OR application IS NULL OR application = $5)
  AND ($6::text IS NULL OR target = $6) AND ($7::timestamptz IS NULL OR at >= $7)
  AND ($8::timestamptz IS NULL OR at < $8)
ORDER BY id DESC LIMIT $4
"""


async def page_audit(
    database: Database,
    *,
    who: str | None,
    action: str | None,
    target: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None,
    limit: int,
) -> list[asyncpg.Record]:
    """The matching entries, newest first, starting below an id."""
    return await database.fetch(PAGE_AUDIT, who, action, before, limit, database.application, target, since, until)
