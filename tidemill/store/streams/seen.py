"""Ids of messages whose work has succeeded: every dispatcher of a stream recognises messages that come again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from uuid import UUID

from tidemill.store.database import Database, Executor

FORGET_AT_ONCE = 10_000

ADD_SEEN = """
INSERT INTO tidemill.stream_seen (stream, source, id)
SELECT $1, source, id FROM unnest($2::text[], $3::uuid[]) AS new (source, id)
ON CONFLICT (stream, source, id) DO UPDATE SET at = now()
"""

#: Which of these ids were seen within the window, and how many seconds ago.
FIND_SEEN = """
SELECT id, extract(epoch FROM now() - at)::float8 AS age FROM tidemill.stream_seen
WHERE stream = $1 AND source = $2 AND id = ANY ($3::uuid[]) AND at > now() - make_interval(secs => $4)
"""

#: Deletes some ids that are older than the window.
FORGET_SEEN = """
WITH old AS (
    DELETE FROM tidemill.stream_seen WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM tidemill.stream_seen
        WHERE stream = $1 AND at < now() - make_interval(secs => $2) LIMIT $3))
    RETURNING 1)
SELECT count(*) AS n FROM old
"""


def hashed(id: str) -> UUID:
    """The form in which an id is stored."""
    return UUID(bytes=hashlib.blake2b(id.encode(errors="replace"), digest_size=16).digest())


async def add_seen(database: Database, connection: Executor, stream: str, ids: Iterable[tuple[str, str]]) -> None:
    """Store the ids of finished messages, each with its source."""
    pairs = sorted({(source, hashed(id)) for source, id in ids})
    sources, hashes = [source for source, _ in pairs], [each for _, each in pairs]
    await connection.execute(database.sql(ADD_SEEN), stream, sources, hashes)


async def find_seen(
    database: Database, stream: str, source: str, ids: Sequence[str], window: float
) -> dict[str, float]:
    """Which of these ids were seen within the window, and how many seconds ago; waits for the database if need be."""
    by_hash = {hashed(id): id for id in ids}
    rows = await database.fetch(FIND_SEEN, stream, source, list(by_hash), window, patience=None)
    return {by_hash[row["id"]]: row["age"] for row in rows}


async def forget_seen(database: Database, stream: str, window: float) -> int:
    """Delete some of the ids that are older than the window; returns how many."""
    return (await database.fetch(FORGET_SEEN, stream, window, FORGET_AT_ONCE))[0]["n"]
