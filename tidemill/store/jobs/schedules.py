"""Schedules in the database: the row lock and the next fire time make each fire happen once.

Any number of schedulers may run: each claims due rows that no other scheduler holds, and stores the jobs and the next
fire time in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import asyncpg
import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import NotFoundError, TidemillError
from tidemill.core.job import JobRef, NewJob, Origin
from tidemill.core.schedule import FirePlan, Schedule, next_fire
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.transaction import Transaction

#: Notifies schedulers that a schedule was added, changed, resumed or removed.
SCHEDULES_CHANNEL = "schedules"
#: What declares a schedule: the program, unless it says otherwise.
PROGRAM = "program"

#: Declares schedules; a changed spec gets a new next fire time, an unchanged one keeps it.
UPSERT_SCHEDULE = """
INSERT INTO tidemill.schedule AS s (name, task, queue, spec, job, catchup, jitter, next_fire, decided, declared_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8), $9, $10)
ON CONFLICT (name) DO UPDATE SET task = excluded.task, queue = excluded.queue, spec = excluded.spec,
    job = excluded.job, catchup = excluded.catchup, jitter = excluded.jitter, declared_by = excluded.declared_by,
    next_fire = CASE WHEN s.spec::text = excluded.spec::text THEN s.next_fire ELSE excluded.next_fire END,
    decided = CASE WHEN s.spec::text = excluded.spec::text THEN s.decided ELSE excluded.decided END
"""

#: Deletes schedules that these no longer declare.
PRUNE_SCHEDULES = "DELETE FROM tidemill.schedule WHERE name <> ALL ($1) AND declared_by = ANY ($2)"

#: Due schedules that no other scheduler holds.
TAKE_DUE = """
SELECT name, task, queue, spec, job, catchup, jitter, decided,
       extract(epoch FROM now())::float8 AS now
FROM tidemill.schedule WHERE NOT paused AND next_fire <= now()
ORDER BY next_fire LIMIT 100 FOR UPDATE SKIP LOCKED
"""

#: Records that a schedule has fired or skipped fires.
RECORD_FIRE = """
UPDATE tidemill.schedule SET next_fire = to_timestamp($2), decided = $8, fired = fired + $3,
    last_fire = coalesce(to_timestamp($4), last_fire), last_job_id = coalesce($5, last_job_id),
    missed = missed + $6, missed_at = coalesce(to_timestamp($7), missed_at)
WHERE name = $1
"""

#: Retries a schedule that could not be fired in a minute; its due fires stay undecided.
PUT_OFF = "UPDATE tidemill.schedule SET next_fire = now() + interval '1 minute' WHERE name = $1"

#: Seconds until the next schedule is due.
NEXT_SCHEDULED = """
SELECT extract(epoch FROM min(next_fire) - now())::float8 AS seconds FROM tidemill.schedule WHERE NOT paused
"""

#: All schedules.
LIST_SCHEDULES = """
SELECT name, task, queue, spec, catchup, jitter, paused, next_fire, last_fire, last_job_id, fired, missed, missed_at
FROM tidemill.schedule ORDER BY name
"""

#: One schedule, locked for a change.
LOCK_SCHEDULE = """
SELECT name, task, queue, spec, job, paused, extract(epoch FROM now())::float8 AS now
FROM tidemill.schedule WHERE name = $1 FOR UPDATE
"""

#: Pauses, or resumes from now on: fires that were missed while it was paused are skipped.
SET_PAUSED = """
UPDATE tidemill.schedule SET paused = $2, next_fire = to_timestamp($3), decided = $4 WHERE name = $1
"""

DATABASE_NOW = "SELECT extract(epoch FROM now())::float8"

NOTIFY_SCHEDULES = "SELECT pg_notify('tidemill_schedules', '')"

Plan = Callable[[asyncpg.Record, Schedule], FirePlan]
PlaceJob = Callable[[NewJob, str, float, float], NewJob]


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule as the application declares it, with the job that each fire enqueues."""

    name: str
    spec: Schedule
    job: NewJob
    catchup: str
    jitter: float
    declared_by: str = PROGRAM


class Fired(msgspec.Struct, frozen=True):
    """The result of one fire of a schedule, or why it could not be fired."""

    schedule: str
    jobs: tuple[JobRef, ...]
    missed: int
    problem: str | None = None


async def declare_schedules(
    database: Database,
    declared: Sequence[DeclaredSchedule],
    now: float | None = None,
    *,
    by: Collection[str] = (PROGRAM,),
) -> None:
    """Replace the stored schedules of these declarers with theirs, as of `now` by the database's clock."""
    async with database.transaction(patience=None) as connection:
        if now is None:
            now = float(await connection.fetchval(DATABASE_NOW) or 0.0)
        await connection.execute(database.sql(PRUNE_SCHEDULES), [s.name for s in declared], list(by))
        for schedule in sorted(declared, key=lambda s: s.name):
            await connection.execute(
                database.sql(UPSERT_SCHEDULE),
                schedule.name,
                schedule.job.task,
                schedule.job.queue,
                encode(schedule.spec),
                encode(schedule.job),
                schedule.catchup,
                schedule.jitter,
                next_fire(schedule.spec, now),
                now,
                schedule.declared_by,
            )
        await connection.execute(database.sql(NOTIFY_SCHEDULES))


async def fire_due(database: Database, plan: Plan, place: PlaceJob) -> list[Fired]:
    """Fire due schedules: jobs and next fire times in one transaction. `plan` decides, `place` sets each job's time.

    A schedule that cannot be fired does not block the others: it is retried a minute later.
    """
    fired: list[Fired] = []
    async with database.transaction(patience=None) as connection:
        for row in await connection.fetch(database.sql(TAKE_DUE)):
            try:
                async with connection.transaction():
                    fired.append(await _fire(database, connection, row, plan, place))
            except (TidemillError, asyncpg.DataError) as error:
                await connection.execute(database.sql(PUT_OFF), row["name"])
                fired.append(Fired(row["name"], (), 0, problem=str(error)))
    return fired


async def _fire(database: Database, connection: Executor, row: asyncpg.Record, plan: Plan, place: PlaceJob) -> Fired:
    decided = plan(row, decode(row["spec"], Schedule))
    template = decode(row["job"], NewJob)
    jobs = [place(template, row["name"], fire, row["jitter"]) for fire in decided.fire]
    refs = await insert_jobs(database, connection, jobs, notify=True) if jobs else []
    await connection.execute(
        database.sql(RECORD_FIRE),
        row["name"],
        decided.next,
        len(jobs),
        decided.fire[-1] if decided.fire else None,
        refs[-1].id if refs else None,
        decided.missed,
        decided.missed_last,
        decided.through,
    )
    return Fired(row["name"], tuple(refs), decided.missed)


async def next_scheduled(database: Database) -> float | None:
    """Seconds until the next schedule is due; None when there is none."""
    row = await database.fetchrow(NEXT_SCHEDULED, patience=None)
    return row["seconds"] if row else None


async def list_schedules(database: Database) -> list[asyncpg.Record]:
    return await database.fetch(LIST_SCHEDULES)


async def set_paused(tx: Transaction, name: str, paused: bool) -> None:
    """Pause a schedule, or resume it from now on."""
    row = await _lock(tx, name)
    following = next_fire(decode(row["spec"], Schedule), row["now"])
    await tx.execute(SET_PAUSED, name, paused, following, row["now"])
    await tx.execute(NOTIFY_SCHEDULES)
    action = "schedule.pause" if paused else "schedule.resume"
    await tx.audit(action, name, before={"paused": row["paused"]}, after={"paused": paused})


async def run_now(tx: Transaction, name: str) -> JobRef:
    """Enqueue a schedule's job once, now, whatever its plan."""
    row = await _lock(tx, name)
    template = decode(row["job"], NewJob)
    job = msgspec.structs.replace(template, unique_key=None, unique_for=None, origin=Origin(by=tx.by, schedule=name))
    refs = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await tx.audit("schedule.run", name, after={"job": refs[0].id})
    return refs[0]


async def _lock(tx: Transaction, name: str) -> asyncpg.Record:
    row = await tx.fetchrow(LOCK_SCHEDULE, name)
    if row is None:
        raise NotFoundError(f"there is no schedule {name!r}: `tidemill schedules` lists them")
    return row
