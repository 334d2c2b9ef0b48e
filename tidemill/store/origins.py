"""What jobs, runs, batches, messages and events followed from, and the messages that work has published."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.store.database import Database

READ_JOB_ORIGIN = """
SELECT task, state, origin, run_id FROM tidemill.job WHERE id = $1
UNION ALL SELECT task, state, origin, run_id FROM tidemill.job_history WHERE id = $1 LIMIT 1
"""
READ_RUN_ORIGIN = "SELECT workflow, state, origin, parent, forked_from FROM tidemill.run WHERE id = $1"

#: The origin of a message, as it was noted when it handed something over or was given up.
READ_MESSAGE_ORIGIN = """
SELECT origin FROM tidemill.stream_handed_over
WHERE stream = $1 AND source = $2 AND place = $3 AND origin IS NOT NULL
UNION ALL
SELECT headers ->> 'tidemill-origin' FROM tidemill.dead_letter
WHERE stream = $1 AND source = $2 AND place = $3 AND headers ->> 'tidemill-origin' IS NOT NULL
UNION ALL
SELECT headers ->> 'tidemill-origin' FROM tidemill.stream_retry
WHERE stream = $1 AND source = $2 AND place = $3 AND headers ->> 'tidemill-origin' IS NOT NULL
LIMIT 1
"""
READ_LOG_ORIGIN = """
SELECT CASE WHEN cardinality(origins) = 1 THEN origins[1] ELSE origins[1 + $2::bigint % 1024] END AS origin
FROM tidemill.event_log WHERE topic = $1 AND id = $2::bigint / 1024
"""

#: The messages that work has published, oldest first: topics, positions of the first, and how many.
LIST_PUBLISHED = """
SELECT topic, id * 1024 AS position, messages FROM tidemill.event_log
WHERE origins[1] = $1 AND origins IS NOT NULL ORDER BY at, id LIMIT $2
"""


async def read_job_origin(database: Database, id: int) -> asyncpg.Record | None:
    """The task and state of a job, and what it followed from."""
    return await database.fetchrow(READ_JOB_ORIGIN, id)


async def read_run_origin(database: Database, id: int) -> asyncpg.Record | None:
    """The workflow and state of a run, and what it followed from."""
    return await database.fetchrow(READ_RUN_ORIGIN, id)


async def read_message_origin(
    database: Database, stream: str, source: str, place: str, topic: str | None
) -> str | None:
    """The work that published a message, in words; `topic` if its source is the log."""
    row = await database.fetchrow(READ_MESSAGE_ORIGIN, stream, source, place)
    if row is None and topic is not None:
        row = await database.fetchrow(READ_LOG_ORIGIN, topic, int(place.rpartition(":")[2]))
    return None if row is None else row["origin"]


async def list_published(database: Database, work: str, *, limit: int) -> Sequence[asyncpg.Record]:
    """The messages that work, given in words, has published."""
    return await database.fetch(LIST_PUBLISHED, work, limit)
