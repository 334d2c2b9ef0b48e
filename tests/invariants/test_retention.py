"""Old history goes by the day; what is unfinished and what is newer is not touched, and work never stops for it."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from tests.support import ending, eventually, find_history, find_live, puppet, value
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.jobs.history import partitions as history_partitions
from tidemill.store.jobs.read import show_job

KEEP = 30


@pytest.fixture
async def database(database: Database) -> Database:
    """The fresh database without the partitions of days, which other tests find there."""
    await history_partitions.drop_partitions(database, date(9000, 1, 1), keep_days=1)
    return database


@pytest.fixture
def task(app: App) -> Any:
    @app.task
    async def anything(n: int = 0) -> None: ...

    return anything


async def today_of(database: Database) -> date:
    """The database's day, by which history is kept."""
    return (await value(database, "SELECT now()")).astimezone(UTC).date()


async def finish_on(database: Database, day: date, count: int = 10) -> list[int]:
    """History of a day: jobs that finished then."""
    moment = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    rows = await database.fetch(
        "INSERT INTO tidemill.job_history (id, finished_at, due_at, created_at, attempt, failures, losses, priority, "
        "state, queue, task, args) SELECT nextval('tidemill.job_id_seq'), $1, $1, $1, 1, 0, 0, 5, 'succeeded', "
        "'default', 'anything', '{}' FROM generate_series(1, $2) RETURNING id",
        moment,
        count,
    )
    return [row["id"] for row in rows]


async def snapshot(database: Database) -> list[dict[str, Any]]:
    """Every unfinished job as it is."""
    return [dict(row) for row in await database.fetch("SELECT * FROM tidemill.job ORDER BY id")]


async def kept_ids(database: Database) -> set[int]:
    return {row["id"] for row in await database.fetch("SELECT id FROM tidemill.job_history")}


async def test_old_days_go_and_newer_history_and_unfinished_jobs_stay(app: App, database: Database, task: Any) -> None:
    today = await today_of(database)
    history: dict[int, list[int]] = {}
    for age in (60, KEEP + 1, KEEP, 1, 0):
        day = today - timedelta(days=age)
        await history_partitions.make_partitions(database, day, days_ahead=0)
        history[age] = await finish_on(database, day)
    async with puppet(database) as worker:
        await app.enqueue_many(task, [{"n": n} for n in range(5)])
        await app.enqueue(task, delay="10d")
        await app.enqueue(task, concurrency_key="k", max_concurrency=1)
        await app.enqueue(task, concurrency_key="k", max_concurrency=1)
        running = await worker.claim(room=2)
        # Work that has waited for longer than history is kept is work all the same.
        await database.fetch("UPDATE tidemill.job SET created_at = now() - interval '90 days'")
        before = await snapshot(database)

        dropped = await history_partitions.drop_partitions(database, today, keep_days=KEEP)

        assert dropped == [f"job_history_{today - timedelta(days=age):%Y%m%d}" for age in (60, KEEP + 1)]
        assert await kept_ids(database) == {*history[KEEP], *history[1], *history[0]}
        assert await snapshot(database) == before
        await worker.turn([ending(job) for job in running])
        assert {job.id for job in running} <= await kept_ids(database)


async def test_a_job_finishes_even_when_nobody_made_a_partition_for_today(
    app: App, database: Database, task: Any
) -> None:
    assert await history_partitions.list_partitions(database) == ["job_history_default"]
    async with puppet(database) as worker:
        await app.enqueue_many(task, [{"n": n} for n in range(3)])
        jobs = await worker.claim(room=3)
        await worker.turn([ending(jobs[0], "on the hot path")])
        assert await worker.finish(jobs[1], "on the other") == [jobs[1].id]
        today = await today_of(database)
        made = await history_partitions.make_partitions(database, today)
        assert len(made) == 3, "today's rows are in the default partition already; the days to come get theirs"
        assert await worker.finish(jobs[2], "later the same day") == [jobs[2].id]
        for job in jobs:
            assert (await find_history(database, job.id))[0]["state"] == "succeeded"
            shown = await show_job(database, job.id)
            assert shown is not None
            assert shown["state"] == "succeeded"

        await history_partitions.drop_partitions(database, today, keep_days=KEEP)
        assert await kept_ids(database) == {job.id for job in jobs}
        later = today + timedelta(days=KEEP + 1)
        await history_partitions.drop_partitions(database, later, keep_days=KEEP)
        assert await kept_ids(database) == set(), "rows of the default partition age out as well"


async def test_jobs_go_on_finishing_across_midnight(app: App, database: Database, task: Any) -> None:
    """Midnight is where one partition ends and the next begins: here in a moment from now."""
    done: list[int] = []
    async with puppet(database) as worker:

        async def work() -> None:
            await app.enqueue_many(task, [{"n": n} for n in range(20)])
            jobs = await worker.claim(room=20)
            await worker.turn([ending(job, job.id) for job in jobs])
            done.extend(job.id for job in jobs)

        async def work_past_midnight() -> bool:
            await work()
            return bool(await value(database, "SELECT count(*) FROM tidemill.job_history_after"))

        for seconds in (0.4, 2.0, 10.0):  # The longest time until a worker has finished a job before it.
            await make_midnight(database, seconds)
            await work()
            if await value(database, "SELECT count(*) FROM tidemill.job_history_before"):
                break
            await database.fetch("DROP TABLE tidemill.job_history_before")
            await database.fetch("DROP TABLE tidemill.job_history_after")
            done.clear()
        await eventually(work_past_midnight)
    places = {
        name: {row["id"] for row in await database.fetch(f"SELECT id FROM tidemill.job_history_{name}")}
        for name in ("before", "after", "default")
    }
    assert places["before"]
    assert places["after"]
    assert places["default"] == set()
    assert places["before"] | places["after"] == set(done)
    assert len(await database.fetch("SELECT id FROM tidemill.job_history")) == len(done)
    assert await snapshot(database) == []


async def make_midnight(database: Database, seconds: float) -> None:
    """Two partitions that meet at a moment so many seconds from now."""
    midnight = await value(database, "SELECT clock_timestamp() + make_interval(secs => $1)", seconds)
    for name, first, last in (
        ("before", midnight - timedelta(hours=1), midnight),
        ("after", midnight, midnight + timedelta(hours=1)),
    ):
        await database.fetch(
            f"CREATE TABLE tidemill.job_history_{name} PARTITION OF tidemill.job_history "
            f"FOR VALUES FROM ('{first.isoformat()}') TO ('{last.isoformat()}')"
        )


async def test_dropping_while_jobs_finish_loses_none(app: App, database: Database, task: Any) -> None:
    today = await today_of(database)
    await history_partitions.make_partitions(database, today)
    done: list[int] = []
    stop = asyncio.Event()

    async def work() -> None:
        async with puppet(database) as worker:
            while not stop.is_set():
                await app.enqueue_many(task, [{"n": n} for n in range(50)])
                jobs = await worker.claim(room=50)
                await worker.turn([ending(job) for job in jobs])
                done.extend(job.id for job in jobs)

    working = asyncio.create_task(work())
    for age in range(KEEP + 1, KEEP + 11):
        day = today - timedelta(days=age)
        await history_partitions.make_partitions(database, day, days_ahead=0)
        await finish_on(database, day)
        assert await history_partitions.drop_partitions(database, today, keep_days=KEEP) == [
            f"job_history_{day:%Y%m%d}"
        ]
    stop.set()
    await working
    assert done
    assert await kept_ids(database) == set(done)


async def test_a_long_read_of_the_history_does_not_let_retention_stop_the_work(
    app: App, database_url: str, database: Database, task: Any
) -> None:
    """A report or a backup holds its transaction open: dropping waits for it, and nobody may wait for the dropping."""
    today = await today_of(database)
    old = today - timedelta(days=KEEP + 1)
    await history_partitions.make_partitions(database, old, days_ahead=0)
    ids = await finish_on(database, old)
    report = await asyncpg.connect(database_url)
    transaction = report.transaction()
    await transaction.start()
    assert await report.fetchval("SELECT count(*) FROM tidemill.job_history") == len(ids)
    async with puppet(database) as worker:
        await app.enqueue(task)
        (job,) = await worker.claim()
        dropping = asyncio.create_task(history_partitions.drop_partitions(database, today, keep_days=KEEP))
        making = asyncio.create_task(history_partitions.make_partitions(database, today))
        try:
            await asyncio.wait([dropping, making], timeout=0.3)
            async with asyncio.timeout(120):
                await worker.turn([ending(job)])
            assert await find_live(database, job.id) is None
        finally:
            await transaction.rollback()
            report.terminate()
            await asyncio.gather(dropping, making, return_exceptions=True)
    await history_partitions.drop_partitions(database, today, keep_days=KEEP)
    assert await kept_ids(database) == {job.id}, "the next round of housekeeping drops what the last one could not"
