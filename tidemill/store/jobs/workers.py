"""Workers in the database: one row per incarnation, one lease to renew, and the modes set by operators.

All times are the database's own, so that clock skew between hosts cannot make a lease lapse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypedDict

import asyncpg
import msgspec

from tidemill.core.codec import encode
from tidemill.core.duration import parse_limit
from tidemill.core.errors import ConfigError, StoreError
from tidemill.core.jobs.job import check_key, check_name
from tidemill.store.database import Database, Executor, columns
from tidemill.store.jobs.insert import WAKE, notify_queues
from tidemill.store.transaction import Transaction

Mode = Literal["run", "pause", "drain", "stop"]

#: Notifies workers of an operator's request or a cancel request.
CONTROL_CHANNEL = "control"

#: Tells workers that there are suspects.
NOTIFY_CONTROL = "SELECT pg_notify('tidemill_control', '')"

#: The largest weight of a fair key.
MOST_WEIGHT = 1000

# Ends the processes that a process has started for suspects: they end with it, and their work is not to blame.
_END_CHILDREN = """
    UPDATE tidemill.worker AS child SET ended_at = now(), end_reason = 'the process that started it has ended',
                                        status = 'ended', running = 0
    FROM {0} WHERE child.host = {0}.host AND child.parent_pid = {0}.pid AND child.ended_at IS NULL
"""

#: Registers a new incarnation, and makes jobs ready that waited for a worker that knows their task and its arguments.
REGISTER_WORKER = """
WITH me AS (
    INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, events, signatures, parent_pid,
                                 lease_until, reads_ends)
    VALUES ($1, $2, $3, $4, $5, $6, $8, $9, $10, now() + make_interval(secs => $7), true)
    RETURNING id),
known AS (
    UPDATE tidemill.job SET state = CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END, note = NULL
    WHERE state = 'no_worker' AND task = ANY ($4) AND queue = ANY ($3) AND (refused_by && $9::text[]) IS NOT TRUE)
SELECT id FROM me
"""

#: Renews the lease. Returns no row if this incarnation was ended because its lease had lapsed.
RENEW_LEASE = """
UPDATE tidemill.worker SET lease_until = now() + make_interval(secs => $2), seen_at = now(), status = $3,
                           running = $4, models = $5, trouble = $6, lost_threads = $7, held = $8, flagged_at = NULL
WHERE id = $1 AND ended_at IS NULL
RETURNING flagged_at
"""

#: The mode that operators have set for each of these queues on this host; the most specific one wins.
READ_CONTROL = """
SELECT DISTINCT ON (wanted.queue) wanted.queue, c.mode
FROM unnest($2::text[]) AS wanted(queue)
JOIN tidemill.worker_control AS c ON c.host IN ($1, '*') AND c.queue IN (wanted.queue, '*')
ORDER BY wanted.queue, (c.host = '*')::int + (c.queue = '*')::int
"""

#: The mode that operators have set for all queues of this host, which holds for runs too.
READ_HOST_CONTROL = """
SELECT mode FROM tidemill.worker_control WHERE host IN ($1, '*') AND queue = '*' ORDER BY host = '*' LIMIT 1
"""

#: Ends a worker that stops by itself. Runs of a version that only it had are for any run worker now.
END_WORKER = f"""
WITH me AS (
    UPDATE tidemill.worker SET ended_at = now(), end_reason = $2, status = 'ended', running = 0
    WHERE id = $1 AND ended_at IS NULL
    RETURNING host, pid, versions),
children AS ({_END_CHILDREN.format("me")})
SELECT CASE WHEN versions::text LIKE '%"run %' THEN pg_notify('tidemill_runs', 'wake') END FROM me
"""

#: Lets the lease of a dead process lapse at once, and keeps why it died.
EXPIRE_LEASE = f"""
WITH dead AS (SELECT $1::text AS host, $2::int AS pid),
children AS ({_END_CHILDREN.format("dead")})
UPDATE tidemill.worker SET lease_until = now() - interval '1 second', trouble = $3
WHERE host = $1 AND pid = $2 AND ended_at IS NULL
"""

#: Lets the lease of this process lapse at once: it is about to end, and any of its work may be the cause.
EXPIRE_OWN_LEASE = f"""
WITH me AS (SELECT host, pid FROM tidemill.worker WHERE id = $1),
children AS ({_END_CHILDREN.format("me")})
UPDATE tidemill.worker SET lease_until = now() - interval '1 second' WHERE id = $1 AND ended_at IS NULL
"""

#: Workers whose lease has lapsed. After a restart of the database every worker gets one lease period to reconnect.
FIND_LAPSED = """
SELECT id, host, pid, lease_until FROM tidemill.worker
WHERE ended_at IS NULL AND lease_until < now()
  AND pg_postmaster_start_time() < now() - make_interval(secs => $1)
"""

#: Ends a lapsed incarnation for good: it can no longer renew its lease.
END_LAPSED = """
UPDATE tidemill.worker SET ended_at = now(), end_reason = concat_ws(': ', $2::text, trouble), status = 'lost',
                           running = 0
WHERE id = $1 AND ended_at IS NULL AND lease_until < now()
RETURNING id
"""

#: Running jobs of a worker, or of one that no longer exists. This scans all jobs: an index would add a tenth to the
#: cost of every claim, and this is rare.
HELD_BY = """
SELECT id, attempt, worker_id, queue, task, options, failures, losses, cancel_reason, suspicions
FROM tidemill.job WHERE state = 'running' AND worker_id = $1 LIMIT $2
"""

#: Releases jobs that the table says a worker holds, but that it does not run.
RELEASE_JOBS = f"""
UPDATE tidemill.job SET state = CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END,
    worker_id = NULL, started_at = NULL, note = $3
WHERE worker_id = $1 AND state = 'running' AND id <> ALL ($2::bigint[])
RETURNING id, {WAKE.format("")} AS wake, suspicions
"""

#: Running jobs whose worker has ended without releasing them.
FIND_ORPHANS = """
SELECT DISTINCT j.worker_id FROM tidemill.job AS j LEFT JOIN tidemill.worker AS w ON w.id = j.worker_id
WHERE j.state = 'running' AND (w.id IS NULL OR w.ended_at IS NOT NULL)
"""

#: Workers that ended in the last minute but own running jobs: a claim was committed after their end.
FIND_LATE_CLAIMS = """
SELECT DISTINCT worker_id FROM tidemill.job WHERE state = 'running' AND worker_id = ANY ($1)
"""
RECENTLY_ENDED = "SELECT id FROM tidemill.worker WHERE ended_at > now() - interval '1 minute'"

#: Flags workers that have not reported for `$1` seconds while they own running jobs.
FLAG_SILENT = """
UPDATE tidemill.worker AS w SET flagged_at = now()
WHERE ended_at IS NULL AND flagged_at IS NULL AND seen_at < now() - make_interval(secs => $1)
  AND EXISTS (SELECT FROM tidemill.job AS j WHERE j.worker_id = w.id AND j.state = 'running')
RETURNING id, host, pid, queues, extract(epoch FROM now() - seen_at)::float8 AS silent
"""

#: Sets the mode of a queue on a host; returns the previous mode.
SET_CONTROL = """
WITH before AS (SELECT mode FROM tidemill.worker_control WHERE host = $1 AND queue = $2),
put AS (
    INSERT INTO tidemill.worker_control (host, queue, mode, by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (host, queue) DO UPDATE SET mode = excluded.mode, by = excluded.by, at = now())
SELECT coalesce((SELECT mode FROM before), 'run') AS before, pg_notify('tidemill_control', '')
"""

#: Resets the mode of a queue on a host; '*' as the host or queue also clears every narrower mode.
CLEAR_CONTROL = """
WITH gone AS (
    DELETE FROM tidemill.worker_control WHERE $1 IN (host, '*') AND $2 IN (queue, '*') RETURNING mode)
SELECT coalesce((SELECT string_agg(DISTINCT mode, ', ') FROM gone), 'run') AS before,
       pg_notify('tidemill_control', '')
"""

#: Adds an exception from a broader mode that still applies.
EXEMPT = """
INSERT INTO tidemill.worker_control (host, queue, mode, by)
SELECT $1, $2, 'run', $3 WHERE EXISTS (
    SELECT FROM tidemill.worker_control WHERE host IN ($1, '*') AND queue IN ($2, '*') AND mode <> 'run')
"""

_LINE = """
SELECT w.id, w.host, w.pid, w.queues, w.max_concurrency, w.versions, w.models, w.status, w.running, w.started_at,
       w.seen_at, w.lease_until, w.flagged_at, w.trouble, w.lost_threads, w.ended_at, w.end_reason,
       cardinality(w.tasks) AS tasks,
       ARRAY(SELECT c.host || '/' || c.queue || '=' || c.mode FROM tidemill.worker_control AS c
             WHERE c.host IN (w.host, '*') AND (c.queue = '*' OR c.queue = ANY (w.queues)) ORDER BY 1) AS control
FROM tidemill.worker AS w
"""

#: The list of workers: living ones first, then those that ended in the last `$1` seconds.
LIST_WORKERS = f"""{_LINE}
WHERE w.ended_at IS NULL OR w.ended_at > now() - make_interval(secs => $1)
ORDER BY w.ended_at IS NOT NULL, w.host, w.id
"""

READ_WORKER = f"{_LINE} WHERE w.id = $1"

READ_WORKER_TASKS = "SELECT unnest(tasks) AS task FROM tidemill.worker WHERE id = $1 ORDER BY 1"

#: The runs that a worker drives.
READ_WORKER_RUNS = "SELECT id, workflow, created_at FROM tidemill.run WHERE owner = $1 ORDER BY id LIMIT $2"

#: The jobs that a worker has just reported to run; NULL if it is silent, or of a version that does not report them.
READ_HELD = """
SELECT CASE WHEN queues = '{}' OR ended_at IS NOT NULL THEN '{}'
            WHEN seen_at > now() - interval '10 seconds' THEN CASE WHEN running = 0 THEN '{}' ELSE held END END AS held
FROM tidemill.worker WHERE id = $1
"""

_WORKER_JOBS = """
SELECT id, task, queue, attempt, started_at FROM tidemill.job
WHERE state = 'running' AND worker_id = $1 {held} ORDER BY started_at, id LIMIT $2
"""

#: The jobs that a worker runs, the longest first: those of them that it has reported.
READ_REPORTED_JOBS = _WORKER_JOBS.format(held="AND id = ANY ($3::bigint[])")

#: The same of one that may hold jobs that it has never reported. This scans all jobs, as `HELD_BY` does.
READ_WORKER_JOBS = _WORKER_JOBS.format(held="")

#: Processes that did the same on the same host and have ended, the newest first.
READ_ENDED_BEFORE = """
SELECT e.id, e.pid, e.started_at, e.ended_at, e.status, e.end_reason
FROM tidemill.worker AS w JOIN tidemill.worker AS e ON e.host = w.host AND e.queues = w.queues
WHERE w.id = $1 AND e.ended_at IS NOT NULL ORDER BY e.ended_at DESC, e.id DESC LIMIT $2
"""

#: Stores the rate limits that the application declares.
DECLARE_QUEUES = """
INSERT INTO tidemill.queue AS q (name, rate, burst, key_rate, key_burst)
SELECT * FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[], $5::float8[])
ON CONFLICT (name) DO UPDATE SET rate = excluded.rate, burst = excluded.burst, key_rate = excluded.key_rate,
                                 key_burst = excluded.key_burst
    WHERE q.by IS NULL AND (q.rate, q.burst, q.key_rate, q.key_burst)
        IS DISTINCT FROM (excluded.rate, excluded.burst, excluded.key_rate, excluded.key_burst)
"""

#: Sets an operator's rate limit, which overrides the application's; returns the previous rate.
SET_LIMIT = """
WITH before AS (SELECT rate FROM tidemill.queue WHERE name = $1),
put AS (
    INSERT INTO tidemill.queue (name, rate, burst, by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (name) DO UPDATE SET rate = excluded.rate, burst = excluded.burst, by = excluded.by)
SELECT (SELECT rate FROM before), pg_notify('tidemill_control', '')
"""

#: The same for the rate of each rate key of a queue.
SET_KEY_LIMIT = SET_LIMIT.replace("rate", "key_rate").replace("burst", "key_burst")

#: Stores the weights of fair keys that the application declares, and removes those that it no longer declares.
DECLARE_WEIGHTS = """
WITH given AS (SELECT * FROM unnest($2::text[], $3::text[], $4::int[]) AS g(queue, fair_key, weight)),
gone AS (
    DELETE FROM tidemill.fair_weight AS w WHERE queue = ANY ($1) AND by IS NULL
    AND NOT EXISTS (SELECT FROM given AS g WHERE (g.queue, g.fair_key) = (w.queue, w.fair_key)))
INSERT INTO tidemill.fair_weight AS w (queue, fair_key, weight) SELECT * FROM given
ON CONFLICT (queue, fair_key) DO UPDATE SET weight = excluded.weight
    WHERE w.by IS NULL AND w.weight <> excluded.weight
"""

#: Sets an operator's weight of a fair key, which overrides the application's; returns the previous one.
SET_WEIGHT = """
WITH before AS (SELECT weight FROM tidemill.fair_weight WHERE queue = $1 AND fair_key = $2),
put AS (
    INSERT INTO tidemill.fair_weight (queue, fair_key, weight, by) VALUES ($1, $2, $3, $4)
    ON CONFLICT (queue, fair_key) DO UPDATE SET weight = excluded.weight, by = excluded.by)
SELECT coalesce((SELECT weight FROM before), 1) AS before, pg_notify('tidemill_control', '')
"""

#: The weights of the fair keys of these queues.
READ_WEIGHTS = "SELECT queue, fair_key, weight FROM tidemill.fair_weight WHERE queue = ANY ($1)"

#: Which of these queues have a rate limit.
LIMITED_QUEUES = "SELECT name FROM tidemill.queue WHERE name = ANY ($1) AND rate IS NOT NULL"


class WorkerCard(msgspec.Struct, frozen=True):
    """What a worker registers about itself."""

    host: str
    pid: int
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    max_concurrency: int
    versions: dict[str, str]
    events: tuple[str, ...] = ()
    """The event classes that the process of a run worker has defined."""
    signatures: tuple[str, ...] = ()
    """What the tasks take, as hashes: a job that one of them has refused is not for this worker."""
    parent_pid: int | None = None
    """The process that has started it for suspects, and that it ends with."""


class QueueOptions(TypedDict, total=False):
    """The options of `app.queue`."""

    rate: str | float | None
    """How fast its jobs may start, over all workers together: "100/s"."""
    burst: float | None
    """How many may start at once after a quiet time."""
    key_rate: str | float | None
    """How fast its jobs with one rate key may start, unless their task says it."""
    key_burst: float | None
    """How many of one rate key may start at once after a quiet time."""
    weights: Mapping[str, int] | None
    """The shares of fair keys."""


class QueueLimit(msgspec.Struct, frozen=True):
    """A queue's shared rate limit: jobs per second, and how many may start at once after an idle period."""

    name: str
    rate: float | None = None
    burst: float | None = None
    weights: Mapping[str, int] = {}
    """The shares of fair keys."""
    key_rate: float | None = None
    key_burst: float | None = None
    """The same for the jobs of each rate key whose task has no rate."""

    @classmethod
    def of(
        cls,
        name: str,
        rate: str | float | None = None,
        burst: float | None = None,
        weights: Mapping[str, int] | None = None,
        key_rate: str | float | None = None,
        key_burst: float | None = None,
    ) -> QueueLimit:
        """A limit from user input: `rate` as in "100/s"; the default burst is the jobs of a tenth of a second."""
        check_name("queue", name)
        weights = {check_key("fair_key", key): check_weight(weight) for key, weight in (weights or {}).items()}
        limits = parse_limit(rate, burst, what=f"queue {name}")
        of_keys = parse_limit(key_rate, key_burst, what=f"rate keys of queue {name}")
        return cls(name, *limits, weights, *of_keys)


def check_weight(weight: int) -> int:
    """The weight of a fair key, if it is one."""
    if not isinstance(weight, int) or isinstance(weight, bool) or not 1 <= weight <= MOST_WEIGHT:
        raise ConfigError(f"a weight of {weight!r} is not usable: use a whole number from 1 to {MOST_WEIGHT}")
    return weight


async def register_worker(database: Database, card: WorkerCard, *, lease_seconds: float) -> int:
    """Register a new incarnation; returns its id, which is never reused."""
    rows = await database.fetch(
        REGISTER_WORKER,
        card.host,
        card.pid,
        list(card.queues),
        list(card.tasks),
        card.max_concurrency,
        encode(card.versions),
        lease_seconds,
        list(card.events) or None,
        list(card.signatures) or None,
        card.parent_pid,
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
    trouble: str | None = None,
    lost_threads: int = 0,
    held: Sequence[int] | None = None,
) -> bool:
    """Renew the lease; False means that this incarnation was ended because its lease had lapsed."""
    given = (worker_id, lease_seconds, status, running, models, trouble, lost_threads, held)
    rows = await connection.fetch(database.sql(RENEW_LEASE), *given)
    return bool(rows)


async def end_worker(database: Database, worker_id: int, reason: str) -> None:
    """End an incarnation that stops by itself."""
    await database.fetch(END_WORKER, worker_id, reason, patience=5.0)


async def read_control(database: Database, host: str, queues: Sequence[str]) -> dict[str, Mode]:
    """The queues whose mode is not `run`."""
    rows = await database.fetch(READ_CONTROL, host, list(queues), patience=None)
    return {row["queue"]: row["mode"] for row in rows if row["mode"] != "run"}


async def read_host_control(database: Database, host: str) -> Mode:
    """The mode of everything on a host."""
    rows = await database.fetch(READ_HOST_CONTROL, host, patience=None)
    return rows[0]["mode"] if rows else "run"


async def set_control(tx: Transaction, host: str, queue: str, mode: Mode) -> str:
    """Set the mode of a queue on a host and write its audit entry; returns the previous mode."""
    if mode == "run":
        before = await tx.fetchval(CLEAR_CONTROL, host, queue)
        await tx.execute(EXEMPT, host, queue, tx.by)
    else:
        before = await tx.fetchval(SET_CONTROL, host, queue, mode, tx.by)
    await tx.audit(f"worker.{mode}", f"{host}/{queue}", before=before, after=mode)
    return str(before)


async def list_workers(database: Database, *, ended_within: float = 3600.0) -> list[asyncpg.Record]:
    return await database.fetch(LIST_WORKERS, ended_within)


class StoredWorker(NamedTuple):
    """A worker process, what it holds, and the processes before it."""

    line: asyncpg.Record
    tasks: list[str]
    jobs: list[asyncpg.Record]
    runs: list[asyncpg.Record]
    ended: list[asyncpg.Record]


async def read_worker(database: Database, worker_id: int, *, most: int) -> StoredWorker | None:
    """A worker, with up to `most` of its jobs, its runs and the processes that ended before it."""
    line = await database.fetchrow(READ_WORKER, worker_id)
    if line is None:
        return None
    return StoredWorker(
        line,
        [row["task"] for row in await database.fetch(READ_WORKER_TASKS, worker_id)],
        await _read_jobs(database, worker_id, most),
        await database.fetch(READ_WORKER_RUNS, worker_id, most),
        await database.fetch(READ_ENDED_BEFORE, worker_id, most),
    )


async def _read_jobs(database: Database, worker_id: int, most: int) -> list[asyncpg.Record]:
    row = await database.fetchrow(READ_HELD, worker_id)
    if row is None or row["held"] is None:
        return await database.fetch(READ_WORKER_JOBS, worker_id, most)
    return await database.fetch(READ_REPORTED_JOBS, worker_id, most, row["held"]) if row["held"] else []


async def declare_queues(database: Database, limits: Sequence[QueueLimit]) -> None:
    """Store the rate limits of queues, which all workers share."""
    if limits:
        rates = [(q.name, q.rate, q.burst, q.key_rate, q.key_burst) for q in limits]
        await database.fetch(DECLARE_QUEUES, *columns(rates, 5))
        weights = [(q.name, key, weight) for q in limits for key, weight in q.weights.items()]
        await database.fetch(DECLARE_WEIGHTS, [q.name for q in limits], *columns(weights, 3))


async def limited_queues(database: Database, queues: Sequence[str]) -> list[str]:
    """The queues among these that have a rate limit now."""
    return [row["name"] for row in await database.fetch(LIMITED_QUEUES, list(queues), patience=None)]


async def read_weights(database: Database, queues: Sequence[str]) -> dict[str, dict[str, int]]:
    """The weights of fair keys, by queue."""
    found: dict[str, dict[str, int]] = {}
    for row in await database.fetch(READ_WEIGHTS, list(queues), patience=None):
        found.setdefault(row["queue"], {})[row["fair_key"]] = row["weight"]
    return found


async def set_weight(tx: Transaction, queue: str, fair_key: str, weight: int) -> None:
    """Set the weight of a fair key as an operator: at once for all workers, in place of what the code declares."""
    check_name("queue", queue)
    check_key("fair_key", fair_key)
    before = await tx.fetchval(SET_WEIGHT, queue, fair_key, check_weight(weight), tx.by)
    await tx.audit("queue.weight", queue, before={fair_key: before}, after={fair_key: weight})


async def set_limit(tx: Transaction, limit: QueueLimit) -> None:
    """Set a queue's rate limit as an operator: at once for all workers, in place of what the code declares."""
    before = await tx.fetchval(SET_LIMIT, limit.name, limit.rate, limit.burst, tx.by)
    await tx.audit("queue.limit", limit.name, before={"rate": before}, after={"rate": limit.rate})


async def set_key_limit(tx: Transaction, limit: QueueLimit) -> None:
    """The same for the rate of each rate key of a queue."""
    before = await tx.fetchval(SET_KEY_LIMIT, limit.name, limit.key_rate, limit.key_burst, tx.by)
    await tx.audit("queue.limit", limit.name, before={"key_rate": before}, after={"key_rate": limit.key_rate})


async def expire_lease(database: Database, host: str, pid: int, why: str | None = None) -> None:
    """Let the lease of a process that died lapse at once. Only its supervisor, which saw it die, may call this."""
    try:
        await database.fetch(EXPIRE_LEASE, host, pid, why, patience=5.0)
    except asyncpg.UndefinedTableError as error:
        raise StoreError("there is no schema yet: run `tidemill db migrate` or `tidemill maintenance`") from error


async def release_jobs(
    database: Database, connection: Executor, worker_id: int, held: Sequence[int] = (), *, note: str
) -> list[int]:
    """Put back the jobs of a worker that it does not hold, with nothing counted against them; returns their ids."""
    rows = await connection.fetch(database.sql(RELEASE_JOBS), worker_id, list(held), note)
    if rows:
        await notify_queues(database, connection, {row[1] for row in rows})
    if any(row[2] for row in rows):
        await connection.execute(database.sql(NOTIFY_CONTROL))
    return [row[0] for row in rows]
