"""The ends of a run's jobs that are stored in one row count once: whoever dies, and whichever version reads them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tests.support import eventually, lapse, run_worker_process, running_maintenance, value
from tests.support.dag_runs import (
    DAG_RUNS,
    held_up,
    is_blocked,
    nothing_left,
    one_success_each,
    reaches,
    running_dags,
    running_worker_of,
)
from tests.support.durable import make_tables, running_run_worker
from tidemill import App
from tidemill.dags import Dag, node, ref
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.store.database import Database
from tidemill.store.jobs.history.archive import SEVERAL

WIDTH = 7
NAMES = [f"n{number}" for number in range(WIDTH)]
LEVEL = Dag(
    "level",
    [*(node(name, "wait", args={"n": n}) for n, name in enumerate(NAMES)), node("end", "add", args={"n": ref("n3")})],
    result=ref("end"),
)
# As the version before registers a worker.
REGISTER_AS_BEFORE = """
INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until)
VALUES ('older', 1, '{}', '{}', 1, '{}', now() + interval '1 hour') RETURNING id
"""
ROWS = "SELECT count(*) FROM tidemill.inbox WHERE work = $1"


@pytest.fixture
async def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def app(
    app: App, gate: asyncio.Event, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> App:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)
    await make_tables(database)

    @app.task
    async def wait(n: int) -> int:
        await gate.wait()
        return n

    @app.task
    async def add(n: int) -> int:
        return n + 1

    return app


async def all_ended(database: Database) -> bool:
    return await value(database, "SELECT count(*) = $1 FROM tidemill.job_history", WIDTH)


async def all_at_work(run: DagHandle, database: Database) -> None:
    await reaches(run, **dict.fromkeys(NAMES, "running"))
    running = "SELECT count(*) = $1 FROM tidemill.job WHERE state = 'running'"
    await eventually(lambda: value(database, running, WIDTH))


async def test_ends_count_once_if_their_reader_is_killed_between_the_statement_that_stores_them_and_its_turn(
    app: App, database: Database, database_url: str, gate: asyncio.Event
) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_maintenance(app))
        await stack.enter_async_context(running_worker_of(app, max_concurrency=WIDTH))
        owner = await stack.enter_async_context(run_worker_process(database_url, DAG_RUNS))
        run = await app.start(LEVEL)
        await all_at_work(run, database)
        async with held_up(database, run):
            gate.set()
            await eventually(lambda: all_ended(database))
            assert await value(database, ROWS, SEVERAL) == 1
            await eventually(lambda: value(database, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
            owner.kill()
        await lapse(database, owner.pid)
        await stack.enter_async_context(running_run_worker(app))
        assert await run.result(timeout=60) == 4
        assert len(await one_success_each(database, run)) == WIDTH + 1
        await eventually(lambda: nothing_left(database))


async def test_an_owner_that_has_read_ends_together_writes_none_of_them_when_a_worker_of_the_version_before_comes(
    app: App, database: Database, gate: asyncio.Event
) -> None:
    async with running_dags(app, max_concurrency=WIDTH):
        run = await app.start(LEVEL)
        await all_at_work(run, database)
        async with held_up(database, run) as connection:
            gate.set()
            await eventually(lambda: all_ended(database))
            assert await value(database, ROWS, SEVERAL) == 1
            await eventually(lambda: value(database, "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
            await connection.fetch(database.sql(REGISTER_AS_BEFORE))
            told = await connection.fetch(database.sql("SELECT work, data ->> 'result' AS n FROM tidemill.inbox"))
            assert sorted((row["work"], int(row["n"])) for row in told) == [(n + 1, n) for n in range(WIDTH)]
        assert await run.result(timeout=60) == 4
        assert len(await one_success_each(database, run)) == WIDTH + 1
        await eventually(lambda: nothing_left(database))


async def test_a_worker_of_the_version_before_waits_for_statements_that_store_ends_together(
    app: App, database: Database, database_url: str, gate: asyncio.Event
) -> None:
    older = await asyncpg.connect(database_url, server_settings={"application_name": "an older worker"})
    async with running_maintenance(app), running_worker_of(app, max_concurrency=WIDTH):
        async with running_run_worker(app):
            run = await app.start(LEVEL)
            await all_at_work(run, database)
        async with database.transaction(patience=30.0) as connection:
            await connection.execute("SELECT FROM tidemill.job WHERE state = 'running' FOR UPDATE")
            gate.set()
            await eventually(lambda: is_blocked(database, "test worker"))
            registering = asyncio.create_task(older.fetchval(database.sql(REGISTER_AS_BEFORE)))
            await eventually(lambda: is_blocked(database, "an older worker"))
        number = await registering
        assert await value(database, ROWS, SEVERAL) == 0
        assert await value(database, "SELECT count(DISTINCT work) FROM tidemill.inbox") == WIDTH

        gate.clear()
        async with running_run_worker(app):
            assert await run.result(timeout=60) == 4
            second = await app.start(LEVEL)
            await reaches(second, **dict.fromkeys(NAMES, "running"))
        gate.set()
        await eventually(lambda: value(database, "SELECT count(*) = $1 FROM tidemill.job_history", 2 * WIDTH + 1))
        assert await value(database, ROWS, SEVERAL) == 0, "the older worker may read it"
        await older.execute(database.sql("UPDATE tidemill.worker SET ended_at = now() WHERE id = $1"), number)
        async with running_run_worker(app):
            assert await second.result(timeout=60) == 4
            await eventually(lambda: nothing_left(database))
    await older.close()


async def test_an_end_with_a_large_result_has_its_own_row(app: App, database: Database, gate: asyncio.Event) -> None:
    @app.task
    async def text(size: int) -> str:
        await gate.wait()
        return "x" * size

    sizes = (3, 4, 5_000)
    dag = Dag("texts", [node(f"n{size}", "text", args={"size": size}) for size in sizes])
    async with running_maintenance(app), running_worker_of(app, max_concurrency=WIDTH):
        async with running_run_worker(app):
            run = await app.start(dag)
            await reaches(run, n3="running", n4="running", n5000="running")
        gate.set()
        await eventually(lambda: value(database, "SELECT count(*) = 3 FROM tidemill.job_history"))
        assert await value(database, ROWS, SEVERAL) == 1
        assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 2
        async with running_run_worker(app):
            assert await run.result(timeout=60) == {f"n{size}": "x" * size for size in sizes}
