"""What operators do to jobs: cancel, retry. Each writes its audit entry with the change."""

from __future__ import annotations

from tidemill.core.errors import NotFoundError
from tidemill.store.audit import targets, write_audit
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.archive import TOLD, archive_sql
from tidemill.store.jobs.insert import ADMIT_GATED, notify_queues

#: Cancel waiting jobs at once: they move to the history unrun.
CANCEL_WAITING = f"""
WITH gone AS (
    DELETE FROM tidemill.job WHERE id = ANY (ARRAY(
        SELECT id FROM tidemill.job WHERE id = ANY ($1::bigint[]) AND state <> 'running' FOR UPDATE))
    RETURNING *),
{archive_sql("gone", state="'cancelled'", note="$2::text")}
SELECT id, concurrency_key, {TOLD} FROM gone
"""

#: Ask the workers of running jobs to cancel them.
CANCEL_RUNNING = """
WITH asked AS (
    UPDATE tidemill.job SET cancel_reason = $2
    WHERE id = ANY ($1::bigint[]) AND state = 'running' AND cancel_reason IS NULL
    RETURNING id)
SELECT id, pg_notify('tidemill_control', '') FROM asked
"""

#: Waiting jobs get their turn now.
RETRY_WAITING = """
UPDATE tidemill.job SET due_at = now(), note = $2,
    state = CASE WHEN state = 'ready' OR concurrency_key IS NULL THEN 'ready' ELSE 'gated' END
WHERE id = ANY ($1::bigint[]) AND state <> 'running'
RETURNING id, queue, concurrency_key
"""

#: Finished jobs come back as new jobs that say which one they repeat.
RETRY_FINISHED = """
INSERT INTO tidemill.job (
    queue, task, args, priority, tags, options, required_model, origin, unique_key, concurrency_key, concurrency_max,
    state)
SELECT queue, task, args, priority, tags, options, options ->> 'required_model',
       (coalesce(origin::jsonb, '{}') || jsonb_build_object('by', $2::text, 'retry_of', id))::json,
       unique_key, concurrency_key, concurrency_max, CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'gated' END
FROM tidemill.job_history WHERE id = ANY ($1::bigint[])
ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
RETURNING id, queue, concurrency_key, (origin::jsonb ->> 'retry_of')::bigint AS retry_of
"""

#: Nobody claims, ends or puts back these jobs until the transaction ends.
HOLD_JOBS = "SELECT FROM tidemill.job WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE"

FIND_JOBS = """
SELECT id, state FROM tidemill.job WHERE id = ANY ($1::bigint[])
UNION SELECT id, state FROM tidemill.job_history WHERE id = ANY ($1::bigint[])
"""


class Outcome:
    """Which jobs an operator's action reached: `done` at once, `asked` (or enqueued anew), or left `unchanged`."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.asked: list[int] = []
        self.unchanged: list[int] = []


async def cancel_jobs(database: Database, ids: list[int], *, by: str) -> Outcome:
    """Cancel waiting jobs at once and ask for running ones; finished ones stay as they are."""
    outcome = Outcome()
    reason = f"cancelled by {by}"
    async with database.transaction(patience=30.0) as connection:
        before = await _require(database, connection, ids)
        waiting = await connection.fetch(database.sql(CANCEL_WAITING), ids, reason)
        running = await connection.fetch(database.sql(CANCEL_RUNNING), ids, reason)
        outcome.done = [row["id"] for row in waiting]
        outcome.asked = [row["id"] for row in running]
        outcome.unchanged = sorted(set(ids) - set(outcome.done) - set(outcome.asked))
        await _admit(database, connection, [row["concurrency_key"] for row in waiting])
        if outcome.done or outcome.asked:
            await write_audit(
                database,
                connection,
                who=by,
                action="job.cancel",
                target=targets(outcome.done + outcome.asked),
                before={id: before[id] for id in outcome.done + outcome.asked},
                after={"cancelled": outcome.done, "asked": outcome.asked},
            )
    return outcome


async def retry_jobs(database: Database, ids: list[int], *, by: str) -> Outcome:
    """Give waiting jobs their turn now, and enqueue finished ones again as new jobs."""
    outcome = Outcome()
    async with database.transaction(patience=30.0) as connection:
        before = await _require(database, connection, ids)
        waiting = await connection.fetch(database.sql(RETRY_WAITING), ids, f"retried by {by}")
        finished = await connection.fetch(database.sql(RETRY_FINISHED), ids, by)
        outcome.done = [row["id"] for row in waiting]
        outcome.asked = [row["id"] for row in finished]
        left = set(ids) - set(outcome.done) - {row["retry_of"] for row in finished}
        outcome.unchanged = sorted(left)
        rows = [*waiting, *finished]
        await _admit(database, connection, [row["concurrency_key"] for row in rows])
        if rows:
            await notify_queues(database, connection, {row["queue"] for row in rows})
            await write_audit(
                database,
                connection,
                who=by,
                action="job.retry",
                target=targets(ids),
                before={id: before[id] for id in ids if id not in left},
                after={"due_now": outcome.done, "enqueued": outcome.asked},
            )
    return outcome


async def _require(database: Database, connection: Executor, ids: list[int]) -> dict[int, str]:
    """The states of jobs, all of which must be there; unfinished ones keep theirs until the transaction ends."""
    await connection.execute(database.sql(HOLD_JOBS), ids)
    found = {row["id"]: row["state"] for row in await connection.fetch(database.sql(FIND_JOBS), ids)}
    if missing := sorted(set(ids) - set(found)):
        raise NotFoundError(f"there is no job {', '.join(map(str, missing[:10]))}: `tidemill jobs` lists them")
    return found


async def _admit(database: Database, connection: Executor, keys: list[str | None]) -> None:
    if wanted := sorted({key for key in keys if key is not None}):
        await connection.execute(database.sql(ADMIT_GATED), wanted)
