"""Which job goes first, and how one worker shares itself between its queues."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.support import eventually, running_worker, value
from tidemill import App
from tidemill.engine.worker.claimer import SAFETY_POLL
from tidemill.store.database import Database


@pytest.fixture
def seen() -> list[int]:
    return []


@pytest.fixture
def app(app: App, seen: list[int]) -> App:
    @app.task
    async def note(n: int) -> None:
        seen.append(n)

    return app


async def all_done(database: Database) -> bool:
    return await value(database, "SELECT NOT EXISTS (SELECT FROM tidemill.job WHERE due_at <= now())")


async def test_higher_priorities_go_first_then_what_was_due_first_then_what_was_stored_first(
    app: App, database: Database, seen: list[int]
) -> None:
    # n tells the right order: priority, then due time, then order of enqueueing.
    wanted = [
        (priority, due, twin) for priority in range(9, -1, -1) for due in (100.0, 200.0, 300.0) for twin in (1, 2)
    ]
    jobs = list(enumerate(wanted))
    random.Random(7).shuffle(jobs)
    jobs.sort(key=lambda job: job[1][2])  # twins in order, for the id decides between them
    for n, (priority, due, _) in jobs:
        await app.enqueue("note", n, priority=priority, at=due)
    async with running_worker(app, max_concurrency=1):
        await eventually(lambda: all_done(database))
    assert seen == list(range(len(wanted)))


async def test_a_thousand_quick_jobs_start_in_order_although_they_are_taken_in_batches(
    app: App, database: Database, seen: list[int]
) -> None:
    numbers = list(range(1000))
    for priority in (0, 5, 9):
        await app.enqueue_many("note", ({"n": priority * 1000 + n} for n in numbers), priority=priority)
    async with running_worker(app, max_concurrency=1):
        await eventually(lambda: all_done(database))
    assert seen == [priority * 1000 + n for priority in (9, 5, 0) for n in numbers]


@pytest.mark.parametrize("limited", [False, True])
async def test_a_host_that_leaves_urgent_jobs_to_others_begins_with_the_lowest_priority(
    app: App, database: Database, seen: list[int], limited: bool
) -> None:
    app.declarations.configure(host_priority="lowest")
    if limited:
        app.queue("default", rate=1000.0, burst=100.0)
    for n, (priority, due) in enumerate((priority, due) for priority in (0, 5, 9) for due in (100.0, 200.0)):
        await app.enqueue("note", n, priority=priority, at=due)
    async with running_worker(app, max_concurrency=1):
        await eventually(lambda: all_done(database))
    assert seen == list(range(6))


async def test_an_urgent_job_overtakes_a_long_queue(app: App, database: Database, seen: list[int]) -> None:
    @app.task
    async def slow(n: int) -> None:
        seen.append(n)
        if n == 3:
            await app.enqueue("note", -1, priority=9)

    await app.enqueue_many(slow, ({"n": n} for n in range(3000)))
    async with running_worker(app, max_concurrency=1):
        await eventually(lambda: all_done(database))
    assert len(seen) == 3001
    assert seen.index(-1) < 1500


async def test_a_long_queue_does_not_starve_a_short_one_on_the_same_worker(app: App, database: Database) -> None:
    order: list[str] = []

    @app.task(queue="long")
    async def long() -> None:
        order.append("long")

    @app.task(queue="short")
    async def short() -> None:
        order.append("short")

    await app.enqueue_many(long, ({} for _ in range(2000)))
    await app.enqueue_many(short, ({} for _ in range(20)))
    async with running_worker(app, ["long", "short"], max_concurrency=4):
        await eventually(lambda: all_done(database))
    assert order.count("short") == 20
    last_short = len(order) - 1 - order[::-1].index("short")
    assert last_short < 500


async def test_two_long_queues_of_one_worker_advance_together(app: App, database: Database) -> None:
    order: list[str] = []

    @app.task(queue="a")
    async def first() -> None:
        order.append("a")

    @app.task(queue="b")
    async def second() -> None:
        order.append("b")

    await app.enqueue_many(first, ({} for _ in range(1000)))
    await app.enqueue_many(second, ({} for _ in range(1000)))
    async with running_worker(app, ["a", "b"], max_concurrency=4):
        await eventually(lambda: all_done(database))
    half = order[:1000]
    assert 300 <= half.count("a") <= 700


async def test_a_worker_serves_only_its_queues(app: App, database: Database, seen: list[int]) -> None:
    await app.enqueue("note", 1, queue="mine")
    await app.enqueue("note", 2, queue="not mine")
    await app.enqueue("note", 3, queue="mine")
    async with running_worker(app, ["mine"], max_concurrency=1):
        await eventually(lambda: len(seen) == 2)
    assert seen == [1, 3]
    assert await value(database, "SELECT state FROM tidemill.job") == "ready"


async def test_a_job_whose_transaction_commits_late_starts_though_the_worker_has_gone_on_to_later_jobs(
    app: App, database: Database, seen: list[int]
) -> None:
    async with running_worker(app), database.acquire() as connection:
        async with connection.transaction():
            await app.enqueue("note", 1, conn=connection)
            for n in (2, 3):
                await app.enqueue("note", n)
                await eventually(lambda n=n: n in seen)
            await eventually(lambda: all_done(database))
        committed = time.monotonic()
        await eventually(lambda: 1 in seen)
        assert time.monotonic() - committed < SAFETY_POLL / 2


async def test_a_delayed_job_starts_when_it_is_due_in_any_of_more_queues_than_the_worker_has_slots(
    app: App, database: Database, seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.worker.claimer.SAFETY_POLL", 3600.0)
    queues = [f"queue{number}" for number in range(7)]
    async with running_worker(app, queues=queues, max_concurrency=1):
        for n, queue in enumerate(queues):
            await app.enqueue("note", n=n, queue=queue, delay=0.3)
            async with asyncio.timeout(60):
                await eventually(lambda n=n: n in seen)
    assert seen == list(range(7))
