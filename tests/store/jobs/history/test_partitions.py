"""History by the day: partitions made ahead, dropped when old, live rows untouched."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from tests.support import find_live, finished, running_maintenance, running_worker, value
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.jobs.history.partitions import drop_partitions, forget_leftovers, list_partitions, make_partitions

TODAY = datetime.now(UTC).date()

INSERT_FINISHED = """
INSERT INTO tidemill.job_history (id, finished_at, due_at, created_at, attempt, failures, losses, priority, state,
                                  queue, task, args)
VALUES ($1, $2, $2, $2, 1, 0, 0, 5, 'succeeded', 'q', 't', '{}')
"""


def name(day: date) -> str:
    return f"job_history_{day:%Y%m%d}"


def noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


@pytest.fixture
async def database(database: Database) -> Database:
    """The fresh database without the partitions of days, which other tests find there."""
    await drop_partitions(database, date(9000, 1, 1), keep_days=1)
    return database


@pytest.fixture
def app(app: App) -> App:
    @app.task
    async def quick(n: int = 0) -> int:
        return n

    return app


async def partition_of(database: Database, job_id: int) -> str:
    return await value(
        database,
        "SELECT c.relname FROM tidemill.job_history AS h JOIN pg_class AS c ON c.oid = h.tableoid WHERE h.id = $1",
        job_id,
    )


async def test_the_maintenance_makes_the_partitions_of_the_days_to_come(app: App, database: Database) -> None:
    async with running_maintenance(app):
        partitions = await list_partitions(database)
    assert {name(TODAY + timedelta(days=ahead)) for ahead in range(1, 3)} <= set(partitions)


async def test_a_finished_job_goes_to_the_partition_of_its_day(app: App, database: Database) -> None:
    await make_partitions(database, TODAY)
    async with running_worker(app):
        ref = await app.enqueue("quick")
        row = await finished(database, ref.id)
    assert await partition_of(database, ref.id) == name(row["finished_at"].date())


async def test_a_job_finishes_also_when_its_day_has_no_partition(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("quick")
        row = await finished(database, ref.id)
    assert await partition_of(database, ref.id) == "job_history_default"
    today = row["finished_at"].date()  # It may be another than when these tests were read.
    await make_partitions(database, today)
    assert name(today + timedelta(days=1)) in await list_partitions(database)
    assert len(await database.fetch("SELECT FROM tidemill.job_history WHERE id = $1", ref.id)) == 1


async def test_making_partitions_twice_makes_them_once(database: Database) -> None:
    assert len(await make_partitions(database, TODAY, days_ahead=2)) == 3
    assert await make_partitions(database, TODAY, days_ahead=2) == []


async def test_days_that_are_old_enough_are_dropped_whole_and_nothing_else(app: App, database: Database) -> None:
    old, kept = TODAY - timedelta(days=31), TODAY - timedelta(days=30)
    for day in (old, kept, TODAY):
        await make_partitions(database, day, days_ahead=0)
    for job_id, day in enumerate((old, old, kept), 1_000_000):
        await database.fetch(INSERT_FINISHED, job_id, noon(day))
    live = await app.enqueue("quick", delay="1h")
    assert await drop_partitions(database, TODAY, keep_days=30) == [name(old)]
    assert name(kept) in await list_partitions(database)
    rows = await database.fetch("SELECT id FROM tidemill.job_history")
    assert [row["id"] for row in rows] == [1_000_002]
    assert await find_live(database, live.id) is not None


async def test_old_rows_without_a_partition_of_their_own_age_out_too(database: Database) -> None:
    await database.fetch(INSERT_FINISHED, 1, noon(TODAY - timedelta(days=40)))
    await database.fetch(INSERT_FINISHED, 2, noon(TODAY - timedelta(days=2)))
    assert await drop_partitions(database, TODAY, keep_days=30) == []
    assert [row["id"] for row in await database.fetch("SELECT id FROM tidemill.job_history")] == [2]


async def test_the_maintenance_drops_what_is_older_than_its_setting(app: App, database: Database) -> None:
    await make_partitions(database, TODAY - timedelta(days=5), days_ahead=0)
    async with running_maintenance(app, keep_days=3):
        assert name(TODAY - timedelta(days=5)) not in await list_partitions(database)


async def test_what_has_outlived_its_use_is_forgotten(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("quick", unique_key="u", unique_for="1h", concurrency_key="c")
        await finished(database, ref.id)
    waiting = await app.enqueue("quick", concurrency_key="still used", delay="1h")
    await forget_leftovers(database)
    assert await value(database, "SELECT count(*) FROM tidemill.unique_window") == 1
    assert await value(database, "SELECT count(*) FROM tidemill.worker") == 1
    await database.fetch("UPDATE tidemill.unique_window SET until = now() - interval '1 hour'")
    await forget_leftovers(database, ended_workers_after=0.0)
    assert await value(database, "SELECT count(*) FROM tidemill.unique_window") == 0
    assert await value(database, "SELECT count(*) FROM tidemill.worker") == 0
    assert await value(database, "SELECT array_agg(key) FROM tidemill.concurrency_key") == ["still used"]
    assert await find_live(database, waiting.id) is not None
