"""What happens in the engine itself, as events: work that failed, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import DOES_FIRE

#: What has happened between two moments: jobs and runs that failed for good, and processes that were lost.
READ_MOMENTS = """
SELECT * FROM (
SELECT 'failed_jobs' AS kind, 'task ' || task AS entity, 'job ' || id AS id, finished_at AS at,
       concat('job ', id, ' ', state, coalesce(': ' || CASE WHEN message LIKE '$sealed:%' THEN message
                                                           ELSE left(message, 200) END, ': ' || note)) AS detail
FROM (SELECT *, errors -> -1 ->> 'message' AS message FROM tidemill.job_history) AS jobs
WHERE state IN ('failed', 'expired') AND finished_at >= to_timestamp($1) AND finished_at < to_timestamp($2)
UNION ALL
SELECT 'failed_runs', 'workflow ' || workflow, 'run ' || id, ended_at, 'run r' || id || ' ' || state
FROM tidemill.run
WHERE state IN ('failed', 'timed_out', 'expired') AND ended_at >= to_timestamp($1) AND ended_at < to_timestamp($2)
UNION ALL
SELECT 'lost_workers', 'host ' || host, 'worker ' || id, ended_at,
       'process ' || pid || ' was lost: ' || coalesce(end_reason, 'its lease expired')
FROM tidemill.worker
WHERE status = 'lost' AND ended_at >= to_timestamp($1) AND ended_at < to_timestamp($2)
) AS moments WHERE (at, id) > (to_timestamp($1), $4) ORDER BY at, id LIMIT $3
"""

#: What is not as it should be now: since when, and how many. Of large tables no more than 10 000 rows are counted.
READ_CONDITIONS = f"""
SELECT 'late_jobs' AS kind, 'queue ' || queue AS entity, min(due_at) AS since, count(*) AS count,
       'jobs are due and not started, one is job ' || min(id) AS detail
FROM (SELECT queue, due_at, id FROM tidemill.job
      WHERE state <> 'running' AND due_at < now() - make_interval(secs => $1) LIMIT 10000) AS late GROUP BY queue
UNION ALL
SELECT 'runs_need_attention', 'workflow ' || workflow, min(created_at), count(*),
       'runs need attention, the first is r' || min(id)
FROM tidemill.run WHERE state = 'needs_attention' GROUP BY workflow
UNION ALL
SELECT 'dead_letters', 'stream ' || stream, min(buried_at), count(*), 'dead letters, one is d' || min(id)
FROM (SELECT stream, buried_at, id FROM tidemill.dead_letter ORDER BY id DESC LIMIT 10000) AS dead GROUP BY stream
UNION ALL
SELECT 'stale_states', 'stage ' || pipeline || '/' || stage, min(first_at), count(*),
       'states cannot be built, the first is ' || min(entity)
FROM tidemill.state_failure WHERE first_at < now() - make_interval(secs => $2) GROUP BY pipeline, stage
UNION ALL
SELECT 'silent_workers', 'host ' || host, min(lease_until), count(*), 'processes are silent, the first is ' || min(pid)
FROM tidemill.worker WHERE ended_at IS NULL AND lease_until < now() - make_interval(secs => $3) GROUP BY host
UNION ALL
SELECT 'missed_schedules', 'schedule ' || name, next_fire, 1, 'it did not fire'
FROM tidemill.schedule WHERE {DOES_FIRE} AND next_fire < now() - make_interval(secs => $4)
"""


class EngineLimits(msgspec.Struct, frozen=True):
    """From how many seconds on something is not as it should be."""

    late: float = 300.0
    stale: float = 3600.0
    silent: float = 30.0
    schedule: float = 120.0


async def read_engine_moments(
    database: Database, since: float, until: float, limit: int, *, after: str
) -> Sequence[asyncpg.Record]:
    """What has happened between two moments, oldest first; of what happened at the first one, what follows `after`."""
    return await database.fetch(READ_MOMENTS, since, until, limit, after)


async def read_engine_conditions(database: Database, limits: EngineLimits) -> Sequence[asyncpg.Record]:
    """What is not as it should be now."""
    return await database.fetch(READ_CONDITIONS, limits.late, limits.stale, limits.silent, limits.schedule)
