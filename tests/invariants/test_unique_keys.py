"""No second unfinished job of a task has the same unique key, however many ask for one at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from tests.support import ending, eventually, puppet, value
from tests.support.callers import asyncpg_plain
from tests.support.processes import ROOT
from tidemill import App, JobHandle
from tidemill.core.jobs.job import JobRef
from tidemill.store.connection.url import database_of
from tidemill.store.database import Database
from tidemill.store.jobs.insert import insert_jobs

ENQUEUERS = 20
WINDOWS = pytest.mark.parametrize("window", [None, "1h"], ids=["while unfinished", "for an hour"])

# Waits for the word, then enqueues the same key from several connections at once, and says what it was told.
ASKER = """
import sys, threading
from tidemill import App

url, window = sys.argv[1], sys.argv[2] or None
apps, answers = [], []

def declare():
    app = App("enqueuer", database_url=url)

    @app.task
    async def report(n: int = 0) -> None: ...

    app.enqueue_sync(report, unique_key=f"warm-up {id(app)}")
    return app

apps = [declare() for _ in range(5)]
print("ready", flush=True)
sys.stdin.readline()
threads = [
    threading.Thread(
        target=lambda app=app: answers.append(app.enqueue_sync("report", unique_key="k", unique_for=window))
    )
    for app in apps
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for ref in answers:
    print(ref.id, int(ref.created))
"""


def declare(app: App) -> Any:
    @app.task
    async def report(n: int = 0) -> None: ...

    return report


@pytest.fixture
def task(app: App) -> Any:
    return declare(app)


@asynccontextmanager
async def many_apps(url: str) -> AsyncIterator[list[App]]:
    """Applications with a connection each."""
    async with AsyncExitStack() as stack:
        apps = [App("enqueuer", database_url=url, pool_size=1) for _ in range(ENQUEUERS)]
        for app in apps:
            declare(app)
            await stack.enter_async_context(app)
        yield apps


async def assert_one_holder(database: Database, answers: Sequence[JobHandle[Any] | JobRef]) -> None:
    """One of the askers created the job, and all were told its id."""
    assert len(answers) == ENQUEUERS
    assert sum(ref.created for ref in answers) == 1
    assert len({ref.id for ref in answers}) == 1
    rows = await database.fetch("SELECT id FROM tidemill.job WHERE unique_key = 'k'")
    assert [row["id"] for row in rows] == [answers[0].id]


@WINDOWS
async def test_twenty_applications_that_ask_at_once_get_one_job(
    database_url: str, database: Database, window: str | None
) -> None:
    async with many_apps(database_url) as apps:
        answers = await asyncio.gather(*(app.enqueue("report", unique_key="k", unique_for=window) for app in apps))
    await assert_one_holder(database, answers)


@WINDOWS
async def test_twenty_calls_in_one_process_that_ask_at_once_get_one_job(
    app: App, database: Database, task: Any, window: str | None
) -> None:
    answers = await asyncio.gather(
        *(app.enqueue(task.call(n=n), unique_key="k", unique_for=window) for n in range(ENQUEUERS))
    )
    await assert_one_holder(database, answers)


@WINDOWS
async def test_twenty_transactions_in_threads_that_ask_at_once_get_one_job(
    app: App, database_url: str, database: Database, task: Any, window: str | None
) -> None:
    together = threading.Barrier(ENQUEUERS)

    def ask() -> JobHandle[Any]:
        with psycopg.connect(database_url) as connection:
            connection.execute("SELECT 1")
            together.wait()
            return app.enqueue_sync(task.call(), conn=connection, unique_key="k", unique_for=window)

    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[JobHandle[Any]]] = [loop.create_future() for _ in range(ENQUEUERS)]
    threads = [
        threading.Thread(target=lambda answer=answer: loop.call_soon_threadsafe(answer.set_result, ask()))
        for answer in answers
    ]
    for thread in threads:
        thread.start()
    await assert_one_holder(database, list(await asyncio.gather(*answers)))
    for thread in threads:
        thread.join()


@WINDOWS
async def test_four_processes_with_five_connections_each_get_one_job(
    database_url: str, database: Database, window: str | None
) -> None:
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, database_url, window or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(4)
    ]
    try:
        for asker in askers:
            assert asker.stdout is not None
            assert await asyncio.to_thread(asker.stdout.readline) == "ready\n"
        for asker in askers:
            assert asker.stdin is not None
            asker.stdin.write("go\n")
            asker.stdin.flush()
        said = [await asyncio.to_thread(asker.communicate) for asker in askers]
    finally:
        for asker in askers:
            asker.kill()
            asker.wait()
    lines = [line.split() for out, _ in said for line in out.splitlines()]
    await assert_one_holder(database, [JobRef(int(job), created == "1") for job, created in lines])


async def test_one_key_never_has_two_unfinished_jobs_while_they_come_and_go(
    database_url: str, database: Database
) -> None:
    """Twenty ask again and again while a worker finishes: the answers are as many jobs as have run."""
    created: list[int] = []
    done: list[int] = []

    async def ask(app: App) -> None:
        for _ in range(10):
            ref = await app.enqueue("report", unique_key="k")
            if ref.created:
                created.append(ref.id)

    async def serve() -> None:
        async with puppet(database) as worker:
            while not asking.done() or len(done) < len(created):
                jobs = await worker.claim(room=10)
                assert len(jobs) <= 1
                await worker.turn([ending(job) for job in jobs])
                done.extend(job.id for job in jobs)
                await asyncio.sleep(0)

    async with many_apps(database_url) as apps:
        asking = asyncio.gather(*(ask(app) for app in apps))
        await asyncio.gather(asking, serve())
    assert len(created) > 1
    assert sorted(created) == sorted(done)
    assert len(set(created)) == len(created)


async def test_the_key_is_free_again_when_its_job_has_finished(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as worker:
        first = await app.enqueue(task.call(), unique_key="k")
        (job,) = await worker.claim()
        assert not (await app.enqueue(task.call(), unique_key="k")).created, "still held while it runs"
        await worker.give_back(job)
        assert not (await app.enqueue(task.call(), unique_key="k")).created, "still held while it waits for a retry"
        (job,) = await worker.claim()
        await worker.finish(job, None, "failed")
        second = await app.enqueue(task.call(), unique_key="k")
    assert second.created
    assert second.id != first.id


async def test_with_a_window_the_key_stays_taken_after_its_job_until_the_window_ends(
    app: App, database: Database, task: Any
) -> None:
    async with puppet(database) as worker:
        first = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
        (job,) = await worker.claim()
        await worker.finish(job)
        held = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
        assert (held.id, held.created) == (first.id, False)
        await database.fetch("UPDATE tidemill.unique_window SET until = now() - interval '1 second'")
        again = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
        assert again.created
        held = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
        assert (held.id, held.created) == (again.id, False)


async def test_a_window_that_ends_before_its_job_does_not_let_a_second_one_in(
    app: App, database: Database, task: Any
) -> None:
    first = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
    await database.fetch("UPDATE tidemill.unique_window SET until = now() - interval '1 second'")
    second = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
    assert (second.id, second.created) == (first.id, False)


async def test_the_same_key_of_another_task_is_another_key(app: App, database: Database, task: Any) -> None:
    @app.task
    async def other() -> None: ...

    for window in (None, "1h"):
        refs = [await app.enqueue(each.call(), unique_key=f"k {window}", unique_for=window) for each in (task, other)]
        assert all(ref.created for ref in refs)


@WINDOWS
async def test_a_batch_with_the_same_key_twice_stores_it_once_and_answers_for_each(
    app: App, database: Database, task: Any, window: float | None
) -> None:
    seconds = None if window is None else 3600.0
    keys = ["a", "b", "a", None, "c", "b", "a", None]
    jobs = [
        task.new_job(b'{"n":%d}' % n, unique_key=key, unique_for=None if key is None else seconds)
        for n, key in enumerate(keys)
    ]
    async with database.transaction() as connection:
        refs = await insert_jobs(database, connection, jobs, notify=True)
    assert [ref.created for ref in refs] == [True, True, False, True, True, False, False, True]
    assert refs[2].id == refs[6].id == refs[0].id
    assert refs[5].id == refs[1].id
    rows = await database.fetch("SELECT id, args FROM tidemill.job ORDER BY id")
    assert [row["args"] for row in rows] == [b'{"n":%d}' % n for n in (0, 1, 3, 4, 7)]
    assert [row["id"] for row in rows] == sorted(ref.id for ref in refs if ref.created)


async def test_a_job_without_a_key_is_stored_while_another_call_waits_for_its_key(
    app: App, database_url: str, database: Database, task: Any
) -> None:
    await app.enqueue(task.call())
    async with asyncpg_plain(database_url) as other:
        holder = await other.enqueue(app, task, unique_key="k")
        waiting = asyncio.create_task(app.enqueue(task.call(), unique_key="k"))
        await eventually(
            lambda: database.fetch(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        async with asyncio.timeout(20):
            await asyncio.gather(*(app.enqueue(task.call(n=n)) for n in range(3)))
        assert not waiting.done()
        await other.commit()
    refused = await waiting
    assert (refused.id, refused.created) == (holder.id, False)


@pytest.mark.parametrize("way", ["enqueue_many", "batch"])
async def test_many_jobs_are_stored_although_a_transaction_takes_their_keys_in_another_order(
    app: App, database_url: str, database: Database, task: Any, way: str
) -> None:
    """PostgreSQL ends the deadlock by giving up the one that has waited for long enough first: the application's."""
    await database.fetch(f"ALTER DATABASE {database_of(database_url)} SET deadlock_timeout = '3s'")
    async with asyncpg_plain(database_url) as other:
        await other.connection.execute("SET deadlock_timeout = '1min'")
        await other.enqueue(app, task, n=2, unique_key="k2")
        put: Any = app.enqueue_many if way == "enqueue_many" else app.batch
        many = asyncio.create_task(put([task.call(n=1), task.call(n=2), task.call(n=3)], unique_key="k{n}"))
        await eventually(
            lambda: database.fetch(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        await other.enqueue(app, task, n=1, unique_key="k1")
        await other.commit()
    await many
    rows = await database.fetch("SELECT unique_key FROM tidemill.job ORDER BY 1")
    assert [row["unique_key"] for row in rows] == ["k1", "k2", "k3"]


@pytest.mark.parametrize(("first", "second"), [(None, "1h"), ("1h", None)])
async def test_a_refused_caller_is_told_a_job_that_exists(
    app: App, database_url: str, database: Database, task: Any, first: str | None, second: str | None
) -> None:
    """With and without a window at the same moment: the loser must not leave a window that nobody stands behind."""
    async with asyncpg_plain(database_url) as earlier, asyncpg_plain(database_url) as later:
        holder = await earlier.enqueue(app, task, unique_key="k", unique_for=first)
        waiting = asyncio.create_task(later.enqueue(app, task, unique_key="k", unique_for=second))
        await eventually(
            lambda: database.fetch(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        await earlier.commit()
        refused = await waiting
        await later.commit()
    assert (refused.id, refused.created) == (holder.id, False)
    async with puppet(database) as worker:
        (job,) = await worker.claim(room=10)
        await worker.finish(job)
    again = await app.enqueue(task.call(), unique_key="k", unique_for="1h")
    known = await value(
        database,
        "SELECT count(*) FROM (SELECT id FROM tidemill.job UNION SELECT id FROM tidemill.job_history) AS j "
        "WHERE id = $1",
        again.id,
    )
    assert known == 1, f"{again} names a job that never was"
