"""Answers stored for requests with an idempotency key: a repeated request gets the same answer and acts once."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

KEPT_HOURS = 24

#: Claim a key; no row if another request holds it.
CLAIM_ANSWER = """
INSERT INTO tidemill.idempotency_key (who, key, request) VALUES ($1, $2, $3)
ON CONFLICT (who, key) DO NOTHING RETURNING key
"""

READ_ANSWER = "SELECT request, status, body FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

KEEP_ANSWER = "UPDATE tidemill.idempotency_key SET status = $3, body = $4 WHERE who = $1 AND key = $2"

#: Nothing was done: the key is free again.
DROP_ANSWER = "DELETE FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

FORGET_ANSWERS = "DELETE FROM tidemill.idempotency_key WHERE at < now() - make_interval(hours => $1)"


class StoredAnswer(NamedTuple):
    """What was answered before; no status while that is under way, or if it was cut off."""

    request: bytes
    status: int | None
    body: bytes | None


async def claim_answer(database: Database, who: str, key: str, request: bytes) -> StoredAnswer | None:
    """None for the first request with a key, which has to act; the answer so far for all others."""
    while True:
        if await database.fetch(CLAIM_ANSWER, who, key, request, patience=5.0):
            return None
        row = await database.fetchrow(READ_ANSWER, who, key)
        if row is not None:
            return StoredAnswer(row["request"], row["status"], row["body"])


async def keep_answer(database: Database, who: str, key: str, status: int, body: bytes) -> None:
    """Store what was answered."""
    await database.fetch(KEEP_ANSWER, who, key, status, body)


async def keep_answer_within(tx: Transaction, key: str, status: int, body: bytes) -> None:
    """Store what will be answered, in the transaction that does what the request asks for."""
    await tx.execute(KEEP_ANSWER, tx.by, key, status, body)


async def drop_answer(database: Database, who: str, key: str) -> None:
    """Forget a request that has changed nothing."""
    await database.fetch(DROP_ANSWER, who, key)


async def forget_answers(database: Database) -> None:
    """Remove what is older than a day."""
    await database.fetch(FORGET_ANSWERS, KEPT_HOURS)
