"""Schedules in the database: the row lock and the next fire time make each fire happen once.

Any number of schedulers may run: each claims due rows that no other scheduler holds, and stores the jobs and the next
fire time in one transaction.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import zip_longest
from typing import Literal

import asyncpg
import msgspec

from tidemill.core.codec import decode, encode, storable
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.encoding.sealing import seal_members
from tidemill.core.errors import ConfigError, ConflictError, NotFoundError, TidemillError
from tidemill.core.jobs.job import JobRef, NewJob, Origin
from tidemill.core.schedule import GRACE, FirePlan, Schedule, WaitingFire, decide_overlap, fires_between, next_fire
from tidemill.store.database import Database, Executor
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.jobs.operate import cancel_jobs
from tidemill.store.jobs.schedules.schedule_fires import (
    SET_WAITING,
    FireNote,
    decode_waiting,
    encode_waiting,
    note_fires,
)
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.runs import store_run
from tidemill.store.transaction import Reader, Transaction

#: Notifies schedulers that a schedule was added, changed, resumed or removed.
SCHEDULES_CHANNEL = "schedules"
#: What declares a schedule: the program, unless it says otherwise.
PROGRAM = "program"
OPERATOR = "operator"
#: The reason of a fire that a user has asked for.
RUN_NOW = "run now"

#: Who has disabled the workflow file whose schedule a row is.
DISABLED_BY = """(
    SELECT paused_by FROM tidemill.state_control WHERE task LIKE 'workflow/%' AND pipeline = task AND stage = '')"""
#: Whether a schedule fires: it is not paused, and its workflow file is not disabled.
DOES_FIRE = f"NOT paused AND {DISABLED_BY} IS NULL"

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

#: What the schedules that were made at run time start.
MADE_AT_RUN_TIME = "SELECT name, job, run FROM tidemill.schedule WHERE made_by IS NOT NULL ORDER BY name FOR UPDATE"
START_RENEWED = "UPDATE tidemill.schedule SET queue = $2, job = $3, run = $4 WHERE name = $1"

#: Deletes a schedule that was made at run time.
DELETE_SCHEDULE = "DELETE FROM tidemill.schedule WHERE name = $1 AND made_by IS NOT NULL RETURNING name"

#: For how many seconds the job or the run of the last fire has been there; no row if it has ended.
UNFINISHED_FOR = """
SELECT extract(epoch FROM now() - created_at)::float8 FROM tidemill.job WHERE id = $1
UNION ALL
SELECT extract(epoch FROM now() - created_at)::float8 FROM tidemill.run
WHERE id = $2 AND state IN ('running', 'needs_attention') LIMIT 1
"""

#: Due schedules that no other scheduler holds.
TAKE_DUE = f"""
SELECT name, task, queue, spec, job, catchup, jitter, decided, run, overlap, last_job_id, last_run_id, waiting,
       extract(epoch FROM now())::float8 AS now
FROM tidemill.schedule WHERE {DOES_FIRE} AND least(next_fire, check_at) <= now()
ORDER BY least(next_fire, check_at) LIMIT 100 FOR UPDATE SKIP LOCKED
"""

#: Records that a schedule has fired or skipped fires.
RECORD_FIRE = """
UPDATE tidemill.schedule SET next_fire = to_timestamp($2), decided = $8, fired = fired + $3,
    last_fire = coalesce(to_timestamp($4), last_fire),
    last_job_id = CASE WHEN $9::bigint IS NULL THEN coalesce($5, last_job_id) END,
    missed = missed + $6, missed_at = coalesce(to_timestamp($7), missed_at),
    last_run_id = CASE WHEN $5::bigint IS NULL THEN coalesce($9, last_run_id) END,
    overlapped = overlapped + $10, waiting = $11,
    check_at = now() + make_interval(secs => $12::float8),
    overlapped_at = CASE WHEN $10 > 0 THEN now() ELSE overlapped_at END
WHERE name = $1
"""

#: Retries a schedule that could not be fired in a minute; its due fires stay undecided.
PUT_OFF = """
UPDATE tidemill.schedule SET next_fire = now() + interval '1 minute', check_at = NULL WHERE name = $1
"""

#: Seconds until the next schedule is due.
NEXT_SCHEDULED = f"""
SELECT extract(epoch FROM min(least(next_fire, check_at)) - now())::float8 AS seconds
FROM tidemill.schedule WHERE {DOES_FIRE}
"""

#: All schedules.
LIST_SCHEDULES = f"""
SELECT name, CASE WHEN run IS NULL THEN 'job' ELSE 'run' END AS kind, task, queue, spec, catchup, overlap, jitter,
       paused, next_fire, last_fire, last_job_id, last_run_id, fired, missed, missed_at, overlapped, overlapped_at,
       json_array_length(waiting) AS waiting, made_by, {DISABLED_BY} AS disabled_by
FROM tidemill.schedule WHERE $1::text IS NULL OR name = $1 ORDER BY name
"""

SCHEDULE_NAMES = "SELECT name FROM tidemill.schedule"
SCHEDULES_OF_TASK = "SELECT name FROM tidemill.schedule WHERE task = $1 ORDER BY name"

#: One schedule, locked for a change.
LOCK_SCHEDULE = """
SELECT name, task, queue, spec, job, run, paused, made_by, overlap, waiting, extract(epoch FROM now())::float8 AS now
FROM tidemill.schedule WHERE name = $1 FOR UPDATE
"""

#: Pauses, or resumes from now on: fires that were missed while it was paused are skipped.
SET_PAUSED = """
UPDATE tidemill.schedule SET paused = $2, next_fire = to_timestamp($3), decided = $4 WHERE name = $1
"""

DATABASE_NOW = "SELECT extract(epoch FROM now())::float8"

NOTIFY_SCHEDULES = "SELECT pg_notify('tidemill_schedules', '')"

Plan = Callable[[asyncpg.Record, Schedule], FirePlan]
PlaceJob = Callable[[NewJob, str, WaitingFire, float], NewJob]
CancelRun = Callable[[Transaction, int, str], Awaitable[object]]

CHECK_SHARE, SHORTEST_CHECK, LONGEST_CHECK = 0.1, 1.0, 60.0
MOST_BACKFILLED = 1_000


class RunTemplate(msgspec.Struct, frozen=True):
    """The run that each fire of a schedule starts."""

    kind: str
    workflow: str
    version: str
    input: msgspec.Raw
    rate_key: str | None = None
    key_rate: float | None = None
    key_burst: float | None = None


#: What each fire of a schedule enqueues or starts, and how the code declares the same now; None if it does not.
Work = NewJob | RunTemplate
Renew = Callable[[Work], Work | None]


class DeclaredSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is declared."""

    name: str
    spec: Schedule
    work: Work
    catchup: str
    jitter: float
    declared_by: str = PROGRAM
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
    renew: Renew | None = None,
) -> None:
    """Replace the stored schedules of these declarers with theirs, as of `now` by the database's clock.

    Those that were made at run time stay, and start what the code declares now: `renew` says how.
    """
    async with database.transaction(patience=None) as connection:
        if now is None:
            now = float(await connection.fetchval(DATABASE_NOW) or 0.0)
        await connection.execute(database.sql(PRUNE_SCHEDULES), [s.name for s in declared], list(by))
        for schedule in sorted(declared, key=lambda s: s.name):
            await _upsert(database, connection, schedule, now, None)
        if renew is not None:
            await _renew(database, connection, renew)
        await connection.execute(database.sql(NOTIFY_SCHEDULES))


async def _renew(database: Database, connection: Executor, renew: Renew) -> None:
    for row in await connection.fetch(database.sql(MADE_AT_RUN_TIME)):
        if (work := renew(stored_work(row))) is not None:
            queue = work.queue if isinstance(work, NewJob) else ""
            await connection.execute(database.sql(START_RENEWED), row["name"], queue, *_columns(database, work))


def stored_work(row: asyncpg.Record) -> Work:
    """What each fire of a stored schedule enqueues or starts."""
    return decode(row["job"], NewJob) if row["run"] is None else decode(row["run"], RunTemplate)


def _columns(database: Database, work: Work) -> tuple[bytes, bytes | None]:
    """The columns `job` and `run` of a schedule."""
    if isinstance(work, NewJob):
        return _sealed(database, encode(work), "args"), None
    return b"{}", _sealed(database, encode(work), "input")


async def _upsert(
    database: Database, connection: Executor, schedule: DeclaredSchedule, now: float, made_by: str | None
) -> None:
    work = schedule.work
    job, run = _columns(database, work)
    await connection.execute(
        database.sql(UPSERT_SCHEDULE),
        schedule.name,
        work.task if isinstance(work, NewJob) else work.workflow,
        work.queue if isinstance(work, NewJob) else "",
        encode(schedule.spec),
        job,
        schedule.catchup,
        schedule.jitter,
        next_fire(schedule.spec, now),
        now,
        schedule.declared_by,
        run,
        schedule.overlap,
        made_by,
    )


def _sealed(database: Database, template: bytes, name: str) -> bytes:
    return template if database.codec is None else seal_members(database.codec, template, (name,))


async def put_schedule(tx: Transaction, schedule: DeclaredSchedule) -> bool:
    """Make or change a schedule at run time; returns whether it is new. One that the code declares stays as it is."""
    before = await tx.fetchrow(LOCK_SCHEDULE, schedule.name)
    if before is not None and before["made_by"] is None:
        raise ConflictError(f"schedule {schedule.name} is declared by the application's code or files: change it there")
    now = float(await tx.fetchval(DATABASE_NOW) or 0.0)
    await _upsert(tx.database, tx.connection, schedule, now, tx.by)
    await tx.execute(NOTIFY_SCHEDULES)
    was = None if before is None else {"task": before["task"], "spec": decode(before["spec"])}
    made = schedule.work.task if isinstance(schedule.work, NewJob) else schedule.work.workflow
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


async def fire_due(database: Database, plan: Plan, place: PlaceJob, cancel_run: CancelRun | None = None) -> list[Fired]:
    """Fire due schedules: jobs and next fire times in one transaction. `plan` decides, `place` sets each job's time.

    A schedule that cannot be fired does not block the others: it is retried a minute later.
    """
    fired: list[Fired] = []
    async with database.transaction(patience=None) as connection:
        for row in await connection.fetch(database.sql(TAKE_DUE)):
            try:
                async with connection.transaction():
                    fired.append(await _fire(database, connection, row, plan, place, cancel_run))
            except (TidemillError, asyncpg.DataError) as error:
                await connection.execute(database.sql(PUT_OFF), row["name"])
                failed = FireNote(row["now"], "failed", "due", storable(str(error)))
                await note_fires(database, connection, row["name"], [failed])
                fired.append(Fired(row["name"], (), 0, problem=str(error)))
    return fired


async def _fire(
    database: Database,
    connection: Executor,
    row: asyncpg.Record,
    plan: Plan,
    place: PlaceJob,
    cancel_run: CancelRun | None,
) -> Fired:
    name, now = row["name"], row["now"]
    planned = plan(row, decode(row["spec"], Schedule))
    due = [WaitingFire(fire, "due" if now - fire <= GRACE else "catch-up") for fire in planned.fire]
    waiting = decode_waiting(row["waiting"])
    age: float | None = None
    if row["overlap"] != "allow" and (due or waiting):
        last = (row["last_job_id"], row["last_run_id"])
        age = await connection.fetchval(database.sql(UNFINISHED_FOR), *last)
    is_unfinished = age is not None
    decided = decide_overlap(row["overlap"], waiting, due, is_unfinished=is_unfinished)
    if decided.cancels:
        await _cancel_last(Transaction(database, connection, f"schedule {name}"), row, cancel_run)
    jobs: list[JobRef] = []
    runs: list[int] = []
    if row["run"] is not None:
        runs = [await _start_run(database, connection, row, each, place) for each in decided.start]
    elif decided.start:
        template = decode(row["job"], NewJob)
        new = [place(template, name, each, row["jitter"]) for each in decided.start]
        jobs = await insert_jobs(database, connection, new, notify=True)
    fires = [each.fire for each in decided.start]
    await connection.execute(
        database.sql(RECORD_FIRE),
        name,
        planned.next,
        len(fires),
        fires[-1] if fires else None,
        jobs[-1].id if jobs else None,
        planned.missed,
        planned.missed_last,
        planned.through,
        runs[-1] if runs else None,
        len(decided.skipped),
        encode_waiting(decided.waiting),
        _next_check(0.0 if decided.start else age or 0.0) if decided.waiting else None,
    )
    notes = [
        FireNote(each.fire, "started", each.reason, None, job.id if job else None, run)
        for each, job, run in zip_longest(decided.start, jobs, runs)
    ]
    added = decided.waiting[-len(due) :] if due and row["overlap"] == "queue" else ()
    notes += [FireNote(each.fire, "waiting", each.reason, "the previous one is unfinished") for each in added]
    why = "the previous one is unfinished" if is_unfinished else "only one starts at a time"
    notes += [FireNote(each.fire, "skipped", each.reason, why) for each in decided.skipped]
    if planned.missed and planned.missed_last is not None:
        how_many = "1 fire was" if planned.missed == 1 else f"{planned.missed} fires were"
        note = f"{how_many} missed: no maintenance process could fire them then"
        notes.append(FireNote(planned.missed_last, "missed", "catch-up", note))
    await note_fires(database, connection, name, notes)
    return Fired(name, tuple(jobs), planned.missed, runs=tuple(runs), overlapped=len(decided.skipped))


def _next_check(age: float) -> float:
    """In how many seconds to look again whether the previous one has ended: the older it is, the later."""
    return min(LONGEST_CHECK, max(SHORTEST_CHECK, age * CHECK_SHARE))


async def _cancel_last(tx: Transaction, row: asyncpg.Record, cancel_run: CancelRun | None) -> None:
    """Cancel the job or run of the fire before, which may have been of another kind than the next one."""
    if row["last_run_id"] is None:
        await cancel_jobs(tx, [row["last_job_id"]])
    elif cancel_run is None:
        raise ConfigError("its overlap is cancel, and this process cannot cancel runs: run `tidemill maintenance`")
    else:
        await cancel_run(tx, row["last_run_id"], "the next fire of its schedule")


async def _start_run(
    database: Database, connection: Executor, row: asyncpg.Record, fire: WaitingFire, place: PlaceJob
) -> int:
    """Start the run of one fire; it knows its schedule and fire time, and jitter delays it."""
    placed = place(NewJob("", "", msgspec.Raw(b"{}")), row["name"], fire, row["jitter"])
    new = _new_run(row["run"], placed.origin, at=placed.at if row["jitter"] else None)
    tx = Transaction(database, connection, "scheduler")
    return (await store_run(tx, new))[0]


async def backfill(tx: Transaction, name: str, since: float, until: float) -> int:
    """Start what a schedule would have started in a time range, by its rule as it is now; returns how many fires.

    Both ends belong to the range.
    They start at once, or one after another if the schedule's fires may not overlap.
    """
    row = await _lock(tx, name)
    before = math.nextafter(since, -math.inf)
    fires = fires_between(decode(row["spec"], Schedule), before, until, MOST_BACKFILLED + 1)
    if len(fires) > MOST_BACKFILLED:
        raise ConfigError(
            f"schedule {name} fires more than {MOST_BACKFILLED:,} times in this range: take a shorter one"
        )
    if not fires:
        return 0
    waiting = [*decode_waiting(row["waiting"]), *(WaitingFire(fire, "backfill") for fire in fires)]
    await tx.execute(SET_WAITING, name, encode_waiting(waiting))
    await tx.execute(NOTIFY_SCHEDULES)
    await tx.audit("schedule.backfill", name, after={"since": since, "until": until, "fires": len(fires)})
    return len(fires)


def _new_run(template: bytes, origin: Origin | None, *, at: float | None = None) -> NewRun:
    found = decode(template, RunTemplate)
    made = None if origin is None else encode(origin)
    new = NewRun(found.kind, found.workflow, found.version, bytes(found.input), made, at=at)
    new.rate_key, new.key_rate, new.key_burst = found.rate_key, found.key_rate, found.key_burst
    return new


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
    await _go_on_from_now(tx, row, paused)
    action = "schedule.pause" if paused else "schedule.resume"
    await tx.audit(action, name, before={"paused": row["paused"]}, after={"paused": paused})


async def skip_missed_fires(tx: Transaction, task: str) -> None:
    """Let the schedules of a task go on from now; those that are paused stay paused."""
    for each in await tx.fetch(SCHEDULES_OF_TASK, task):
        row = await _lock(tx, each["name"])
        await _go_on_from_now(tx, row, row["paused"])


async def _go_on_from_now(tx: Transaction, row: asyncpg.Record, paused: bool) -> None:
    following = next_fire(decode(row["spec"], Schedule), row["now"])
    await tx.execute(SET_PAUSED, row["name"], paused, following, row["now"])
    await tx.execute(NOTIFY_SCHEDULES)


async def run_now(tx: Transaction, name: str) -> tuple[Literal["job", "run"], int]:
    """Enqueue a schedule's job or start its run once, now, also if it is paused; returns which, and its id."""
    row = await _lock(tx, name)
    if row["run"] is not None:
        number, _ = await store_run(
            tx, _new_run(row["run"], Origin(by=tx.by, schedule=name, fire=row["now"], reason=RUN_NOW))
        )
        await _note_run_now(tx, name, FireNote(row["now"], "started", RUN_NOW, run_id=number))
        await tx.audit("schedule.run", name, after={"run": number})
        return "run", number
    template = decode(row["job"], NewJob)
    job = msgspec.structs.replace(
        template,
        unique_key=None,
        unique_for=None,
        origin=Origin(by=tx.by, schedule=name, fire=row["now"], reason=RUN_NOW),
    )
    refs = await insert_jobs(tx.database, tx.connection, [job], notify=True)
    await _note_run_now(tx, name, FireNote(row["now"], "started", RUN_NOW, job_id=refs[0].id))
    await tx.audit("schedule.run", name, after={"job": refs[0].id})
    return "job", refs[0].id


async def _note_run_now(tx: Transaction, name: str, note: FireNote) -> None:
    await note_fires(tx.database, tx.connection, name, [note])


async def _lock(tx: Transaction, name: str) -> asyncpg.Record:
    row = await tx.fetchrow(LOCK_SCHEDULE, name)
    if row is None:
        raise await unknown_schedule(tx, name)
    return row


async def unknown_schedule(at: Reader | Transaction, name: str) -> NotFoundError:
    """The error for a schedule that does not exist."""
    known = [row["name"] for row in await at.fetch(SCHEDULE_NAMES)]
    return NotFoundError(f"there is no schedule {name!r}: `tidemill schedules` lists them{did_you_mean(name, known)}")
