"""The overview: counts of what there is now, and totals of ended work. Finished jobs are not counted."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tidemill.core.codec import decode
from tidemill.store.database import Database

#: The number of objects of each kind.
COUNT_ALL = """
SELECT now() AS at, j.*, r.*, w.*, s.*,
       (SELECT count(*) FROM tidemill.run_input AS i JOIN tidemill.run AS q ON q.id = i.run_id
        WHERE q.state = 'running') AS inputs_open
FROM (SELECT count(*) FILTER (WHERE state = 'ready' AND due_at <= now()) AS jobs_waiting,
             count(*) FILTER (WHERE state = 'ready' AND due_at > now()) AS jobs_scheduled,
             count(*) FILTER (WHERE state = 'throttled') AS jobs_throttled,
             count(*) FILTER (WHERE state = 'no_worker') AS jobs_no_worker,
             count(*) FILTER (WHERE state = 'running') AS jobs_running,
             extract(epoch FROM now() - min(due_at) FILTER (WHERE state = 'ready' AND due_at <= now()))::float8
                 AS oldest_waiting
      FROM tidemill.job) AS j,
     (SELECT (SELECT count(*) FROM tidemill.run WHERE state = 'running') AS runs_live,
             (SELECT count(*) FROM tidemill.run WHERE state = 'needs_attention') AS runs_needing_attention) AS r,
     (SELECT count(*) FILTER (WHERE lease_until > now() AND flagged_at IS NULL) AS workers_alive,
             count(*) FILTER (WHERE lease_until <= now() OR flagged_at IS NOT NULL) AS workers_silent
      FROM tidemill.worker WHERE ended_at IS NULL) AS w,
     (SELECT count(*) AS schedules, count(*) FILTER (WHERE paused) AS schedules_paused FROM tidemill.schedule) AS s
"""

#: Ended attempts, as counted by all processes.
READ_DONE = "SELECT labels, value FROM tidemill.meter WHERE name = 'ended' ORDER BY labels LIMIT 2000"

#: Pipelines with failed states that are not due for a retry yet: how many, and the newest of them.
LIST_FAILED_STATES = """
SELECT DISTINCT ON (pipeline) pipeline, count(*) OVER (PARTITION BY pipeline) AS states,
       count(*) FILTER (WHERE retry_at IS NULL) OVER (PARTITION BY pipeline) AS needs_attention,
       stage, entity, error AS note,
       failed_at
FROM tidemill.state_failure WHERE pipeline = ANY ($1::text[]) AND (retry_at IS NULL OR retry_at > now())
ORDER BY pipeline, failed_at DESC
"""


async def count_all(database: Database) -> asyncpg.Record:
    """The current number of objects of each kind."""
    return (await database.fetch(COUNT_ALL))[0]


async def read_done(database: Database) -> list[tuple[str, str, str, float]]:
    """Attempts that have ended since counting began: queue, task, outcome and count."""
    rows = await database.fetch(READ_DONE)
    found = [(decode(row["labels"], list[str]), row["value"]) for row in rows]
    return [(labels[0], labels[1], labels[2], value) for labels, value in found if len(labels) == 3]


async def list_failed_states(database: Database, pipelines: Sequence[str]) -> list[asyncpg.Record]:
    """The failed states of each pipeline."""
    return await database.fetch(LIST_FAILED_STATES, list(pipelines))
