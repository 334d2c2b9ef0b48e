"""What could go on now: due and running jobs, runs and messages to them, and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import DOES_FIRE

#: Counts work of these queues, or of all: jobs that are due or running, runs that wait for an owner, messages to runs.
COUNT_WORK = f"""
SELECT (SELECT count(*) FROM tidemill.job WHERE (state = 'running' OR state = 'ready' AND due_at <= now())
        AND ($1::text[] IS NULL OR queue = ANY ($1))) AS jobs,
       (SELECT count(*) FROM tidemill.run
        WHERE state = 'running' AND owner IS NULL AND (awake OR start_at <= now())) AS runs,
       (SELECT count(*) FROM tidemill.inbox WHERE due_at <= now() AND NOT suspended) AS messages,
       (SELECT count(*) FROM tidemill.schedule WHERE least(next_fire, check_at) <= now() AND {DOES_FIRE}) AS schedules
"""

#: How much the living processes of a host work on.
COUNT_RUNNING = """
SELECT coalesce(sum(running), 0)::bigint FROM tidemill.worker
WHERE host = $1 AND pid = ANY ($2::int[]) AND ended_at IS NULL
"""


class WorkLeft(NamedTuple):
    """What could go on now, without a move of the clock."""

    jobs: int
    runs: int
    messages: int
    schedules: int


async def count_work(database: Database, queues: Sequence[str] | None) -> WorkLeft:
    """What could go on now, of the jobs only those of these queues."""
    (row,) = await database.fetch(COUNT_WORK, None if queues is None else list(queues))
    return WorkLeft(*row)


async def count_running(database: Database, host: str, pids: Sequence[int]) -> int:
    """How many jobs and runs these processes work on, as they reported last."""
    (row,) = await database.fetch(COUNT_RUNNING, host, list(pids))
    return row[0]
