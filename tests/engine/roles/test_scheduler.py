"""Periodic work: fires, what was missed, and what operators do to a schedule."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.support import eventually, finished, running_scheduler, running_worker, value
from tests.support.operate import list_audit, run_now, set_paused
from tidemill import App, current_job
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import NotFoundError
from tidemill.core.schedule import Catchup, Cron, Every, Schedule, jittered
from tidemill.engine.roles.role import Role
from tidemill.engine.roles.scheduler import Scheduler
from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import DeclaredSchedule, declare_schedules, list_schedules
from tidemill.store.migrate import migrate


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="ticks")
    async def tick(n: int = 0) -> int:
        return n

    return app


def declared(
    app: App, spec: Schedule, *, name: str = "beat", catchup: Catchup = "one", jitter: float = 0
) -> DeclaredSchedule:
    return DeclaredSchedule(
        name=name, spec=spec, work=app.declarations.tasks["tick"].new_job(b"{}"), catchup=catchup, jitter=jitter
    )


@asynccontextmanager
async def scheduling(app: App, *schedules: DeclaredSchedule) -> AsyncIterator[None]:
    """A scheduler of just these schedules."""
    async with app.database() as database:
        scheduler = Role(Scheduler(database, schedules), database)
        life = asyncio.create_task(scheduler.run())
        try:
            await asyncio.wait_for(scheduler.wait_ready(), 150)
            yield
            scheduler.stop()
            await asyncio.wait_for(life, 120)
        finally:
            life.cancel()


async def fires(database: Database, name: str = "beat") -> list[float]:
    """The moments for which jobs were enqueued, as their origin tells."""
    rows = await database.fetch("SELECT origin FROM tidemill.job ORDER BY id")
    origins = [msgspec.json.decode(row["origin"]) for row in rows]
    return [origin["fire"] for origin in origins if origin["schedule"] == name and "fire" in origin]


async def schedule_row(database: Database, name: str = "beat") -> Any:
    return next((row for row in await list_schedules(database) if row["name"] == name), None)


# Firing


async def test_an_interval_fires_again_and_again_once_for_each_moment(app: App, database: Database) -> None:
    app.schedule("beat", app.declarations.tasks["tick"].call(n=7), every=0.1, catchup="all")
    async with running_scheduler(app):
        await eventually(lambda: value(database, "SELECT count(*) >= 4 FROM tidemill.job"))
    moments = await fires(database)
    assert moments == sorted(set(moments))
    steps = [round((later - earlier) / 0.1) for earlier, later in itertools.pairwise(moments)]
    assert set(steps) == {1}
    rows = await database.fetch("SELECT * FROM tidemill.job ORDER BY id")
    assert {row["args"] for row in rows} == {b'{"n":7}'}
    assert {row["queue"] for row in rows} == {"ticks"}
    assert [row["due_at"].timestamp() for row in rows] == pytest.approx(moments, abs=1e-3)
    row = await schedule_row(database)
    assert (row["fired"], row["missed"], row["last_job_id"]) == (len(moments), 0, rows[-1]["id"])
    assert row["last_fire"].timestamp() == pytest.approx(moments[-1], abs=1e-3)
    assert row["next_fire"] > row["last_fire"]


async def test_a_cron_expression_with_seconds_fires_on_whole_seconds(app: App, database: Database) -> None:
    app.schedule("beat", app.declarations.tasks["tick"].call(), cron="* * * * * *")
    async with running_scheduler(app):
        await eventually(lambda: value(database, "SELECT count(*) >= 2 FROM tidemill.job"))
    moments = await fires(database)
    assert all(moment == int(moment) for moment in moments)


async def test_a_scheduled_job_runs_and_says_which_schedule_asked_for_it(app: App, database: Database) -> None:
    app.schedule("beat", app.declarations.tasks["tick"].call(), every=0.1)
    async with running_scheduler(app), running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) >= 1 FROM tidemill.job_history"))
    origin = msgspec.json.decode(await value(database, "SELECT origin FROM tidemill.job_history LIMIT 1"))
    assert (origin["by"], origin["schedule"]) == ("scheduler", "beat")


async def test_a_new_schedule_does_not_fire_for_the_time_before_it_was_made(app: App, database: Database) -> None:
    now = time.time()
    spec = Every(3600.0, anchor=now - 1800)
    async with scheduling(app, declared(app, spec, catchup="all"), declared(app, Every(0.1), name="clock")):
        await eventually(lambda: value(database, "SELECT count(*) >= 2 FROM tidemill.job"))
    assert await fires(database) == []
    row = await schedule_row(database)
    assert row["next_fire"].timestamp() == pytest.approx(now + 1800, abs=1)


# Missed fires


@pytest.mark.parametrize(("catchup", "fired", "missed"), [("skip", 0, 6), ("one", 1, 5), ("all", 6, 0)])
async def test_fires_missed_while_nobody_looked_are_skipped_or_made_up_as_declared(
    app: App, database: Database, catchup: Catchup, fired: int, missed: int
) -> None:
    now = time.time()
    schedule = declared(app, Every(600.0, anchor=now - 300), catchup=catchup)
    await declare_schedules(database, [schedule], now - 3600)
    async with scheduling(app, schedule):
        await eventually(lambda: decided(database))
    row = await schedule_row(database)
    assert (row["fired"], row["missed"]) == (fired, missed)
    expected = [now - 300 - 600 * steps for steps in range(6)][::-1]
    assert await fires(database) == pytest.approx(expected[len(expected) - fired :], abs=0.01)
    if missed:
        last_missed = expected[-1] if catchup == "skip" else expected[-2]
        assert row["missed_at"].timestamp() == pytest.approx(last_missed, abs=0.01)
    assert row["next_fire"].timestamp() == pytest.approx(now + 300, abs=0.01)


async def decided(database: Database) -> bool:
    return await value(database, "SELECT next_fire > now() FROM tidemill.schedule WHERE name = 'beat'")


async def test_a_fire_that_is_only_a_little_late_is_not_missed(app: App, database: Database) -> None:
    now = time.time()
    schedule = declared(app, Every(600.0, anchor=now - 20), catchup="skip")
    await declare_schedules(database, [schedule], now - 30)
    async with scheduling(app, schedule):
        await eventually(lambda: decided(database))
    row = await schedule_row(database)
    assert (row["fired"], row["missed"]) == (1, 0)


async def test_a_flood_of_missed_fires_is_all_made_up_when_all_are_wanted(app: App, database: Database) -> None:
    now = time.time()
    # Fires between two microseconds, which is all that the database can tell apart.
    schedule = declared(app, Every(1.0, anchor=int(now) - 0.5 + 3e-7), catchup="all")
    await declare_schedules(database, [schedule], now - 2500)
    async with scheduling(app, schedule):
        await eventually(lambda: decided(database))
    moments = await fires(database)
    assert len(moments) >= 2499
    assert len(set(moments)) == len(moments)


async def test_a_task_sees_its_origin_and_jobs_of_missed_fires_can_be_told_apart(app: App, database: Database) -> None:
    seen: list[tuple[str | None, datetime | None]] = []

    @app.task(queue="ticks")
    async def tell() -> None:
        job = current_job()
        assert job.origin is not None
        assert job.origin.by
        seen.append((job.schedule, job.fire_time))

    now = time.time()
    job = app.declarations.tasks["tell"].new_job(b"{}")
    schedule = DeclaredSchedule(name="beat", spec=Every(600.0, anchor=now - 300), work=job, catchup="all", jitter=0)
    await declare_schedules(database, [schedule], now - 3600)
    async with scheduling(app, schedule):
        await eventually(lambda: decided(database))
    await app.enqueue(tell.call())
    async with running_worker(app, ["ticks"], max_concurrency=1):
        await eventually(lambda: len(seen) == 7)
    assert seen.count((None, None)) == 1, "the one that no schedule has enqueued"
    fired = [fire for name, fire in seen if name == "beat" and fire is not None]
    expected = [datetime.fromtimestamp(now - 300 - 600 * steps, UTC) for steps in range(6)][::-1]
    assert [round(each.timestamp()) for each in sorted(fired)] == [round(each.timestamp()) for each in expected]


# Operators


async def test_a_paused_schedule_does_not_fire_and_does_not_make_up_for_it(app: App, database: Database) -> None:
    beat, clock = declared(app, Every(0.1), catchup="all"), declared(app, Every(0.1), name="clock")
    async with scheduling(app, beat, clock):
        await eventually(lambda: value(database, "SELECT fired >= 1 FROM tidemill.schedule WHERE name = 'beat'"))
        await set_paused(database, "beat", True, by="ann")
        stopped = await schedule_row(database)
        ticks = (await schedule_row(database, "clock"))["fired"]
        await eventually(lambda: value(database, FIRED, "clock", ticks + 5))
        assert await schedule_row(database) == stopped
        resumed = datetime.now(UTC) - timedelta(milliseconds=50)
        await set_paused(database, "beat", False, by="ann")
        await eventually(lambda: value(database, FIRED, "beat", stopped["fired"] + 2))
    moments = await fires(database)
    assert not [at for at in moments if stopped["last_fire"].timestamp() + 0.11 < at < resumed.timestamp()]
    trail = [(row["who"], row["action"], row["target"]) for row in await list_audit(database)]
    assert trail == [("ann", "schedule.resume", "beat"), ("ann", "schedule.pause", "beat")]


FIRED = "SELECT fired >= $2 FROM tidemill.schedule WHERE name = $1"


async def test_a_schedule_can_be_run_now_whatever_its_plan_says(app: App, database: Database) -> None:
    app.schedule("beat", app.declarations.tasks["tick"].call(n=9), every="1d")
    async with running_scheduler(app), running_worker(app):
        before = await schedule_row(database)
        ref = await run_now(database, "beat", by="ann")
        row = await finished(database, ref.id)
        assert (row["state"], row["result"]) == ("succeeded", b"9")
        assert await schedule_row(database) == before
    origin = msgspec.json.decode(row["origin"])
    assert (origin["by"], origin["schedule"]) == ("ann", "beat")
    (entry,) = await list_audit(database)
    assert (entry["action"], msgspec.json.decode(entry["after"])) == ("schedule.run", {"job": ref.id})


async def test_a_schedule_that_does_not_exist_is_named(database: Database) -> None:
    for attempt in (set_paused(database, "nope", True, by="ann"), run_now(database, "nope", by="ann")):
        with pytest.raises(NotFoundError, match="there is no schedule 'nope'"):
            await attempt


# Changes


async def test_a_changed_plan_takes_effect_and_an_unchanged_one_keeps_its_place(app: App, database: Database) -> None:
    now = time.time()
    daily = declared(app, Every(86400.0, anchor=now + 1000))
    await declare_schedules(database, [daily], now)
    await declare_schedules(database, [daily], now + 5000)
    row = await schedule_row(database)
    assert row["next_fire"].timestamp() == pytest.approx(now + 1000, abs=0.01)
    cron = declared(app, Cron("0 0 1 1 *"), catchup="skip", jitter=5)
    await declare_schedules(database, [cron], now)
    row = await schedule_row(database)
    assert (row["next_fire"].month, row["next_fire"].day, row["catchup"], row["jitter"]) == (1, 1, "skip", 5.0)


async def test_a_changed_schedule_keeps_its_counts_and_stays_paused(app: App, database: Database) -> None:
    now = time.time()
    await declare_schedules(database, [declared(app, Every(86400.0))], now)
    await database.fetch("UPDATE tidemill.schedule SET fired = 5, missed = 2")
    await set_paused(database, "beat", True, by="ann")
    await declare_schedules(database, [declared(app, Every(3600.0))], now)
    row = await schedule_row(database)
    assert (row["fired"], row["missed"], row["paused"]) == (5, 2, True)


async def test_a_schedule_that_is_no_longer_declared_is_removed(app: App, database: Database) -> None:
    async with scheduling(app, declared(app, Every(3600.0), name="old"), declared(app, Every(3600.0), name="new")):
        pass
    async with scheduling(app, declared(app, Every(3600.0), name="new")):
        assert [row["name"] for row in await list_schedules(database)] == ["new"]


async def test_a_schedule_whose_task_is_gone_as_well_does_not_fire_for_ever(app: App, database: Database) -> None:
    async with scheduling(app, declared(app, Every(3600.0), name="old")):
        pass
    async with scheduling(app):
        assert await list_schedules(database) == []


async def test_schedules_of_another_application_are_left_alone(app: App, database: Database) -> None:
    other = App("other", database_url=app.settings.database_url)

    @other.task(name="tock", every="1h")
    async def tock() -> None: ...

    async with scheduling(app, declared(app, Every(3600.0))), other.database() as own:
        await migrate(own)
        async with running_scheduler(other):
            assert [row["name"] for row in await list_schedules(database)] == ["beat"]
            assert [row["name"] for row in await list_schedules(own)] == ["tock"]


async def test_jitter_spreads_the_start_of_a_fire_and_nothing_else(app: App, database: Database) -> None:
    now = time.time()
    schedule = declared(app, Every(60.0, anchor=now - 30), catchup="all", jitter=20)
    await declare_schedules(database, [schedule], now - 600)
    async with scheduling(app, schedule):
        await eventually(lambda: decided(database))
    rows = await database.fetch("SELECT origin, due_at FROM tidemill.job ORDER BY id")
    late = []
    for row in rows:
        fire = msgspec.json.decode(row["origin"])["fire"]
        assert row["due_at"].timestamp() == pytest.approx(jittered(fire, 20, "beat"), abs=1e-3)
        late.append(row["due_at"].timestamp() - fire)
    assert len(rows) == 10
    assert all(0 <= seconds < 20 for seconds in late)
    assert len({round(seconds, 3) for seconds in late}) > 5


# What goes wrong


async def test_a_schedule_that_cannot_be_fired_does_not_stop_the_others(app: App, database: Database) -> None:
    """As on a host that does not know its time zone."""
    lost = declared(app, Cron("* * * * * *", "Mars/Olympus"), name="lost")
    async with scheduling(app, declared(app, Every(0.1), name="clock")):
        await database.fetch(
            "INSERT INTO tidemill.schedule (name, task, queue, spec, job, decided, next_fire) "
            "VALUES ('lost', 'tick', 'ticks', $1, $2, 0, now())",
            msgspec.json.encode(lost.spec),
            msgspec.json.encode(lost.work),
        )
        await eventually(lambda: value(database, "SELECT next_fire > now() FROM tidemill.schedule WHERE name = 'lost'"))
        before = (await schedule_row(database, "clock"))["fired"]
        await eventually(lambda: value(database, "SELECT max(fired) > $1 FROM tidemill.schedule", before + 1))
    assert (await schedule_row(database, "lost"))["fired"] == 0


async def test_a_host_whose_clock_is_wrong_declares_by_the_clock_of_the_database(app: App, database: Database) -> None:
    app.schedule("beat", app.declarations.tasks["tick"].call(), every=0.1)
    async with app.database() as own:
        clock = VirtualClock(time.time() + 3600)
        scheduler = Role(Scheduler(own, app.declarations.stored_schedules(), clock=clock), own)
        life = asyncio.create_task(scheduler.run())
        await eventually(lambda: value(database, "SELECT fired > 1 FROM tidemill.schedule"))
        scheduler.stop()
        await life
