"""A queue's rate limit, shared by all workers."""

from __future__ import annotations

import asyncio

from tests.support import eventually, puppet, running_worker, value
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.engine.worker.claimer import SAFETY_POLL, Claimer
from tidemill.engine.worker.isolation import Children
from tidemill.engine.worker.job_runner import JobRunner
from tidemill.store.database import Database
from tidemill.store.jobs.workers import QueueLimit, declare_queues

RATE, BURST, JOBS = 40.0, 4.0, 50


async def test_workers_together_start_no_more_jobs_than_the_rate_and_one_burst_allow(
    app: App, database: Database
) -> None:
    app.queue("calls", rate=RATE, burst=BURST)

    @app.task(queue="calls")
    async def call() -> None: ...

    async def both_have_worked() -> bool:
        """Neither ever runs out of jobs."""
        if await value(database, "SELECT count(*) < $1 FROM tidemill.job", JOBS):
            await app.enqueue_many(call, ({} for _ in range(JOBS)))
        done = "SELECT count(*) >= $1 AND count(DISTINCT worker_id) = 2 FROM tidemill.job_history"
        return await value(database, done, JOBS)

    async with running_worker(app, ["calls"]), running_worker(app, ["calls"]):
        await eventually(both_have_worked)
    await assert_within_rate(database)


async def test_the_first_jobs_of_a_new_limit_start_at_once(app: App, database: Database) -> None:
    app.queue("calls", rate="1/h", burst=3)

    @app.task(queue="calls")
    async def call() -> None: ...

    jobs = await app.enqueue_many(call, ({} for _ in range(4)))
    async with running_worker(app, ["calls"]):
        for job in jobs[:3]:
            await app.wait(job, timeout="30s")
    assert (await app.jobs.get(jobs[3])).state == "ready"


async def test_a_queue_without_a_limit_is_not_slowed_by_one_that_has(app: App, database: Database) -> None:
    app.queue("calls", rate="1/h", burst=1)

    @app.task(queue="calls")
    async def call() -> None: ...

    @app.task(queue="free")
    async def free() -> None: ...

    await app.enqueue_many(call, ({} for _ in range(20)))
    await app.enqueue_many(free, ({} for _ in range(200)))
    async with running_worker(app, ["calls", "free"], max_concurrency=4):
        await eventually(
            lambda: value(database, "SELECT count(*) = 200 FROM tidemill.job_history WHERE queue = 'free'")
        )
    assert await value(database, "SELECT count(*) FROM tidemill.job_history WHERE queue = 'calls'") <= 1


async def test_a_changed_limit_is_followed_by_workers_that_run(app: App, database: Database) -> None:
    app.queue("calls", rate="1/h", burst=1)

    @app.task(queue="calls")
    async def call() -> None: ...

    await app.enqueue_many(call, ({} for _ in range(10)))
    async with running_worker(app, ["calls"]):
        later = App(app.name, database_url=app.settings.database_url)
        later.queue("calls", rate="1000/s")
        later.task(name="call", queue="calls")(call.function)
        async with running_worker(later, ["calls"]):
            await eventually(lambda: value(database, "SELECT count(*) = 10 FROM tidemill.job_history"))


async def test_a_priority_counts_within_a_limited_queue(app: App, database: Database) -> None:
    app.queue("calls", rate=200, burst=1)
    order: list[int] = []

    @app.task(queue="calls")
    async def call(n: int) -> None:
        order.append(n)

    for n in (3, 9, 1, 7):
        await app.enqueue(call.call(n), priority=n)
    async with running_worker(app, ["calls"], max_concurrency=1):
        await eventually(lambda: len(order) == 4)
    assert order == [9, 7, 3, 1]


async def test_a_limit_beyond_all_bounds_lets_every_job_through(app: App, database: Database) -> None:
    app.queue("calls", rate=1e15)

    @app.task(queue="calls")
    async def call() -> None: ...

    await app.enqueue_many(call, ({} for _ in range(10)))
    # As an earlier version may have left it: more tokens than an integer holds.
    await database.fetch("INSERT INTO tidemill.queue (name, by, rate, burst) VALUES ('calls', 'me', 1e15, 1e14)")
    async with running_worker(app, ["calls"]):
        await eventually(lambda: value(database, "SELECT count(*) = 10 FROM tidemill.job_history"))


async def test_a_limit_that_passes_while_the_claimer_decides_how_long_to_wait_is_not_slept_through(
    app: App, database: Database
) -> None:
    @app.task(queue="calls")
    async def call() -> None: ...

    await declare_queues(database, [QueueLimit("calls", rate=2.0, burst=1.0)])
    await app.enqueue_many(call, ({} for _ in range(2)))
    clock, news = VirtualClock(), asyncio.Event()

    def open_queues() -> list[str]:
        """Called after the claimer has read the time to compare with the limits, and before it reads it again."""
        if claimer.limited["calls"] > clock.monotonic():
            clock.advance(1)
        return ["calls"]

    runner = JobRunner(app.declarations.tasks, 1, Children(None), clock, news.set)
    claimer = Claimer(database, runner, ("calls",), clock, news, open_queues)
    claimer.limited = {"calls": 0.0}
    async with puppet(database, "calls") as registered:
        claiming = asyncio.create_task(claimer.run(registered.worker_id))
        done = "SELECT count(*) = 2 FROM tidemill.job_history"
        await eventually(lambda: value(database, done), timeout=SAFETY_POLL / 2)
        claimer.close()
        await claiming
    runner.close()


async def assert_within_rate(database: Database) -> None:
    """In every stretch of time no more started than the bucket could give: its burst, and what flowed in.

    A claim's time is noted before it waits for the bucket, which allows for one more burst.
    """
    rows = await database.fetch(
        "SELECT extract(epoch FROM started_at)::float8 AS at FROM tidemill.job_history ORDER BY started_at"
    )
    starts = [row["at"] for row in rows]
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            allowed = RATE * (starts[last] - starts[first]) + 2 * BURST
            assert last - first + 1 <= allowed, f"{last - first + 1} within {starts[last] - starts[first]:.3f} s"
