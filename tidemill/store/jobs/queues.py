"""The list of queues: their jobs, workers, limits and modes. Finished jobs are counted only on request."""

from __future__ import annotations

import asyncpg

from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

#: The parts `live` and `served` of a statement: the unfinished jobs and the living workers of every queue.
LIVE_AND_SERVED = """
live AS (
    SELECT queue, count(*) FILTER (WHERE state = 'ready' AND due_at <= now()) AS waiting,
           count(*) FILTER (WHERE state = 'ready' AND due_at > now()) AS scheduled,
           count(*) FILTER (WHERE state = 'throttled') AS throttled,
           count(*) FILTER (WHERE state = 'no_worker') AS no_worker,
           count(*) FILTER (WHERE state = 'running') AS running,
           extract(epoch FROM now() - min(due_at) FILTER (WHERE state = 'ready' AND due_at <= now()))::float8 AS oldest
    FROM tidemill.job GROUP BY queue),
served AS (
    SELECT queue, count(*) AS workers, avg(max_concurrency)::int AS slots FROM tidemill.worker, unnest(queues) AS queue
    WHERE ended_at IS NULL AND lease_until > now() GROUP BY queue)"""

#: Every queue with its counts, limit and mode.
LIST_QUEUES = f"""
WITH {LIVE_AND_SERVED},
past AS (
    SELECT queue, count(*) FILTER (WHERE state = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE state <> 'succeeded') AS unsuccessful
    FROM tidemill.job_history WHERE $2 > 0 AND finished_at > now() - make_interval(secs => $2) GROUP BY queue),
known AS (
    SELECT queue FROM live UNION SELECT queue FROM past UNION SELECT queue FROM served
    UNION SELECT name FROM tidemill.queue
    UNION SELECT queue FROM tidemill.worker_control WHERE queue <> '*')
SELECT k.queue AS name, coalesce(waiting, 0) AS waiting, coalesce(scheduled, 0) AS scheduled,
       coalesce(throttled, 0) AS throttled, coalesce(no_worker, 0) AS no_worker,
       coalesce(running, 0) AS running, oldest, coalesce(workers, 0) AS workers, q.rate, q.burst,
       q.key_rate, q.by AS limited_by,
       ARRAY(SELECT c.host || '=' || c.mode FROM tidemill.worker_control AS c
             WHERE c.queue IN (k.queue, '*') ORDER BY 1) AS control,
       CASE WHEN $2 > 0 THEN coalesce(succeeded, 0) END AS succeeded,
       CASE WHEN $2 > 0 THEN coalesce(unsuccessful, 0) END AS unsuccessful
FROM known AS k LEFT JOIN live USING (queue) LEFT JOIN past USING (queue) LEFT JOIN served USING (queue)
LEFT JOIN tidemill.queue AS q ON q.name = k.queue
WHERE $1 OR NOT starts_with(k.queue, 'monitor:')
ORDER BY k.queue
"""

#: Names of queues that something uses: workers, limits, operators, tasks. A queue of jobs is looked up by its name.
KNOWN_QUEUES = """
SELECT $1 AS queue WHERE EXISTS (SELECT FROM tidemill.job WHERE queue = $1)
UNION SELECT unnest(queues) FROM tidemill.worker UNION SELECT name FROM tidemill.queue
UNION SELECT queue FROM tidemill.worker_control WHERE queue <> '*'
UNION SELECT template ->> 'queue' FROM tidemill.declared WHERE shape = 'task'
"""


async def known_queues(at: Database | Transaction, name: str) -> set[str]:
    """The queues that something uses; the one of this name also if only jobs do."""
    return {row["queue"] for row in await at.fetch(KNOWN_QUEUES, name)}


async def list_queues(database: Database, *, internal: bool = False, ended_within: float = 0.0) -> list[asyncpg.Record]:
    """Every queue that has jobs, workers, a limit or a mode set by an operator; `internal` includes Tidemill's own.

    With `ended_within`, jobs that ended within that many seconds are counted too.
    """
    return await database.fetch(LIST_QUEUES, internal, ended_within)
