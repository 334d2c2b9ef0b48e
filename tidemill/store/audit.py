"""The audit trail: who did what to which object, written in the transaction that does it."""

from __future__ import annotations

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


#: The newest entries.
LIST_AUDIT = "SELECT id, at, who, action, target, before, after FROM tidemill.audit ORDER BY id DESC LIMIT $1"


async def list_audit(database: Database, *, limit: int = 50) -> list[asyncpg.Record]:
    """The newest entries of the audit trail."""
    return await database.fetch(LIST_AUDIT, limit)
