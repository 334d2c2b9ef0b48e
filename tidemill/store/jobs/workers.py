"""Workers as the database sees them: one row per incarnation, one lease to renew, and what operators want.

All times are the database's own: hosts whose clocks disagree cannot make each other look dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import asyncpg
import msgspec

from tidemill.core.codec import encode
from tidemill.core.duration import parse_rate
from tidemill.core.errors import ConfigError, StoreError
from tidemill.core.job import check_name
from tidemill.store.database import Database, Executor
from tidemill.store.transaction import Transaction

Mode = Literal["run", "pause", "drain", "stop"]

#: Notifies workers that an operator's request or a cancel request has been written.
CONTROL_CHANNEL = "control"

#: More jobs than this start at once nowhere.
MOST_BURST = 1e9

#: A new incarnation, and the jobs that waited for a worker that knows their task.
REGISTER_WORKER = """
WITH me AS (
    INSERT INTO tidemill.worker (host, pid, queues, tasks, concurrency, versions, lease_until)
    VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7))
    RETURNING id),
known AS (
    UPDATE tidemill.job SET state = CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END, note = NULL
    WHERE state = 'no_worker' AND task = ANY ($4) AND queue = ANY ($3))
SELECT id FROM me
"""

#: Still alive. Returns no row once this incarnation has been ended because its lease had lapsed.
RENEW_LEASE = """
UPDATE tidemill.worker SET lease_until = now() + make_interval(secs => $2), seen_at = now(), status = $3,
                           running = $4, models = $5, flagged_at = NULL
WHERE id = $1 AND ended_at IS NULL
RETURNING flagged_at
"""

#: The mode that operators set for each of these queues on this host; the most specific one wins.
READ_CONTROL = """
SELECT DISTINCT ON (wanted.queue) wanted.queue, c.mode
FROM unnest($2::text[]) AS wanted(queue)
JOIN tidemill.worker_control AS c ON c.host IN ($1, '*') AND c.queue IN (wanted.queue, '*')
ORDER BY wanted.queue, (c.host = '*')::int + (c.queue = '*')::int
"""

#: The worker says goodbye.
END_WORKER = """
UPDATE tidemill.worker SET ended_at = now(), end_reason = $2, status = 'ended', running = 0
WHERE id = $1 AND ended_at IS NULL
"""

#: A process is known to be dead.
EXPIRE_LEASE = """
UPDATE tidemill.worker SET lease_until = now() - interval '1 second' WHERE host = $1 AND pid = $2 AND ended_at IS NULL
"""

#: Workers whose lease has lapsed. After a restart of the database everyone gets one lease's time to come back.
FIND_LAPSED = """
SELECT id, host, pid, lease_until FROM tidemill.worker
WHERE ended_at IS NULL AND lease_until < now()
  AND pg_postmaster_start_time() < now() - make_interval(secs => $1)
"""

#: End a lapsed incarnation for good: from here on it can renew nothing.
END_LAPSED = """
UPDATE tidemill.worker SET ended_at = now(), end_reason = $2, status = 'lost', running = 0
WHERE id = $1 AND ended_at IS NULL AND lease_until < now()
RETURNING id
"""

#: Jobs in the hands of a worker, or of one that no longer exists. All jobs are read for it: an index would be paid for
#: by every claim, a tenth of its cost, and this is rare.
HELD_BY = """
SELECT id, attempt, worker_id, queue, task, options, failures, losses, cancel_reason
FROM tidemill.job WHERE state = 'running' AND worker_id = $1 LIMIT $2
"""

#: Jobs whose worker has ended without giving them back.
FIND_ORPHANS = """
SELECT DISTINCT j.worker_id FROM tidemill.job AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id
WHERE j.state = 'running' AND (w.id IS NULL OR w.ended_at IS NOT NULL)
"""

#: Workers that ended in the last minute and yet own running jobs: a claim of theirs came through after their end.
FIND_LATE_CLAIMS = """
SELECT DISTINCT worker_id FROM tidemill.job WHERE state = 'running' AND worker_id = ANY ($1)
"""
RECENTLY_ENDED = "SELECT id FROM tidemill.worker WHERE ended_at > now() - interval '1 minute'"

#: Flag workers that have not been heard of for `$1` seconds while they own running jobs.
FLAG_SILENT = """
UPDATE tidemill.worker AS w SET flagged_at = now()
WHERE ended_at IS NULL AND flagged_at IS NULL AND seen_at < now() - make_interval(secs => $1)
  AND EXISTS (SELECT FROM tidemill.job AS j WHERE j.worker_id = w.id AND j.state = 'running')
RETURNING id, host, pid, queues, extract(epoch FROM now() - seen_at)::float8 AS silent
"""

#: Set the mode of a queue on a host; returns the mode before.
SET_CONTROL = """
WITH before AS (SELECT mode FROM tidemill.worker_control WHERE host = $1 AND queue = $2),
put AS (
    INSERT INTO tidemill.worker_control (host, queue, mode, by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (host, queue) DO UPDATE SET mode = excluded.mode, by = excluded.by, at = now())
SELECT coalesce((SELECT mode FROM before), 'run') AS before, pg_notify('tidemill_control', '')
"""

#: Back to normal for a queue on a host; '*' as the host or queue takes back every narrower mode as well.
CLEAR_CONTROL = """
WITH gone AS (
    DELETE FROM tidemill.worker_control WHERE $1 IN (host, '*') AND $2 IN (queue, '*') RETURNING mode)
SELECT coalesce((SELECT string_agg(DISTINCT mode, ', ') FROM gone), 'run') AS before,
       pg_notify('tidemill_control', '')
"""

#: An exception from a broader mode that still holds.
EXEMPT = """
INSERT INTO tidemill.worker_control (host, queue, mode, by)
SELECT $1, $2, 'run', $3 WHERE EXISTS (
    SELECT FROM tidemill.worker_control WHERE host IN ($1, '*') AND queue IN ($2, '*') AND mode <> 'run')
"""

#: Workers for people: living ones first, then those that ended in the last `$1` seconds.
LIST_WORKERS = """
SELECT w.id, w.host, w.pid, w.queues, w.concurrency, w.versions, w.models, w.status, w.running, w.started_at, w.seen_at,
       w.lease_until, w.flagged_at, w.ended_at, w.end_reason, cardinality(w.tasks) AS tasks,
       ARRAY(SELECT c.host || '/' || c.queue || '=' || c.mode FROM tidemill.worker_control AS c
             WHERE c.host IN (w.host, '*') AND (c.queue = '*' OR c.queue = ANY (w.queues)) ORDER BY 1) AS control
FROM tidemill.worker AS w
WHERE w.ended_at IS NULL OR w.ended_at > now() - make_interval(secs => $1)
ORDER BY w.ended_at IS NOT NULL, w.host, w.id
"""

#: Remember the rate limits that the application declares.
DECLARE_QUEUES = """
INSERT INTO tidemill.queue AS q (name, rate, burst)
SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[])
ON CONFLICT (name) DO UPDATE SET rate = excluded.rate, burst = excluded.burst
    WHERE q.by IS NULL AND (q.rate, q.burst) IS DISTINCT FROM (excluded.rate, excluded.burst)
"""

#: An operator's rate limit, which the application's own does not change from then on; what it was before.
SET_LIMIT = """
WITH before AS (SELECT rate FROM tidemill.queue WHERE name = $1),
put AS (
    INSERT INTO tidemill.queue (name, rate, burst, by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE SET rate = excluded.rate, burst = excluded.burst, by = excluded.by)
SELECT (SELECT rate FROM before), pg_notify('tidemill_control', '')
"""

#: Which of these queues have a rate limit.
LIMITED_QUEUES = "SELECT name FROM tidemill.queue WHERE name = ANY ($1) AND rate IS NOT NULL"


class WorkerCard(msgspec.Struct, frozen=True):
    """What a worker tells of itself when it registers."""

    host: str
    pid: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    versions: dict[str, str]


class QueueLimit(msgspec.Struct, frozen=True):
    """A queue's shared rate limit: jobs per second, and how many may start at once after a pause."""

    name: str
    rate: float | None = None
    burst: float | None = None

    @classmethod
    def of(cls, name: str, rate: str | float | None, burst: float | None = None) -> QueueLimit:
        """A limit as people write it: `rate` as in "100/s"; a burst is a tenth of a second's worth if not given."""
        check_name("queue", name)
        per_second = None if rate is None else parse_rate(rate, what=f"rate of queue {name}")
        if burst is None:
            return cls(name, per_second, per_second and min(max(1.0, per_second / 10), MOST_BURST))
        if not burst >= 1:
            raise ConfigError(f"queue {name}: a burst of {burst} would never let a job start: it is 1 or more")
        if burst > MOST_BURST:
            raise ConfigError(f"queue {name}: a burst of {burst} is no limit at all: it is at most {MOST_BURST:.0f}")
        return cls(name, per_second, burst)


async def register_worker(database: Database, card: WorkerCard, *, lease_seconds: float) -> int:
    """Write a new incarnation; returns its id, which no other process ever had."""
    rows = await database.fetch(
        REGISTER_WORKER,
        card.host,
        card.pid,
        list(card.queues),
        list(card.tasks),
        card.concurrency,
        encode(card.versions),
        lease_seconds,
        patience=None,
    )
    return rows[0]["id"]


async def renew_lease(
    database: Database,
    connection: Executor,
    worker_id: int,
    *,
    lease_seconds: float,
    status: str,
    running: int,
    models: Sequence[str] | None = None,
) -> bool:
    """Prove to be alive; False means that this incarnation has been taken for dead and is over."""
    rows = await connection.fetch(database.sql(RENEW_LEASE), worker_id, lease_seconds, status, running, models)
    return bool(rows)


async def end_worker(database: Database, worker_id: int, reason: str) -> None:
    """End an incarnation that stops by itself."""
    await database.fetch(END_WORKER, worker_id, reason, patience=5.0)


async def read_control(database: Database, host: str, queues: Sequence[str]) -> dict[str, Mode]:
    """The queues for which operators want something other than `run`."""
    rows = await database.fetch(READ_CONTROL, host, list(queues), patience=None)
    return {row["queue"]: row["mode"] for row in rows if row["mode"] != "run"}


async def set_control(tx: Transaction, host: str, queue: str, mode: Mode) -> str:
    """Store what an operator wants of a queue on a host, and its audit entry; returns the mode before."""
    if mode == "run":
        before = await tx.fetchval(CLEAR_CONTROL, host, queue)
        await tx.execute(EXEMPT, host, queue, tx.by)
    else:
        before = await tx.fetchval(SET_CONTROL, host, queue, mode, tx.by)
    await tx.audit(f"worker.{mode}", f"{host}/{queue}", before=before, after=mode)
    return str(before)


async def list_workers(database: Database, *, ended_within: float = 3600.0) -> list[asyncpg.Record]:
    return await database.fetch(LIST_WORKERS, ended_within)


async def declare_queues(database: Database, limits: Sequence[QueueLimit]) -> None:
    """Store the rate limits of queues, for all workers to share."""
    if limits:
        await database.fetch(
            DECLARE_QUEUES, [q.name for q in limits], [q.rate for q in limits], [q.burst for q in limits]
        )


async def limited_queues(database: Database, queues: Sequence[str]) -> list[str]:
    """Which of these queues have a rate limit now."""
    return [row["name"] for row in await database.fetch(LIMITED_QUEUES, list(queues), patience=None)]


async def set_limit(tx: Transaction, limit: QueueLimit) -> None:
    """Set a queue's rate limit as an operator: at once for all workers, and whatever the code declares."""
    before = await tx.fetchval(SET_LIMIT, limit.name, limit.rate, limit.burst, tx.by)
    await tx.audit("queue.limit", limit.name, before={"rate": before}, after={"rate": limit.rate})


async def expire_lease(database: Database, host: str, pid: int) -> None:
    """Say that a worker process is dead, as only the one who saw it die can: its jobs need not wait for its lease."""
    try:
        await database.fetch(EXPIRE_LEASE, host, pid, patience=5.0)
    except asyncpg.UndefinedTableError as error:
        raise StoreError("there is no schema yet") from error
