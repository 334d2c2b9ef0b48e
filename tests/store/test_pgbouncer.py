"""Behind PgBouncer in transaction mode: everything but LISTEN goes through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from tests.support import eventually, running, running_maintenance, running_scheduler, running_worker
from tests.support.external import External, pgbouncer
from tests.support.operate import cancel_jobs, set_control
from tests.support.waiting import PATIENT
from tidemill import App, current_job
from tidemill.store.jobs.read import show_job
from tidemill.store.jobs.schedules.schedules import list_schedules


@pytest.fixture(scope="module")
def pooled(external: External) -> Iterator[External]:
    """A PgBouncer in front of a database of its own."""
    with psycopg.connect(external.url(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS pooled WITH (FORCE)")
        connection.execute("CREATE DATABASE pooled")
    with pgbouncer(external, "pooled") as bouncer:
        yield bouncer


@pytest.fixture
async def app(external: External, pooled: External) -> AsyncIterator[App]:
    app = App(
        "pooled",
        database_url=pooled.url("pooled"),
        listen_url=external.url("pooled"),
        transaction_pooler=True,
        **PATIENT,
    )
    yield app
    await app.close()
    await asyncio.to_thread(app.close_sync)


async def test_jobs_are_enqueued_run_and_finished_through_the_pooler(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * n

    async with running_maintenance(app), running_worker(app), running_worker(app):
        refs = await asyncio.gather(*(app.enqueue(double, n) for n in range(100)))
        many = await app.enqueue_many(double, ({"n": n} for n in range(1000)))
        for n, ref in enumerate(refs):
            assert (await app.wait(ref, timeout=120)).result == 2 * n
        assert (await app.wait(many[-1], timeout=150)).result == 1998
        plain = await asyncio.to_thread(app.enqueue_sync, double, 4)
        assert (await app.wait(plain, timeout=120)).result == 8


async def test_keys_retries_progress_cancels_limits_and_operators_work_through_the_pooler(app: App) -> None:
    app.queue("limited", rate="500/s")

    @app.task(retry=app.retry(3, backoff=0.01))
    async def flaky() -> int:
        if current_job().attempt < 3:
            raise ValueError
        return current_job().attempt

    @app.task
    async def endless() -> None:
        current_job().report(0.5, "half way")
        await asyncio.Event().wait()

    @app.task(queue="limited")
    async def quick() -> None: ...

    async with app.database() as database, running_maintenance(app), running_worker(app) as worker:
        assert (await app.wait(await app.enqueue(flaky), timeout=150)).result == 3
        keyed = [await app.enqueue(flaky.call(), concurrency_key="k") for _ in range(3)]
        for ref in keyed:
            assert (await app.wait(ref, timeout=120)).state == "succeeded"
        first = await app.enqueue(quick.call(), unique_key="u", delay="1h")
        assert (await app.enqueue(quick.call(), unique_key="u")).id == first.id
        for ref in [await app.enqueue(quick) for _ in range(5)]:
            assert (await app.wait(ref, timeout=120)).state == "succeeded"

        ref = await app.enqueue(endless)
        await running(database, ref.id)

        async def half_way() -> bool:
            row = await show_job(database, ref.id)
            return row is not None and row["progress"] == 0.5

        await eventually(half_way)
        await cancel_jobs(database, [ref.id, first.id], by="ann")
        assert (await app.wait(ref, timeout=120)).state == "cancelled"
        await set_control(database, worker.work.host, "*", "pause", by="ann")
        await eventually(lambda: worker.work.status == "paused")
        await set_control(database, "*", "*", "run", by="ann")
        await eventually(lambda: worker.work.status == "running")


async def test_schedules_fire_through_the_pooler(app: App) -> None:
    @app.task(every=0.1)
    async def tick() -> None: ...

    async with running_maintenance(app), app.database() as database, running_worker(app), running_scheduler(app):

        async def fired() -> bool:
            return any(row["name"] == "tick" and row["fired"] >= 3 for row in await list_schedules(database))

        await eventually(fired)
