"""Inserting jobs: one, many, or in the caller's own transaction.

Every path uses the same statements with one text parameter, the jobs as JSON: any driver's connection can run them,
and tens of thousands of jobs are inserted at nearly the speed of COPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from tidemill.core.codec import encode
from tidemill.core.jobs.job import JobRef, NewJob
from tidemill.store.connection.caller_connection import Statements
from tidemill.store.database import Database, Executor

T = TypeVar("T")

#: Jobs due within this many seconds are notified; an idle worker's own poll, which is more frequent, finds later ones.
SOON = 60.0

#: Notifies workers that the queue named in the payload has ready jobs.
JOBS_CHANNEL = "jobs"

_NEW_JOBS = """
    ROWS FROM (json_to_recordset($1::text::json) AS (
        queue text, task text, args json, priority smallint, delay float8, at float8, deadline float8,
        deadline_in float8, unique_key text, unique_for float8, concurrency_key text, max_concurrency int,
        fair_key text, tags text[], options json, origin json, batch bigint)) WITH ORDINALITY AS new
"""

#: The same of jobs of which some have a rate key.
_NEW_RATED_JOBS = _NEW_JOBS.replace("fair_key text", "fair_key text, rate_key text, key_rate float8, key_burst float8")

#: What the column `fair_key` of a job has: its lane, as `NewJob.lane`.
_LANE = "CASE WHEN rate_key IS NULL THEN fair_key ELSE coalesce(fair_key, '') || chr(31) || rate_key END"

#: The payload of the wake-up for a job: its queue, and for one with a fair key also its lane. A queue with an empty
#: lane stands for any lanes of it.
WAKE = "{0}queue || coalesce(chr(10) || {0}priority || {0}fair_key, '')"
MOST_LANES = 20

_DUE = "coalesce(to_timestamp(new.at), now() + make_interval(secs => coalesce(new.delay, 0)))"

_DEADLINE = "coalesce(to_timestamp(new.deadline), now() + make_interval(secs => new.deadline_in))"

_INSERT = f"""
WITH stored AS (
    INSERT INTO tidemill.job (queue, task, args, priority, due_at, deadline, tags, options, origin,
                              required_model{{into}})
    SELECT new.queue, new.task, new.args, coalesce(new.priority, 5), {_DUE}, {_DEADLINE},
           new.tags, new.options, new.origin, new.options ->> 'required_model'{{values}}
    FROM {{jobs}} ORDER BY new.ordinality
    RETURNING id, queue, due_at{{into}}{{priority}}),
news AS ({{news}})
SELECT id, (SELECT count(*) FROM news) FROM stored
"""

#: Notifies the lanes of `stored` jobs; those of very many lanes by their queues.
_NOTIFY_LANES = f"""
    SELECT pg_notify('tidemill_jobs', wake) FROM (
        SELECT DISTINCT CASE WHEN fair_key IS NULL OR lanes <= {MOST_LANES} THEN wake ELSE queue || chr(10) END AS wake
        FROM (SELECT queue, fair_key, {WAKE.format("")} AS wake FROM stored) AS jobs,
             (SELECT count(DISTINCT (queue, priority, fair_key)) AS lanes FROM stored) AS all_of_them
        WHERE $2::boolean) AS wakes"""

#: Stores jobs without keys; notifies the workers of their queues when `$2` is true.
INSERT_JOBS = _INSERT.format(
    jobs=_NEW_JOBS,
    into="",
    values="",
    priority="",
    news=f"""
    SELECT pg_notify('tidemill_jobs', queue) FROM (SELECT DISTINCT queue FROM stored
    WHERE $2::boolean AND due_at <= now() + interval '{SOON} seconds') AS queues""",
)

#: The same for jobs of which some have a fair key or a batch.
INSERT_FAIR_JOBS = _INSERT.format(
    jobs=_NEW_JOBS,
    into=", fair_key, batch_id",
    values=", new.fair_key, new.batch",
    priority=", priority",
    news=_NOTIFY_LANES,
)

#: The same for jobs of which some have a rate key.
INSERT_RATED_JOBS = _INSERT.format(
    jobs=_NEW_RATED_JOBS,
    into=", fair_key, batch_id, rate_key, key_rate, key_burst",
    values=f", {_LANE}, new.batch, new.rate_key, new.key_rate, new.key_burst",
    priority=", priority",
    news=_NOTIFY_LANES,
)

_ALIKE_COLUMNS = """
    queue, task, args, priority, due_at, deadline, tags, options, origin, required_model, batch_id"""

_ALIKE_VALUES = """
    $2, $3, {args}, $4, coalesce(to_timestamp($5::float8), now() + make_interval(secs => $6::float8)),
    coalesce(to_timestamp($7::float8), now() + make_interval(secs => $8::float8)), $9::text[], $10::json, $11::json,
    $12::text, $13::bigint"""

#: Stores jobs that differ only in their arguments; notifies the workers of their queue when `$14` is true.
INSERT_ALIKE = f"""
WITH stored AS (
    INSERT INTO tidemill.job ({_ALIKE_COLUMNS})
    SELECT {_ALIKE_VALUES.format(args="args")} FROM unnest($1::json[]) AS args
    RETURNING id),
news AS (SELECT pg_notify('tidemill_jobs', $2) WHERE $14::boolean)
SELECT id, (SELECT count(*) FROM news) FROM stored
"""

#: Stores one job, which costs the server a quarter less than a list of one.
INSERT_ONE = f"""
INSERT INTO tidemill.job ({_ALIKE_COLUMNS}) VALUES ({_ALIKE_VALUES.format(args="$1::json")}) RETURNING id
"""
INSERT_ONE_AND_NOTIFY = f"""
WITH stored AS ({INSERT_ONE}) SELECT id, pg_notify('tidemill_jobs', $2) FROM stored
"""

#: Stores jobs with unique or concurrency keys; jobs whose key is taken are skipped (created = false).
INSERT_KEYED_JOBS = f"""
WITH new AS MATERIALIZED (
    SELECT nextval('tidemill.job_id_seq') AS id, new.*, {_DUE} AS due_at, {_DEADLINE} AS ends_at
    FROM {_NEW_RATED_JOBS}),
windows AS (
    INSERT INTO tidemill.unique_window AS w (task, unique_key, job_id, until)
    SELECT DISTINCT ON (task, unique_key) task, unique_key, id, now() + make_interval(secs => unique_for)
    FROM new WHERE unique_for IS NOT NULL AND NOT EXISTS (
        SELECT FROM tidemill.job j WHERE j.task = new.task AND j.unique_key = new.unique_key)
    ORDER BY task, unique_key, ordinality
    ON CONFLICT (task, unique_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until
        WHERE w.until <= now()
    RETURNING job_id),
gates AS ( -- a new limit applies at once; a missing row is created when the jobs are admitted
    UPDATE tidemill.concurrency_key AS c SET max_concurrency = last.most FROM (
        SELECT DISTINCT ON (concurrency_key) concurrency_key AS key, coalesce(max_concurrency, 1) AS most
        FROM new WHERE concurrency_key IS NOT NULL ORDER BY concurrency_key, ordinality DESC) AS last
    WHERE c.key = last.key AND c.max_concurrency <> last.most),
stored AS (
    INSERT INTO tidemill.job (id, queue, task, args, priority, due_at, deadline, tags, options, origin,
                              required_model, unique_key, concurrency_key, max_concurrency, fair_key, rate_key,
                              key_rate, key_burst, batch_id, state, note)
    SELECT id, queue, task, args, coalesce(priority, 5), due_at, ends_at, tags, options, origin,
           options ->> 'required_model',
           unique_key, concurrency_key,
           CASE WHEN concurrency_key IS NOT NULL THEN coalesce(max_concurrency, 1) END,
           {_LANE}, rate_key, key_rate, key_burst, batch,
           CASE WHEN concurrency_key IS NULL THEN 'ready' ELSE 'throttled' END,
           CASE WHEN concurrency_key IS NOT NULL THEN 'waits for a slot of concurrency key ' || concurrency_key END
    FROM new WHERE unique_for IS NULL OR id IN (SELECT job_id FROM windows)
    ORDER BY task, unique_key, ordinality -- one order for all callers prevents deadlocks
    ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
    RETURNING id, queue, priority, fair_key),
news AS ({_NOTIFY_LANES})
SELECT new.id, stored.id IS NOT NULL AS created, (SELECT count(*) FROM news)
FROM new LEFT JOIN stored USING (id) ORDER BY new.ordinality
"""

#: Gives a waiting job with this key other arguments and another deadline, and moves it to a later moment; moves below a
#: tenth of the wait are not worth a new place in the queue. One that runs already loses its key to another one.
_MOVE = """
UPDATE tidemill.job AS j SET args = $3::text::json,
    deadline = coalesce(to_timestamp($5::float8), now() + make_interval(secs => $6::float8)), due_at = CASE
    WHEN now() + make_interval(secs => $4::float8 * 0.9) > j.due_at THEN now() + make_interval(secs => $4::float8)
    ELSE j.due_at END
"""
DEBOUNCE = f"""
WITH held AS MATERIALIZED (
    SELECT id, state FROM tidemill.job WHERE task = $1::text AND unique_key = $2::text FOR UPDATE),
freed AS (
    UPDATE tidemill.job AS j SET unique_key = NULL FROM held WHERE j.id = held.id AND held.state = 'running')
{_MOVE} FROM held WHERE j.id = held.id AND held.state <> 'running' RETURNING j.id
"""

#: The same for a job that waits, in a statement that needs no transaction around it: most calls find one.
DEBOUNCE_WAITING = (
    f"{_MOVE} WHERE j.task = $1::text AND j.unique_key = $2::text AND j.state <> 'running' RETURNING j.id"
)

#: Deletes the window of a job that was not stored because another job had its key.
DROP_WINDOW = "DELETE FROM tidemill.unique_window WHERE task = $1 AND unique_key = $2 AND job_id = $3 RETURNING job_id"

#: The holder of a unique key: an unfinished job, or a window that has not ended.
FIND_KEY_HOLDER = """
SELECT id FROM tidemill.job WHERE task = $1 AND unique_key = $2
UNION ALL
SELECT job_id FROM tidemill.unique_window WHERE task = $1 AND unique_key = $2 AND until > now()
LIMIT 1
"""

#: Admits throttled jobs of these keys as far as their limits allow.
ADMIT_THROTTLED = "SELECT tidemill.admit_throttled($1)"

#: Notifies the workers of these queues and lanes.
NOTIFY_QUEUES = "SELECT pg_notify('tidemill_jobs', wake) FROM unnest($1::text[]) AS wake"


def pack(jobs: Sequence[NewJob]) -> str:
    """Encode jobs as the JSON text that the insert statements take."""
    return encode(jobs).decode()


def insert_statements(database: Database, jobs: Sequence[NewJob], *, notify: bool = True) -> Statements[list[JobRef]]:
    """The statements that store jobs, for any driver: yields each with its parameters and receives its rows."""
    if database.codec is not None:
        jobs = [msgspec.structs.replace(job, args=msgspec.Raw(database.seal(bytes(job.args)))) for job in jobs]
    return _insert_statements(jobs, notify=notify)


def _insert_statements(jobs: Sequence[NewJob], *, notify: bool) -> Statements[list[JobRef]]:
    if any(job.debounce is not None for job in jobs):
        return (yield from _debounced_statements(jobs, notify=notify))
    if not any(job.keyed for job in jobs):
        statement = INSERT_JOBS
        if any(job.rate_key is not None for job in jobs):
            statement = INSERT_RATED_JOBS
        elif any(job.fair_key is not None or job.batch is not None for job in jobs):
            statement = INSERT_FAIR_JOBS
        rows = yield statement, (pack(jobs), notify)
        return [JobRef(row[0]) for row in rows]
    rows = yield INSERT_KEYED_JOBS, (pack(jobs), notify)
    if gates := sorted({job.concurrency_key for job in jobs if job.concurrency_key is not None}):
        yield ADMIT_THROTTLED, (gates,)
    refs: list[JobRef] = []
    for job, row in zip(jobs, rows, strict=True):
        if row[1]:
            refs.append(JobRef(row[0]))
            continue
        if job.unique_for is not None:
            yield DROP_WINDOW, (job.task, job.unique_key, row[0])
        holder = yield FIND_KEY_HOLDER, (job.task, job.unique_key)
        if holder:
            refs.append(JobRef(holder[0][0], created=False))
        else:
            # The holder finished between the two statements, so the key is free now.
            refs += yield from _insert_statements([job], notify=notify)
    return refs


def _debounced_statements(jobs: Sequence[NewJob], *, notify: bool) -> Statements[list[JobRef]]:
    """The same for jobs of which some replace the waiting job of their key; in one order, to prevent deadlocks."""
    refs: dict[int, JobRef] = {}
    for index in sorted(range(len(jobs)), key=lambda index: (jobs[index].task, jobs[index].unique_key or "")):
        job = jobs[index]
        alone = job if job.debounce is None else msgspec.structs.replace(job, debounce=None, delay=job.debounce)
        while index not in refs:
            if job.debounce is not None and (moved := (yield DEBOUNCE, _debounce_values(job, bytes(job.args)))):
                refs[index] = JobRef(moved[0][0], created=False)
                break
            ref = (yield from _insert_statements([alone], notify=notify))[0]
            if ref.created or job.debounce is None:
                refs[index] = ref  # Otherwise another caller has stored a job with this key meanwhile: replace it.
    return [refs[index] for index in range(len(jobs))]


def _debounce_values(job: NewJob, args: bytes) -> tuple[Any, ...]:
    return job.task, job.unique_key, args.decode(), job.debounce, job.deadline, job.deadline_in


async def debounce_waiting(database: Database, connection: Executor, job: NewJob) -> JobRef | None:
    """Give the waiting job with this key other arguments and a later moment; None if no job waits with it."""
    values = _debounce_values(job, database.seal(bytes(job.args)))
    moved = await connection.fetch(database.sql(DEBOUNCE_WAITING), *values)
    return JobRef(moved[0][0], created=False) if moved else None


async def insert_jobs(
    database: Database, connection: Executor, jobs: Sequence[NewJob], *, notify: bool
) -> list[JobRef]:
    """Store jobs in the connection's transaction and return a reference to each."""
    return await run_statements(database, connection, insert_statements(database, jobs, notify=notify))


async def run_statements(database: Database, connection: Executor, statements: Statements[T]) -> T:
    """Run statements for any driver on one of our own connections."""
    try:
        statement, params = next(statements)
        while True:
            statement, params = statements.send(await connection.fetch(database.sql(statement), *params))
    except StopIteration as done:
        return done.value


async def insert_alike(
    database: Database, connection: Executor, job: NewJob, arguments: Sequence[bytes], *, notify: bool
) -> list[JobRef]:
    """Store one job like this per set of arguments: the fastest path for many."""
    sealed = arguments if database.codec is None else database.seal_each(arguments)
    rows = await connection.fetch(database.sql(INSERT_ALIKE), sealed, *_alike_values(job), notify and _is_notified(job))
    return [JobRef(row[0]) for row in rows]


async def insert_one(database: Database, connection: Executor, job: NewJob, *, notify: bool) -> JobRef:
    """Store one job without keys: the fastest path for one."""
    statement = INSERT_ONE_AND_NOTIFY if notify and _is_notified(job) else INSERT_ONE
    rows = await connection.fetch(database.sql(statement), database.seal(bytes(job.args)), *_alike_values(job))
    return JobRef(rows[0][0])


def _is_notified(job: NewJob) -> bool:
    return job.at is not None or job.delay <= SOON


def _alike_values(job: NewJob) -> tuple[Any, ...]:
    """The parameters from `$2` on of the statements that store jobs of one kind."""
    return (
        job.queue,
        job.task,
        job.priority,
        job.at,
        job.delay,
        job.deadline,
        job.deadline_in,
        job.tags,
        None if job.options is None else encode(job.options),
        None if job.origin is None else encode(job.origin),
        None if job.options is None else job.options.required_model,
        job.batch,
    )


def wake_of(job: NewJob) -> str:
    """The payload of the wake-up for a job, as `WAKE`."""
    return job.queue if job.lane is None else f"{job.queue}\n{job.priority}{job.lane}"


async def notify_queues(database: Database, connection: Executor, wakes: Iterable[str]) -> None:
    """Notify workers: the payloads are those of `WAKE`."""
    given = sorted(wakes)
    if len(given) > MOST_LANES:
        given = sorted({wake if "\n" not in wake else wake[: wake.index("\n") + 1] for wake in given})
    await connection.execute(database.sql(NOTIFY_QUEUES), given)
