"""The periodic sweeps of maintenance: reclaim, expire, admit, route. Each is safe to run concurrently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import asyncpg

from tidemill.core.jobs.job import ClaimedJob, Finish, Requeue
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.batches.batch_end import end_batches
from tidemill.store.jobs.claims.claims import finish_jobs, requeue_jobs
from tidemill.store.jobs.history.archive import (
    NOTIFY_CALLED,
    NOTIFY_RUNS,
    archive_sql,
    callback_sql,
    webhook_rows,
)
from tidemill.store.jobs.insert import ADMIT_THROTTLED, WAKE, notify_queues
from tidemill.store.jobs.workers import (
    END_LAPSED,
    FIND_LAPSED,
    FIND_LATE_CLAIMS,
    FIND_ORPHANS,
    FLAG_SILENT,
    HELD_BY,
    RECENTLY_ENDED,
    release_jobs,
)
from tidemill.store.runs.inbox import CANCEL_ORPHANS, EXPIRE_RUNS

_TOO_LATE = "'its deadline passed before it could ' || CASE WHEN attempt = 0 THEN 'start' ELSE 'be tried again' END"

#: Moves waiting jobs whose deadline has passed to the history without having run, or run again.
EXPIRE_JOBS = f"""
WITH gone AS (
    DELETE FROM tidemill.job WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.job WHERE deadline <= now() AND state <> 'running'
        ORDER BY deadline LIMIT 1000 FOR UPDATE SKIP LOCKED))
    RETURNING *),
{archive_sql("gone", state="'expired'", note=_TOO_LATE)},
{callback_sql(webhook_rows("gone"), origin="parent")}
SELECT id, batch_id, {NOTIFY_RUNS}, {NOTIFY_CALLED} FROM gone
"""

#: Concurrency keys with free slots and due throttled jobs.
FIND_THROTTLED = """
SELECT waiting.key FROM (
    SELECT concurrency_key AS key, count(*) FILTER (WHERE state <> 'throttled') AS taken FROM tidemill.job
    WHERE concurrency_key IS NOT NULL GROUP BY 1
    HAVING bool_or(state = 'throttled' AND due_at <= now())) AS waiting
LEFT JOIN tidemill.concurrency_key AS gate USING (key)
WHERE waiting.taken < coalesce(gate.max_concurrency, 1) ORDER BY 1 LIMIT 1000
"""

#: Makes jobs ready that waited for a worker that knows their task, once one is alive.
ROUTE_JOBS = f"""
UPDATE tidemill.job AS j SET state = CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END, note = NULL
WHERE state = 'no_worker' AND EXISTS (
    SELECT FROM tidemill.worker AS w
    WHERE w.ended_at IS NULL AND w.lease_until > now() AND j.queue = ANY (w.queues) AND j.task = ANY (w.tasks)
      AND (j.refused_by && w.signatures) IS NOT TRUE)
RETURNING {WAKE.format("")} AS wake
"""

#: Which sweeps have something to do. One statement, for most of the time none has; each condition has a small index.
FIND_SWEEPS = """
SELECT EXISTS (SELECT FROM tidemill.worker WHERE ended_at IS NULL AND lease_until < now()) AS lapsed,
       EXISTS (SELECT FROM tidemill.worker WHERE ended_at IS NULL AND flagged_at IS NULL
               AND seen_at < now() - make_interval(secs => $1)) AS silent,
       EXISTS (SELECT FROM tidemill.worker WHERE ended_at > now() - interval '1 minute') AS ended,
       EXISTS (SELECT FROM tidemill.job WHERE state = 'throttled' AND due_at <= now()) AS throttled,
       EXISTS (SELECT FROM tidemill.job WHERE deadline <= now() AND state <> 'running') AS expired,
       EXISTS (SELECT FROM tidemill.run
               WHERE deadline <= now() AND state = 'running' AND seq = 0 AND owner IS NULL) AS late_runs,
       EXISTS (SELECT FROM tidemill.job WHERE state = 'no_worker') AS no_worker,
       EXISTS (SELECT FROM tidemill.job
               WHERE cancel_reason IS NOT NULL AND run_id IS NOT NULL AND state <> 'running') AS unwanted,
       EXISTS (SELECT FROM tidemill.run AS c JOIN tidemill.run AS p ON p.id = c.parent
               WHERE c.parent IS NOT NULL AND c.ended_at IS NULL AND p.ended_at IS NOT NULL) AS orphans,
       EXISTS (SELECT FROM tidemill.batch WHERE ended_at IS NULL) AS batches,
       EXISTS (SELECT FROM tidemill.run WHERE owner IS NOT NULL
               AND owner = ANY (ARRAY(SELECT id FROM tidemill.worker WHERE ended_at IS NOT NULL))) AS abandoned
"""

#: The outcome of a job of a lost worker: the job, the worker, and how many jobs it held.
Decide = Callable[[ClaimedJob, str, int], Finish | Requeue]

AT_ONCE = 5000  # jobs of a lost worker that are reclaimed in one batch


async def find_sweeps(database: Database, *, silence_seconds: float) -> set[str]:
    """The sweeps that have something to do now, by the name of what they look for."""
    row = await database.fetchrow(FIND_SWEEPS, silence_seconds, patience=None)
    return set() if row is None else {name for name, found in row.items() if found}


async def reclaim_lapsed(database: Database, decide: Decide, *, lease_seconds: float) -> list[tuple[str, int]]:
    """End workers whose lease has lapsed and reclaim their jobs, each worker in one transaction.

    Returns each lost worker with the number of its jobs.
    """
    reclaimed = []
    for row in await database.fetch(FIND_LAPSED, lease_seconds, patience=None):
        name = f"{row['host']}:{row['pid']}#{row['id']}"
        async with database.transaction(patience=None) as connection:
            if not await connection.fetch(database.sql(END_LAPSED), row["id"], "its lease lapsed"):
                continue
            finished = await _finish_all(database, connection, row["id"], name, decide)
        reclaimed.append((name, finished))
    return reclaimed


async def release_late_claims(database: Database) -> int:
    """Release jobs that workers claimed at the moment when they ended; returns how many jobs."""
    ended = [row["id"] for row in await database.fetch(RECENTLY_ENDED, patience=None)]
    return await _release_of(database, await database.fetch(FIND_LATE_CLAIMS, ended, patience=None)) if ended else 0


async def release_orphans(database: Database) -> int:
    """Release jobs whose worker has ended without releasing them, at any time; returns how many."""
    return await _release_of(database, await database.fetch(FIND_ORPHANS, patience=None))


async def _release_of(database: Database, workers: Sequence[asyncpg.Record]) -> int:
    """Release the jobs of workers that have ended. They are not to blame: a lost worker's jobs end with its lease."""
    total = 0
    for row in workers:
        async with database.transaction(patience=None) as connection:
            note = f"its worker #{row['worker_id']} had ended"
            total += len(await release_jobs(database, connection, row["worker_id"], note=note))
    return total


async def flag_silent(database: Database, *, silence_seconds: float) -> list[asyncpg.Record]:
    """Flag workers that own running jobs and have stopped reporting; each is returned once."""
    return await database.fetch(FLAG_SILENT, silence_seconds, patience=None)


async def expire_jobs(database: Database) -> int:
    """Expire waiting jobs whose deadline has passed; returns how many."""
    rows = await database.fetch(EXPIRE_JOBS, patience=None)
    await end_batches(database, {row["batch_id"] for row in rows if row["batch_id"] is not None})
    return len(rows)


async def expire_runs(database: Database) -> int:
    """Expire runs that have not begun when their deadline has passed; returns how many."""
    return len(await database.fetch(EXPIRE_RUNS, patience=None))


async def admit_due(database: Database) -> None:
    """Admit throttled jobs that are due and whose key has free slots."""
    keys = [row[0] for row in await database.fetch(FIND_THROTTLED, patience=None)]
    if keys:
        await database.fetch(ADMIT_THROTTLED, keys, patience=None)


async def cancel_orphans(database: Database) -> int:
    """Request the cancellation of runs whose parent had ended before they were stored; returns how many."""
    row = await database.fetchrow(CANCEL_ORPHANS, patience=None)
    return row["n"] if row else 0


async def route_jobs(database: Database) -> int:
    """Make jobs ready that waited for a worker that knows their task; returns how many."""
    async with database.transaction(patience=None) as connection:
        rows = await connection.fetch(database.sql(ROUTE_JOBS))
        if rows:
            await notify_queues(database, connection, {row["wake"] for row in rows})
    return len(rows)


async def _finish_all(database: Database, connection: Executor, worker_id: int, name: str, decide: Decide) -> int:
    total = 0
    while rows := await connection.fetch(database.sql(HELD_BY), worker_id, AT_ONCE):
        outcomes: Sequence[Finish | Requeue] = [decide(_lost(row), name, len(rows)) for row in rows]
        finished = [outcome for outcome in outcomes if isinstance(outcome, Finish)]
        await finish_jobs(database, connection, worker_id, finished)
        await requeue_jobs(
            database, connection, worker_id, [outcome for outcome in outcomes if isinstance(outcome, Requeue)]
        )
        total += len(rows)
        if len(rows) < AT_ONCE:
            break  # Another pass would read all jobs again.
    return total


def _lost(row: asyncpg.Record) -> ClaimedJob:
    return ClaimedJob(
        id=row["id"],
        attempt=row["attempt"],
        queue=row["queue"],
        task=row["task"],
        args=b"",
        options=row["options"],
        failures=row["failures"],
        losses=row["losses"],
        keyed=True,
        expired=False,
        cancel_reason=row["cancel_reason"],
        suspicions=row["suspicions"],
    )
