"""What is known of one message of a stream, by its place at its source or by its id."""

from __future__ import annotations

import asyncpg

from tidemill.store.database import Database

#: Stored messages that wait for another attempt; the newest first.
FIND_RETRY = """
SELECT source, place, message_id, attempts, losses, plans, error, history, due_at, claimed_until > now() AS is_claimed
FROM tidemill.stream_retry WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR source = $2)
  AND (place = $3 OR message_id = $4) ORDER BY id DESC LIMIT 1
"""

#: Messages that wait at their ordered source for another attempt.
FIND_ATTEMPT = """
SELECT source, place, attempts, losses, plans, error, history, due_at FROM tidemill.stream_attempt
WHERE stream = $1 AND source = $2 AND place = $3
"""

FIND_DEAD = """
SELECT id FROM tidemill.dead_letter WHERE ($1::text IS NULL OR stream = $1) AND ($2::text IS NULL OR source = $2)
  AND (place = $3 OR message_id = $4) ORDER BY id DESC LIMIT 1
"""

#: The row of the log that has this position, and how far the groups of its topic are.
FIND_IN_LOG = """
SELECT e.topic, e.at, g.name AS group, (e.xid, e.id) <= (g.xid, g.id) AS is_taken, r.owner::text AS owner,
       r.lease_until > now() AS is_leased, r.done @> ARRAY[$2::bigint] AS is_done
FROM tidemill.event_log AS e
LEFT JOIN tidemill.log_group AS g ON g.topic = e.topic AND g.name = $3
LEFT JOIN tidemill.log_range AS r ON r.topic = e.topic AND r.name = g.name
    AND (e.xid, e.id) > (r.from_xid, r.from_id) AND (e.xid, e.id) <= (r.to_xid, r.to_id)
WHERE e.topic = $1 AND e.id = $2::bigint / 1024 AND e.messages > $2::bigint % 1024
"""


async def find_retry(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> asyncpg.Record | None:
    """The stored message that waits for another attempt."""
    return await database.fetchrow(FIND_RETRY, stream, source, place, id)


async def find_attempt(database: Database, stream: str, source: str, place: str) -> asyncpg.Record | None:
    """The message of an ordered source that waits there for another attempt."""
    return await database.fetchrow(FIND_ATTEMPT, stream, source, place)


async def find_dead(
    database: Database, stream: str | None, source: str | None, place: str | None, id: str | None
) -> int | None:
    """The id of the message's dead letter."""
    row = await database.fetchrow(FIND_DEAD, stream, source, place, id)
    return None if row is None else row["id"]


async def find_in_log(database: Database, topic: str, position: int, group: str) -> asyncpg.Record | None:
    """The message of the log with this position, and what a group has done with it."""
    return await database.fetchrow(FIND_IN_LOG, topic, position, group)
