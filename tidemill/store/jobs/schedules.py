"""Schedules in the database: the row lock and the next fire time make each fire happen once.

Any number of schedulers may run: each claims due rows that no other scheduler holds, and stores the jobs and the next
fire time in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import asyncpg
import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConflictError, NotFoundError, TidemillError
from tidemill.core.job import JobRef, NewJob, Origin
from tidemill.core.schedule import FirePlan, Schedule, next_fire
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.runs import store_run
from tidemill.store.transaction import Transaction

#: Notifies schedulers that a schedule was added, changed, resumed or removed.
SCHEDULES_CHANNEL = "schedules"
#: What declares a schedule: the program, unless it says otherwise.
PROGRAM = "program"
OPERATOR = "operator"

#: Declares schedules; a changed spec gets a new next fire time, an unchanged one keeps it.
UPSERT_SCHEDULE = """
INSERT INTO tidemill.schedule AS s (name, task, queue, spec, job, catchup, jitter, next_fire, decided, declared_by,
                                    run, overlap, made_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8), $9, $10, $11, $12, $13)
ON CONFLICT (name) DO UPDATE SET task = excluded.task, queue = excluded.queue, spec = excluded.spec,
    job = excluded.job, catchup = excluded.catchup, jitter = excluded.jitter, declared_by = excluded.declared_by,
    run = excluded.run, overlap = excluded.overlap, made_by = excluded.made_by,
    next_fire = CASE WHEN s.spec::text = excluded.spec::text THEN s.next_fire ELSE excluded.next_fire END,
    decided = CASE WHEN s.spec::text = excluded.spec::text THEN s.decided ELSE excluded.decided END
"""

#: Deletes schedules that these no longer declare.
PRUNE_SCHEDULES = "DELETE FROM tidemill.schedule WHERE name <> ALL ($1) AND declared_by = ANY ($2)"

#: Deletes a schedule that was made at run time.
DELETE_SCHEDULE = "DELETE FROM tidemill.schedule WHERE name = $1 AND made_by IS NOT NULL RETURNING name"

#: Whether the job or the run of the last fire is unfinished.
IS_UNFINISHED = """
SELECT EXISTS (SELECT FROM tidemill.job WHERE id = $1)
    OR EXISTS (SELECT FROM tidemill.run WHERE id = $2 AND state IN ('running', 'needs_attention'))
"""

#: Due schedules that no other scheduler holds.
TAKE_DUE = """
SELECT name, task, queue, spec, job, catchup, jitter, decided, run, overlap, last_job_id, last_run_id,
       extract(epoch FROM now())::float8 AS now
FROM tidemill.schedule WHERE NOT paused AND next_fire <= now()
ORDER BY next_fire LIMIT 100 FOR UPDATE SKIP LOCKED
"""

#: Records that a schedule has fired or skipped fires.
RECORD_FIRE = """
UPDATE tidemill.schedule SET next_fire = to_timestamp($2), decided = $8, fired = fired + $3,
    last_fire = coalesce(to_timestamp($4), last_fire), last_job_id = coalesce($5, last_job_id),
    missed = missed + $6, missed_at = coalesce(to_timestamp($7), missed_at),
    last_run_id = coalesce($9, last_run_id), overlapped = overlapped + $10,
    overlapped_at = CASE WHEN $10 > 0 THEN now() ELSE overlapped_at END
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
SELECT name, CASE WHEN run IS NULL THEN 'job' ELSE 'run' END AS kind, task, queue, spec, catchup, overlap, jitter,
       paused, next_fire, last_fire, last_job_id, last_run_id, fired, missed, missed_at, overlapped, overlapped_at,
       made_by
FROM tidemill.schedule WHERE $1::text IS NULL OR name = $1 ORDER BY name
"""

#: One schedule, locked for a change.
LOCK_SCHEDULE = """
SELECT name, task, queue, spec, job, run, paused, made_by, extract(epoch FROM now())::float8 AS now
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


class RunTemplate(msgspec.Struct, frozen=True):
    """The run that each fire of a schedule starts."""

    kind: str
    workflow: str
    version: str
    input: msgspec.Raw


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is declared, with the job that each fire enqueues or the run that it starts."""

    name: str
    spec: Schedule
    job: NewJob | None
    catchup: str
    jitter: float
    declared_by: str = PROGRAM
    run: RunTemplate | None = None
    overlap: str = "allow"


class Fired(msgspec.Struct, frozen=True):
    """The result of one fire of a schedule, or why it could not be fired."""

    schedule: str
    jobs: tuple[JobRef, ...]
    missed: int
    problem: str | None = None
    runs: tuple[int, ...] = ()
    overlapped: int = 0


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
            await _upsert(database, connection, schedule, now, None)
        await connection.execute(database.sql(NOTIFY_SCHEDULES))


async def _upsert(
    database: Database, connection: Executor, schedule: DeclaredSchedule, now: float, made_by: str | None
) -> None:
    job, run = schedule.job, schedule.run
    await connection.execute(
        database.sql(UPSERT_SCHEDULE),
        schedule.name,
        job.task if job is not None else run.workflow if run is not None else "",
        job.queue if job is not None else "",
        encode(schedule.spec),
        b"{}" if job is None else encode(job),
        schedule.catchup,
        schedule.jitter,
        next_fire(schedule.spec, now),
        now,
        schedule.declared_by,
        None if run is None else encode(run),
        schedule.overlap,
        made_by,
    )


async def put_schedule(tx: Transaction, schedule: DeclaredSchedule) -> bool:
    """Make or change a schedule at run time; returns whether it is new. One that the code declares stays as it is."""
    before = await tx.fetchrow(LOCK_SCHEDULE, schedule.name)
    if before is not None and before["made_by"] is None:
        raise ConflictError(f"schedule {schedule.name} is declared by the application's code or files: change it there")
    now = float(await tx.fetchval(DATABASE_NOW) or 0.0)
    await _upsert(tx.database, tx.connection, schedule, now, tx.by)
    await tx.execute(NOTIFY_SCHEDULES)
    was = None if before is None else {"task": before["task"], "spec": decode(before["spec"])}
    made = schedule.job.task if schedule.job is not None else schedule.run and schedule.run.workflow
    await tx.audit("schedule.put", schedule.name, before=was, after={"task": made, "spec": schedule.spec})
    return before is None


async def delete_schedule(tx: Transaction, name: str) -> None:
    """Delete a schedule that was made at run time."""
    row = await _lock(tx, name)
    if row["made_by"] is None:
        raise ConflictError(
            f"schedule {name} is declared by the application's code or files: remove it there, or pause it"
        )
    await tx.execute(DELETE_SCHEDULE, name)
    await tx.execute(NOTIFY_SCHEDULES)
    await tx.audit("schedule.delete", name, before={"task": row["task"], "spec": decode(row["spec"])})


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
    fires, overlapped = decided.fire, 0
    if fires and row["overlap"] == "skip":
        last = (row["last_job_id"], row["last_run_id"])
        kept = 0 if await connection.fetchval(database.sql(IS_UNFINISHED), *last) else 1
        fires, overlapped = fires[:kept], len(fires) - kept
    jobs: list[JobRef] = []
    runs: list[int] = []
    if row["run"] is not None:
        runs = [await _start_run(database, connection, row, fire, place) for fire in fires]
    elif fires:
        template = decode(row["job"], NewJob)
        new = [place(template, row["name"], fire, row["jitter"]) for fire in fires]
        jobs = await insert_jobs(database, connection, new, notify=True)
    await connection.execute(
        database.sql(RECORD_FIRE),
        row["name"],
        decided.next,
        len(fires),
        fires[-1] if fires else None,
        jobs[-1].id if jobs else None,
        decided.missed,
        decided.missed_last,
        decided.through,
        runs[-1] if runs else None,
        overlapped,
    )
    return Fired(row["name"], tuple(jobs), decided.missed, runs=tuple(runs), overlapped=overlapped)


async def _start_run(
    database: Database, connection: Executor, row: asyncpg.Record, fire: float, place: PlaceJob
) -> int:
    """Start the run of one fire; it knows its schedule and fire time, and jitter delays it."""
    placed = place(NewJob("", "", msgspec.Raw(b"{}")), row["name"], fire, row["jitter"])
    new = _new_run(row["run"], placed.origin, at=placed.at if row["jitter"] else None)
    tx = Transaction(database, connection, "scheduler")
    return (await store_run(tx, new))[0]


def _new_run(template: bytes, origin: Origin | None, *, at: float | None = None) -> NewRun:
    found = decode(template, RunTemplate)
    made = None if origin is None else encode(origin)
    return NewRun(found.kind, found.workflow, found.version, bytes(found.input), made, at=at)


async def next_scheduled(database: Database) -> float | None:
    """Seconds until the next schedule is due; None when there is none."""
    row = await database.fetchrow(NEXT_SCHEDULED, patience=None)
    return row["seconds"] if row else None


async def list_schedules(database: Database, name: str | None = None) -> list[asyncpg.Record]:
    """All schedules, or the one of this name."""
    return await database.fetch(LIST_SCHEDULES, name)


async def set_paused(tx: Transaction, name: str, paused: bool) -> None:
    """Pause a schedule, or resume it from now on."""
    row = await _lock(tx, name)
    following = next_fire(decode(row["spec"], Schedule), row["now"])
    await tx.execute(SET_PAUSED, name, paused, following, row["now"])
    await tx.execute(NOTIFY_SCHEDULES)
    action = "schedule.pause" if paused else "schedule.resume"
    await tx.audit(action, name, before={"paused": row["paused"]}, after={"paused": paused})


async def run_now(tx: Transaction, name: str) -> tuple[Literal["job", "run"], int]:
    """Enqueue a schedule's job or start its run once, now, also if it is paused; returns which, and its id."""
    row = await _lock(tx, name)
    if row["run"] is not None:
        number, _ = await store_run(tx, _new_run(row["run"], Origin(by=tx.by, schedule=name)))
        await tx.audit("schedule.run", name, after={"run": number})
        return "run", number
    template = decode(row["job"], NewJob)
    job = msgspec.structs.replace(template, unique_key=None, unique_for=None, origin=Origin(by=tx.by, schedule=name))
    refs = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await tx.audit("schedule.run", name, after={"job": refs[0].id})
    return "job", refs[0].id


async def _lock(tx: Transaction, name: str) -> asyncpg.Record:
    row = await tx.fetchrow(LOCK_SCHEDULE, name)
    if row is None:
        raise NotFoundError(f"there is no schedule {name!r}: `tidemill schedules` lists them")
    return row
