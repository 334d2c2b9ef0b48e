"""Answers stored for requests with an idempotency key: a repeated request gets the same answer and acts once."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

KEPT_HOURS = 24

#: Claims a key; returns no row if another request holds it.
CLAIM_ANSWER = """
INSERT INTO tidemill.idempotency_key (who, key, request) VALUES ($1, $2, $3)
ON CONFLICT (who, key) DO NOTHING RETURNING key
"""

#: The stored answer of a key, and the request that it belongs to.
READ_ANSWER = "SELECT request, status, body FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

#: Stores the answer of a claimed key.
KEEP_ANSWER = "UPDATE tidemill.idempotency_key SET status = $3, body = $4 WHERE who = $1 AND key = $2"

#: Frees the key of a request that has changed nothing.
DROP_ANSWER = "DELETE FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

#: Deletes keys older than `$1` hours.
FORGET_ANSWERS = "DELETE FROM tidemill.idempotency_key WHERE at < now() - make_interval(hours => $1)"


class StoredAnswer(NamedTuple):
    """The answer to an earlier request; no status while that request runs, or if it was interrupted."""

    request: bytes
    status: int | None
    body: bytes | None


async def claim_answer(database: Database, who: str, key: str, request: bytes) -> StoredAnswer | None:
    """Claim a key: None if this request is the first and must act, otherwise the stored answer so far."""
    while True:
        if await database.fetch(CLAIM_ANSWER, who, key, request, patience=5.0):
            return None
        row = await database.fetchrow(READ_ANSWER, who, key)
        if row is not None:
            return StoredAnswer(row["request"], row["status"], row["body"])


async def keep_answer(database: Database, who: str, key: str, status: int, body: bytes) -> None:
    """Store the answer of a claimed key."""
    await database.fetch(KEEP_ANSWER, who, key, status, body)


async def keep_answer_within(tx: Transaction, key: str, status: int, body: bytes) -> None:
    """Store the answer in the transaction that carries out the request."""
    await tx.execute(KEEP_ANSWER, tx.by, key, status, body)


async def drop_answer(database: Database, who: str, key: str) -> None:
    """Free the key of a request that has changed nothing."""
    await database.fetch(DROP_ANSWER, who, key)


async def forget_answers(database: Database) -> None:
    """Delete answers older than a day."""
    await database.fetch(FORGET_ANSWERS, KEPT_HOURS)
