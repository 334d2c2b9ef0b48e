"""Read access to jobs: all details of one job, and counts per queue."""

from __future__ import annotations

import asyncpg

from tidemill.store.database import Database
from tidemill.store.large_values import SHOWN_BYTES, VALUES, cut, place_of

# An unfinished job with its worker, its queue and what it waits for.
_LIVE_STORY = """
SELECT j.*, w.host AS worker_host, w.pid AS worker_pid, extract(epoch FROM j.due_at - now())::float8 AS due_in,
       extract(epoch FROM now() - j.started_at)::float8 AS running_for,
       CASE WHEN j.state = 'ready' THEN (SELECT count(*) FROM tidemill.job AS o
            WHERE o.queue = j.queue AND o.state = 'ready' AND o.due_at <= now()
                  AND o.fair_key IS NOT DISTINCT FROM j.fair_key AND
                  (-o.priority, o.due_at, o.id) < (-j.priority, j.due_at, j.id)) END AS ahead,
       (SELECT count(*) FROM tidemill.worker AS v
        WHERE v.ended_at IS NULL AND v.lease_until > now() AND j.queue = ANY (v.queues)) AS serving,
       (SELECT count(*) FROM tidemill.worker AS v
        WHERE v.ended_at IS NULL AND v.lease_until > now() AND j.queue = ANY (v.queues)
              AND j.task = ANY (v.tasks)) AS knowing,
       (SELECT count(*) FROM tidemill.worker AS v
        WHERE v.ended_at IS NULL AND v.lease_until > now() AND j.queue = ANY (v.queues)
              AND j.task = ANY (v.tasks) AND v.running = v.max_concurrency) AS knowing_and_full,
       ARRAY(SELECT json_build_object('mode', c.mode, 'by', c.by, 'host', c.host, 'queue', c.queue)::text
             FROM tidemill.worker_control AS c WHERE c.queue IN (j.queue, '*') AND c.mode <> 'run'
             ORDER BY c.host, c.queue) AS held,
       q.rate, coalesce(j.key_rate, q.key_rate) AS most_a_second,
       (greatest(0, k.filled - extract(epoch FROM now() - k.filled_at)::float8 * coalesce(j.key_rate, q.key_rate))
           + 1 - coalesce(j.key_burst, q.key_burst)) / coalesce(j.key_rate, q.key_rate) AS rate_wait,
       (SELECT max_concurrency FROM tidemill.concurrency_key WHERE key = j.concurrency_key) AS slots,
       CASE WHEN j.state = 'throttled' THEN ARRAY(
            SELECT o.id || CASE WHEN o.state = 'running' THEN '' ELSE ' (' || o.state || ')' END
            FROM tidemill.job AS o WHERE o.concurrency_key = j.concurrency_key
              AND o.state IN ('running', 'ready', 'no_worker') ORDER BY o.id LIMIT 6) END AS holders
FROM tidemill.job AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id
LEFT JOIN tidemill.queue AS q ON q.name = j.queue LEFT JOIN tidemill.rate_key AS k ON k.key = j.rate_key
"""

# The columns of a job, with the beginning of values that are too large for an answer.
_SHOWN = (
    "id", "due_at", "created_at", "deadline", "started_at", "worker_id", "attempt", "failures", "losses", "priority",
    "state", "queue", "task", "options", "origin", "tags", "unique_key", "concurrency_key", "max_concurrency",
    "rate_key", "run_id", "work", "batch_id", "note",
)  # fmt: skip
_ARGS, _RESULT = (cut(f"j.{name}", place_of(f"job/{name}", "j.id")) for name in ("args", "result"))
#: A sealed text cannot be cut.
_IS_SEALED = "error->>'message' LIKE '$sealed:%'"
#: The errors of all attempts; of more than fits an answer, the last one and the ends of the others.
_ERRORS = f"""CASE WHEN octet_length(j.errors::text) <= {SHOWN_BYTES} THEN j.errors ELSE (
    SELECT json_agg(CASE WHEN n = json_array_length(j.errors) THEN error ELSE (error::jsonb || jsonb_build_object(
               'message', CASE WHEN {_IS_SEALED} THEN error->>'message' ELSE left(error->>'message', 300) END,
               'traceback', '(the end of it; all errors in full: {VALUES}/' || {place_of("job/errors", "j.id")} || ')'
               || chr(10) || CASE WHEN {_IS_SEALED} THEN '' ELSE right(error->>'traceback', 800) END))::json END
               ORDER BY n)
    FROM json_array_elements(j.errors) WITH ORDINALITY AS each (error, n)) END"""
_FAIR_KEY = "nullif(split_part(j.fair_key, chr(31), 1), '') AS fair_key"  # without the rate key of its lane
_SHOWN_OF_BOTH = f"{', '.join(f'j.{name}' for name in _SHOWN)}, {_FAIR_KEY}, {_ARGS} AS args, {_ERRORS} AS errors"
_SHOWN_OF_LIVE = f"{_SHOWN_OF_BOTH}, j.progress, j.required_model, j.cancel_reason"

#: The same as people are shown it, with large values cut.
DESCRIBE_LIVE = f"{_LIVE_STORY.replace('j.*', _SHOWN_OF_LIVE)} WHERE j.id = $1"
DESCRIBE_PAST = f"""
SELECT {_SHOWN_OF_BOTH}, j.finished_at, {_RESULT} AS result,
       w.host AS worker_host, w.pid AS worker_pid
FROM tidemill.job_history AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id WHERE j.id = $1
"""

#: Everything about one unfinished job, and what it waits for.
SHOW_LIVE = f"{_LIVE_STORY} WHERE j.id = $1"

#: The same for unfinished jobs of a run: running ones first, then the oldest.
SHOW_LIVE_OF_RUN = f"{_LIVE_STORY} WHERE j.run_id = $1 ORDER BY j.state = 'running' DESC, j.id LIMIT $2"

#: Everything about one finished job.
SHOW_PAST = """
SELECT h.*, w.host AS worker_host, w.pid AS worker_pid FROM tidemill.job_history AS h
LEFT JOIN tidemill.worker AS w ON w.id = h.worker_id WHERE h.id = $1
"""

#: The unfinished jobs among these.
FIND_UNFINISHED = "SELECT id FROM tidemill.job WHERE id = ANY ($1::bigint[])"

#: Running jobs that have reported progress.
RUNNING_WITH_PROGRESS = """
SELECT id, task, queue, progress, note, extract(epoch FROM now() - started_at)::float8 AS running_for
FROM tidemill.job WHERE state = 'running' AND progress IS NOT NULL ORDER BY id LIMIT $1
"""

#: The same expressions as in the partial indexes on what jobs and runs follow from.
_FOLLOWS = """
coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'), 'r' || (origin ->> 'run')) = $1
    AND origin::text NOT LIKE '{"by":"app %' AND origin::text NOT LIKE '{"by" : "SQL by %'
    AND origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%', '%"run"%'])"""

#: No other job repeats a finished one; it would not have ended before it.
IS_NOT_REPEATED = f"""
NOT EXISTS (SELECT FROM tidemill.job AS again WHERE {_FOLLOWS} AND origin ->> 'retry_of' IS NOT NULL)
AND NOT EXISTS (SELECT FROM tidemill.job_history AS again WHERE {_FOLLOWS} AND origin ->> 'retry_of' IS NOT NULL
                AND again.finished_at >= job_history.finished_at)
""".replace("$1", "job_history.id::text")

#: What a job or a step of a run started or a batch's end enqueued, and the jobs that repeat a job, oldest first.
LIST_FOLLOWERS = f"""
SELECT id::text, 'job' AS kind, task AS name, state, created_at FROM tidemill.job WHERE {_FOLLOWS}
UNION ALL
SELECT id::text, 'job', task, state, created_at FROM tidemill.job_history WHERE {_FOLLOWS}
UNION ALL
SELECT 'r' || id, 'run', workflow, state, created_at FROM tidemill.run WHERE {_FOLLOWS}
ORDER BY created_at, id LIMIT $2
"""


async def show_job(database: Database, job_id: int) -> asyncpg.Record | None:
    """Everything that is known about a job, unfinished or finished."""
    return await database.fetchrow(SHOW_LIVE, job_id) or await database.fetchrow(SHOW_PAST, job_id)


async def describe_job(database: Database, job_id: int) -> asyncpg.Record | None:
    """The same as people are shown it: the beginning of values that are too large for an answer."""
    return await database.fetchrow(DESCRIBE_LIVE, job_id) or await database.fetchrow(DESCRIBE_PAST, job_id)


async def find_unfinished(database: Database, ids: list[int]) -> set[int]:
    """The jobs among these that have not ended."""
    return {row["id"] for row in await database.fetch(FIND_UNFINISHED, ids, patience=None)}


async def show_jobs_of_run(database: Database, run_id: int, *, limit: int) -> list[asyncpg.Record]:
    """Everything that is known about a run's unfinished jobs; running ones come first."""
    return await database.fetch(SHOW_LIVE_OF_RUN, run_id, limit)


async def running_with_progress(database: Database, *, limit: int = 8) -> list[asyncpg.Record]:
    return await database.fetch(RUNNING_WITH_PROGRESS, limit)


async def list_followers(database: Database, of: str, *, limit: int) -> list[asyncpg.Record]:
    """What a job (7) started and the jobs that repeat it, or what the end of a batch (b7) has enqueued."""
    return await database.fetch(LIST_FOLLOWERS, of, limit)
