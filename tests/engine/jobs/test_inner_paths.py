"""A job has all defaults of its task, whatever inside Tidemill starts it: a callback, a schedule, a dag, a retry …"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import eventually, running_maintenance, running_worker, value
from tidemill import App, ModelSpec
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, node
from tidemill.ops.jobs.batches import EnqueueBatch, enqueue_batch
from tidemill.ops.jobs.jobs import EnqueueJob, RetryJobs, enqueue_job, retry_jobs
from tidemill.ops.jobs.schedules import (
    BackfillSchedule,
    PutSchedule,
    ScheduleRef,
    backfill_schedule,
    put_schedule,
    run_schedule,
)
from tidemill.ops.runs.start import StartWork, start_work
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare

DEFAULTS = """
SELECT queue, priority, tags, concurrency_key, max_concurrency, replace(fair_key, chr(31), '|'), rate_key, key_rate,
       key_burst, required_model, options ->> 'budget', options -> 'retry' ->> 'max_attempts',
       options -> 'webhook' -> 'args' ->> 'url'
FROM tidemill.job WHERE task = 'follow' ORDER BY id DESC LIMIT 1
"""
WANTED = (
    "after", 8, ["a", "b"], "c-batch", 3, "f-7|r-follow", "r-follow", 5.0, 2.0, "tiny", "60.0", "4", "https://example.org/",
)  # fmt: skip


def declared(url: str) -> App:
    app = App("test", database_url=url, models=[ModelSpec("tiny", load=object)], webhook_secret="s", grace_seconds=5)

    @app.task(
        queue="after", priority=8, tags=["a", "b"], concurrency_key="c-{kind}", max_concurrency=3, fair_key="f-{n}",
        rate_key="r-{name}", rate=5, burst=2, required_model="tiny", budget="1m", retry=4,
        webhook="https://example.org/",
    )  # fmt: skip
    async def follow(n: int = 7, kind: str = "batch", name: str = "follow") -> None: ...

    @app.task
    async def work(fails: bool = False) -> None:
        if fails:
            raise ValueError("no")

    @app.task(on_failure=follow)
    async def failing() -> None:
        raise ValueError("no")

    app.dag(Dag("one", [node("only", "follow")]))
    app.schedule("nightly", follow.call(), every="1h")
    return app


@pytest.fixture
async def shop(database_url: str, database: Database) -> Any:
    app = declared(database_url)
    yield app
    await app.close()
    app.close_sync()


async def failure(app: App, database: Database) -> None:
    await app.enqueue("failing")


async def batch_succeeded(app: App, database: Database) -> None:
    tasks = app.declarations.tasks
    await app.batch([tasks["work"].call()], on_success=tasks["follow"])


async def batch_completed(app: App, database: Database) -> None:
    tasks = app.declarations.tasks
    await app.batch([tasks["work"].call(fails=True)], on_complete=tasks["follow"].call(n=7))


async def batch_by_request(app: App, database: Database) -> None:
    await app.do(enqueue_batch, EnqueueBatch(task="work", each=[{}], on_complete="follow"))


async def batch_from_sql(app: App, database: Database) -> None:
    await declare(database, app.declarations.templates())
    await database.fetch("SELECT tidemill.enqueue_batch('work', ARRAY['{}'::jsonb], on_success => 'follow')")


async def sql(app: App, database: Database) -> None:
    await declare(database, app.declarations.templates())
    await database.fetch("SELECT tidemill.enqueue('follow')")


async def request(app: App, database: Database) -> None:
    await app.do(enqueue_job, EnqueueJob(task="follow"))


async def start(app: App, database: Database) -> None:
    await app.do(start_work, StartWork(name="follow"))


async def dag(app: App, database: Database) -> None:
    await app.start("one")


async def schedule_now(app: App, database: Database) -> None:
    await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.schedule"))
    await app.do(run_schedule, ScheduleRef(name="nightly"))


async def schedule_made_at_run_time(app: App, database: Database) -> None:
    await app.do(put_schedule, PutSchedule(name="soon", start="follow", every="1h"))
    await app.do(run_schedule, ScheduleRef(name="soon"))


async def backfill(app: App, database: Database) -> None:
    await app.do(put_schedule, PutSchedule(name="soon", start="follow", every="1h"))
    now = datetime.now(UTC)
    await app.do(backfill_schedule, BackfillSchedule(name="soon", since=now - timedelta(hours=1), until=now))


PATHS: list[Callable[[App, Database], Awaitable[None]]] = [
    failure, batch_succeeded, batch_completed, batch_by_request, batch_from_sql, sql, request, start, dag, schedule_now,
    schedule_made_at_run_time, backfill,
]  # fmt: skip


async def test_every_path_applies_the_defaults_of_the_task(shop: App, database: Database) -> None:
    wrong: dict[str, Any] = {}
    async with shop.running(queues=["default"]):
        for path in PATHS:
            await path(shop, database)
            await eventually(
                lambda: value(database, "SELECT count(*) FROM tidemill.job WHERE task = 'follow'"), what=path.__name__
            )
            row = await database.fetchrow(DEFAULTS)
            if row is None or tuple(row) != WANTED:
                wrong[path.__name__] = row
            state = await value(database, "SELECT state FROM tidemill.job WHERE task = 'follow' LIMIT 1")
            if state != "ready":  # Its concurrency key has free slots.
                wrong[f"{path.__name__}, state"] = state
            await database.fetch("DELETE FROM tidemill.job WHERE task = 'follow'")
    assert wrong == {}


async def test_facts_of_what_has_ended_are_filled_into_keys(app: App, database: Database) -> None:
    @app.task(queue="after", concurrency_key="of {task}", fair_key="{task}-{job}")
    async def tell(job: int, task: str) -> None: ...

    @app.task(queue="after", rate_key="{succeeded} of {total}", rate="1/h")
    async def close(total: int, succeeded: int, failed: int = 0) -> None: ...

    @app.task(on_failure=tell)
    async def failing() -> None:
        raise ValueError("no")

    async with running_worker(app, ["default"]):
        first, second = await app.enqueue("failing"), await app.enqueue("failing")
        await app.batch([failing.call()], on_complete=close)
        query = "SELECT count(*) = 4 FROM tidemill.job WHERE queue = 'after'"
        await eventually(lambda: value(database, query))
    rows = await database.fetch(
        "SELECT concurrency_key, fair_key, state FROM tidemill.job WHERE task = 'tell' ORDER BY id"
    )
    assert {row["concurrency_key"] for row in rows} == {"of failing"}
    assert {f"failing-{first.id}", f"failing-{second.id}"} < {row["fair_key"] for row in rows}
    assert sorted(row["state"] for row in rows) == ["ready", "throttled", "throttled"]
    assert await value(database, "SELECT rate_key FROM tidemill.job WHERE task = 'close'") == "0 of 1"


async def test_a_callback_with_a_key_waits_for_its_slot_and_wakes_its_worker(app: App, database: Database) -> None:
    seen: list[int] = []

    @app.task(concurrency_key="one", fair_key="{task}")
    async def tell(job: int, task: str) -> None:
        seen.append(job)

    @app.task(on_failure=tell)
    async def failing() -> None:
        raise ValueError("no")

    async with running_worker(app):
        jobs = await app.enqueue_many("failing", [{}] * 5)
        await eventually(lambda: len(seen) == 5)
    assert sorted(seen) == sorted(job.id for job in jobs)


def test_a_key_that_the_end_of_a_job_cannot_fill_in_is_refused(app: App) -> None:
    @app.task(fair_key="{args}")
    async def tell(args: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigError, match=r"task tell for failures: fair_key '\{args\}' does not fit"):

        @app.task(on_failure=tell)
        async def failing() -> None: ...


async def test_edited_arguments_of_a_retry_change_the_keys_that_come_from_them(app: App, database: Database) -> None:
    @app.task(concurrency_key="c-{n}", fair_key="f-{n}", rate_key="r-{n}", rate="1000/s")
    async def work(n: int) -> None:
        if n == 1:
            raise ValueError("no")

    async with running_worker(app):
        own = await app.enqueue(work.call(n=1))
        given = await app.enqueue(work.call(n=1), concurrency_key="c", fair_key="f", rate_key="r")
        for job in (own, given):
            await app.wait(job, timeout=20)
    waiting = await app.enqueue(work.call(n=1), delay="1h")
    await app.do(retry_jobs, RetryJobs(ids=[own.id, given.id, waiting.id], args={"n": 2}))
    rows = await database.fetch(
        "SELECT concurrency_key, replace(fair_key, chr(31), '|'), rate_key, state FROM tidemill.job ORDER BY id"
    )
    changed = ("c-2", "f-2|r-2", "r-2")
    assert sorted(tuple(row)[:3] for row in rows) == sorted([changed, changed, ("c", "f|r", "r")])
    assert sorted(row["state"] for row in rows) == ["ready", "ready", "throttled"]  # One runs at a time.
    async with running_worker(app), running_maintenance(app):
        await asyncio.wait_for(eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.job")), 30)
