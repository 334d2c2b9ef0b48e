"""Everything works under another schema name, beside another Tidemill in the same database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.support import eventually, running_maintenance, running_scheduler, running_worker
from tests.support.operate import cancel_jobs, retry_jobs, run_now, set_control, set_paused
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.store.database import Database
from tidemill.store.jobs.history.partitions import list_partitions
from tidemill.store.jobs.pages import JobFilter, list_job_page
from tidemill.store.jobs.queues import list_queues
from tidemill.store.jobs.read import show_job
from tidemill.store.jobs.schedules.schedules import list_schedules
from tidemill.store.jobs.workers import list_workers
from tidemill.store.migrate import OWN_CHAIN, applied_version


@pytest.fixture
async def app(empty_database_url: str) -> AsyncIterator[App]:
    app = App("elsewhere", database_url=empty_database_url, schema="other_name", **PATIENT)
    app.queue("limited", rate="1000/s")
    yield app
    await app.close()


async def test_jobs_schedules_keys_limits_and_operators_work_under_another_schema_name(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.worker.claimer.SAFETY_POLL", 600.0)  # Wake-ups arrive, or nothing happens.

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task(every=0.1)
    async def tick() -> None: ...

    async with (
        app.database() as database,
        running_maintenance(app),
        running_worker(app, ["default", "limited"]) as worker,
        running_scheduler(app),
    ):
        assert await applied_version(database) == OWN_CHAIN.latest
        ref = await app.enqueue(double, 4)
        assert (await app.wait(ref, timeout=120)).result == 8
        keyed = await app.enqueue(double.call(5), unique_key="u", unique_for="1h", concurrency_key="c")
        assert (await app.wait(keyed, timeout=120)).result == 10
        assert (await app.enqueue(double.call(5), unique_key="u", unique_for="1h")).id == keyed.id
        limited = await app.enqueue(double.call(6), queue="limited")
        assert (await app.wait(limited, timeout=120)).result == 12
        connection = await asyncpg.connect(database.dsn)
        async with connection.transaction():
            mine = await app.enqueue(double.call(7), conn=connection)
        await connection.close()
        assert (await app.wait(mine, timeout=120)).result == 14

        await eventually(lambda: fired(database))
        await set_paused(database, "tick", True, by="ann")
        assert (await app.wait((await run_now(database, "tick", by="ann")).id, timeout=150)).state == "succeeded"

        delayed = await app.enqueue(double.call(8), delay="1h")
        await retry_jobs(database, [delayed.id], by="ann")
        assert (await app.wait(delayed, timeout=120)).result == 16
        await set_control(database, worker.work.host, "*", "pause", by="ann")
        await eventually(lambda: worker.work.status == "paused")
        held = await app.enqueue(double, 9)
        await cancel_jobs(database, [held.id], by="ann")
        assert (await app.wait(held, timeout=120)).state == "cancelled"
        assert await show_job(database, held.id) is not None
        assert await list_job_page(database, JobFilter(task="double"))
        assert await list_queues(database)
        assert [row["id"] for row in await list_workers(database)] == [worker.worker_id]
        assert len(await list_partitions(database)) >= 4

        schemas = await database.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'tidemill%'")
        assert schemas == []


async def test_two_schemas_in_one_database_do_not_hear_or_see_each_other(app: App, empty_database_url: str) -> None:
    second = App("second", database_url=empty_database_url, schema="second", **PATIENT)

    @app.task
    async def who() -> str:
        return "first"

    @second.task(name="who")
    async def who_else() -> str:
        return "second"

    async with running_maintenance(app), running_maintenance(second), running_worker(app), running_worker(second):
        one, two = await app.enqueue("who"), await second.enqueue("who")
        assert (await app.wait(one, timeout=120)).result == "first"
        assert (await second.wait(two, timeout=120)).result == "second"
    await second.close()


async def fired(database: Database) -> bool:
    (row,) = await list_schedules(database)
    return row["fired"] >= 2
