"""The audit trail: who did what to which object, written in the transaction that does it."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.core.codec import encode
from tidemill.store.database import Database, Executor

#: One entry.
WRITE_AUDIT = """
INSERT INTO tidemill.audit (who, action, target, before, after) VALUES ($1, $2, $3, $4, $5)
"""


async def write_audit(
    database: Database,
    connection: Executor,
    *,
    who: str,
    action: str,
    target: str,
    before: object = None,
    after: object = None,
) -> None:
    """Record who did what, in the transaction that does it."""
    await connection.execute(database.sql(WRITE_AUDIT), who, action, target, encode(before), encode(after))


def targets(ids: Sequence[int]) -> str:
    """Several objects as a target; what was done to each is in the rest of the entry."""
    shown = ", ".join(map(str, ids[:20]))
    return shown if len(ids) <= 20 else f"{shown} and {len(ids) - 20} more"


#: A page of entries; `$2` is an action, or what comes before its dot.
PAGE_AUDIT = """
SELECT id, at, who, action, target, before, after FROM tidemill.audit
WHERE ($1::text IS NULL OR who = $1) AND ($2::text IS NULL OR action = $2 OR split_part(action, '.', 1) = $2)
  AND ($3::bigint IS NULL OR id < $3)
ORDER BY id DESC LIMIT $4
"""


async def page_audit(
    database: Database, *, who: str | None, action: str | None, before: int | None, limit: int
) -> list[asyncpg.Record]:
    """Entries that match, newest first, from an id on."""
    return await database.fetch(PAGE_AUDIT, who, action, before, limit)
