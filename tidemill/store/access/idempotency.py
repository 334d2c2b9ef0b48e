"""Answers stored for requests with an idempotency key: a repeated request gets the same answer and acts once.

The key is claimed in the first transaction that changes something. So a request whose server died before it acted has
claimed nothing and can be sent again, and one that acted is never carried out twice.

Requests to an application's own handlers act outside of our transactions. Their keys are leased: the server renews the
lease while the handler runs, and once it has lapsed without an answer, the request may be carried out again.
"""

from __future__ import annotations

import msgspec

from tidemill.core.errors import ConfigError, ConflictError
from tidemill.store.database import Database, Executor

KEPT_HOURS = 24
LEASE_SECONDS = 15.0

#: Claims a key; waits for a transaction that has just claimed it. Returns no row if another request holds it.
CLAIM_ANSWER = """
INSERT INTO tidemill.idempotency_key (who, key, request) VALUES ($1, $2, $3)
ON CONFLICT (who, key) DO NOTHING RETURNING key
"""

#: Leases a key; also one whose lease of `$4` seconds has lapsed without an answer to the same request.
LEASE_KEY = """
INSERT INTO tidemill.idempotency_key AS k (who, key, request) VALUES ($1, $2, $3)
ON CONFLICT (who, key) DO UPDATE SET at = now()
    WHERE k.status IS NULL AND k.request = excluded.request AND k.at < now() - make_interval(secs => $4)
RETURNING key
"""

#: Renews the lease of a key that has no answer yet.
RENEW_KEY = "UPDATE tidemill.idempotency_key SET at = now() WHERE who = $1 AND key = $2 AND status IS NULL"

#: The stored answer of a key, and the request that it belongs to.
READ_ANSWER = "SELECT request, status, body FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

#: Stores the answer of a key.
KEEP_ANSWER = """
INSERT INTO tidemill.idempotency_key (who, key, request, status, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (who, key) DO UPDATE SET status = $4, body = $5
"""

#: Frees the key of a request that has changed nothing.
DROP_ANSWER = "DELETE FROM tidemill.idempotency_key WHERE who = $1 AND key = $2"

#: Deletes keys older than `$1` hours.
FORGET_ANSWERS = "DELETE FROM tidemill.idempotency_key WHERE at < now() - make_interval(hours => $1)"


class IdempotencyKey(msgspec.Struct, frozen=True):
    """The key of a request. `repeatable` requests may be carried out again as long as they have no answer."""

    who: str
    key: str
    request: bytes
    """A hash of the request, to detect another request with the same key."""
    repeatable: bool = False


class StoredAnswer(msgspec.Struct, frozen=True):
    """The answer to an earlier request; no status while that request runs, or if its answer was lost."""

    request: bytes
    status: int | None
    body: bytes | None


class AnsweredError(Exception):
    """This request was carried out before."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


async def claim_key(database: Database, connection: Executor, key: IdempotencyKey) -> None:
    """Claim a key in an open transaction; raises `AnsweredError` if the request was carried out before."""
    if await connection.fetchval(database.sql(CLAIM_ANSWER), key.who, key.key, key.request) is not None:
        return
    row = await connection.fetchrow(database.sql(READ_ANSWER), key.who, key.key)
    if row is None:  # The other request freed it meanwhile.
        await claim_key(database, connection, key)
    else:
        _repeat(key, StoredAnswer(row["request"], row["status"], database.open_bytes(row["body"])))


async def lease_key(database: Database, key: IdempotencyKey) -> None:
    """Lease a key for a request that acts elsewhere; raises `AnsweredError` if it was carried out before."""
    async with database.transaction(patience=5.0) as connection:
        leased = await connection.fetchval(database.sql(LEASE_KEY), key.who, key.key, key.request, LEASE_SECONDS)
    if leased is not None:
        return
    row = await database.fetchrow(READ_ANSWER, key.who, key.key)
    if row is None:  # The other request freed it meanwhile.
        await lease_key(database, key)
    elif row["status"] is None and row["request"] == key.request:
        raise ConflictError(
            f"the first request with key {key.key!r} is still running, or its server died: "
            f"try again; {LEASE_SECONDS:g} s after a server died, the request is carried out again"
        )
    else:
        _repeat(key, StoredAnswer(row["request"], row["status"], database.open_bytes(row["body"])))


async def renew_key(database: Database, key: IdempotencyKey) -> None:
    """Renew the lease of a key while its request is carried out."""
    await database.fetch(RENEW_KEY, key.who, key.key)


async def check_key(database: Database, key: IdempotencyKey) -> None:
    """Raise `AnsweredError` if a request was carried out before; claims nothing."""
    row = await database.fetchrow(READ_ANSWER, key.who, key.key)
    if row is not None:
        _repeat(key, StoredAnswer(row["request"], row["status"], database.open_bytes(row["body"])))


def _repeat(key: IdempotencyKey, answer: StoredAnswer) -> None:
    """Raise what a repeated request gets; return if it may go on."""
    if answer.request != key.request:
        raise ConfigError(f"the key {key.key!r} came with another request before: use a new one")
    if answer.status is not None and answer.body is not None:
        raise AnsweredError(answer.status, answer.body)
    if not key.repeatable:
        raise ConflictError(
            f"the first request with key {key.key!r} was carried out, but has no answer yet: "
            "try again soon; if that does not help, its answer was lost"
        )


async def keep_answer(database: Database, connection: Executor, key: IdempotencyKey, status: int, body: bytes) -> None:
    """Store the answer of a request."""
    await connection.execute(
        database.sql(KEEP_ANSWER), key.who, key.key, key.request, status, database.seal_bytes(body)
    )


async def drop_answer(database: Database, key: IdempotencyKey) -> None:
    """Free the key of a request that has changed nothing."""
    await database.fetch(DROP_ANSWER, key.who, key.key)


async def forget_answers(database: Database) -> None:
    """Delete answers older than a day."""
    await database.fetch(FORGET_ANSWERS, KEPT_HOURS)
