"""Of the jobs that share a concurrency key, never more than its limit run at once, however workers die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.support import (
    AppProcess,
    attempts_of,
    ending,
    eventually,
    find_live,
    finished,
    lapse,
    open_gate,
    operate,
    puppet,
    running_maintenance,
    running_worker,
    value,
    worker_process,
)
from tests.support.task_app import declare
from tidemill import App, RetryAfter, Snooze, current_job
from tidemill.ops.jobs.jobs import GetJob, get_job
from tidemill.store.database import Database
from tidemill.store.jobs.insert import ADMIT_THROTTLED

LEASE = 1.0

#: The most executions that overlapped; one that did not come to its end counts until its job was taken from it.
MOST_AT_ONCE = """
SELECT max(n) FROM (
    SELECT (SELECT count(*) FROM execution AS o
            WHERE o.started_at <= e.started_at AND coalesce(o.ended_at, 'infinity') > e.started_at) AS n
    FROM execution AS e) AS seen
"""

HELD = "SELECT count(*) FROM tidemill.job WHERE state = 'running' AND worker_id = $1"


class Counter:
    """How many jobs run at this moment, and how many ever did at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.order: list[Any] = []

    @asynccontextmanager
    async def running(self, what: Any = None) -> AsyncIterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(what)
        try:
            yield
        finally:
            self.now -= 1


@pytest.mark.parametrize("limit", [1, 3])
async def test_several_workers_together_never_run_more_than_the_limit(app: App, database: Database, limit: int) -> None:
    counter = Counter()

    @app.task(concurrency_key="tenant-{tenant}", max_concurrency=limit)
    async def visit(tenant: int, n: int) -> None:
        async with counter.running():
            while counter.most < limit:  # The first ones meet.
                await asyncio.sleep(0.005)

    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(running_worker(app, max_concurrency=5))
        refs = await app.enqueue_many(visit, [{"tenant": 7, "n": n} for n in range(30)])
        refs += await asyncio.gather(*(app.enqueue(visit, tenant=7, n=n) for n in range(30)))
        await eventually(lambda: nothing_left(database))
    assert counter.most == limit
    assert len(counter.order) == len(refs) == 60


async def test_keys_do_not_hold_each_other_up(app: App, database: Database) -> None:
    counter = Counter()
    together = asyncio.Barrier(4)

    @app.task(concurrency_key="tenant-{tenant}", max_concurrency=1)
    async def visit(tenant: int) -> None:
        async with counter.running():
            await together.wait()

    async with running_worker(app, max_concurrency=10):
        refs = await app.enqueue_many(visit, [{"tenant": tenant} for tenant in range(4)])
        for ref in refs:
            await finished(database, ref.id)
    assert counter.most == 4


async def test_a_retry_and_a_snooze_give_their_slot_to_the_next(app: App, database: Database) -> None:
    counter = Counter()

    @app.task(concurrency_key="k", max_concurrency=1, retry=2)
    async def visit(n: int) -> None:
        async with counter.running((n, current_job().attempt)):
            if n == 0 and current_job().attempt == 1:
                raise Snooze(0.05)
            if n == 1 and current_job().attempt == 1:
                raise RetryAfter(0.05)

    async with running_maintenance(app), running_worker(app):
        refs = await app.enqueue_many(visit, [{"n": n} for n in range(4)])
        rows = [await finished(database, ref.id) for ref in refs]
    assert [row["state"] for row in rows] == ["succeeded"] * 4
    assert counter.most == 1
    assert len(counter.order) == 6


async def test_jobs_of_a_key_go_by_priority_and_then_in_order(app: App, database: Database) -> None:
    counter = Counter()
    first_may_end = asyncio.Event()

    @app.task(concurrency_key="k", max_concurrency=1)
    async def visit(n: int) -> None:
        async with counter.running(n):
            if n == 0:
                await first_may_end.wait()

    async with running_worker(app, max_concurrency=5):
        await app.enqueue(visit, n=0)
        await eventually(lambda: counter.order == [0])
        priorities = [5, 5, 9, 1, 5, 9]
        for n, priority in enumerate(priorities, 1):
            await app.enqueue(visit.call(n=n), priority=priority)
        first_may_end.set()
        await eventually(lambda: nothing_left(database))
    assert counter.order == [0, 3, 6, 1, 2, 5, 4]


async def test_a_waiting_job_says_what_it_waits_for_and_a_cancelled_one_lets_the_next_through(
    app: App, database: Database
) -> None:
    @app.task(concurrency_key="k", max_concurrency=1)
    async def visit(n: int) -> None: ...

    refs = [await app.enqueue(visit, n=n) for n in range(3)]
    rows = [await find_live(database, ref.id) for ref in refs]
    assert [row and row["state"] for row in rows] == ["ready", "throttled", "throttled"]
    assert rows[1] is not None
    assert "concurrency key k" in rows[1]["note"]
    why = (await app.do(get_job, GetJob(id=refs[1].id))).why
    assert any(each.endswith(f"may run at once, now job {refs[0].id} (ready).") for each in why), why
    await operate.cancel_jobs(database, [refs[0].id], by="somebody")
    row = await find_live(database, refs[1].id)
    assert row is not None
    assert row["state"] == "ready"


async def test_of_two_who_free_a_slot_together_the_second_sees_what_the_first_let_in(
    app: App, database: Database
) -> None:
    """The slots must be counted under the key's lock, or both would see the same free slot."""

    @app.task(concurrency_key="k", max_concurrency=1)
    async def visit(n: int) -> None: ...

    await app.enqueue_many(visit, [{"n": n} for n in range(3)])
    await database.fetch("UPDATE tidemill.job SET state = 'throttled'")
    async with database.acquire() as first, database.acquire() as second:
        async with first.transaction():
            assert await first.fetchval(ADMIT_THROTTLED, ["k"]) == 1
            late = asyncio.create_task(second.fetchval(ADMIT_THROTTLED, ["k"]))
            await eventually(
                lambda: (
                    late.done()
                    or database.fetch(
                        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                    )
                )
            )
        assert await late == 0
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE state = 'ready'") == 1


async def test_finishing_and_enqueueing_at_once_never_let_too_many_in(app: App, database: Database) -> None:
    """All workers count the slots at the same moment: the count must be taken under the key's lock."""
    limit, too_many = 3, 0

    @app.task(concurrency_key="k", max_concurrency=limit)
    async def visit(n: int) -> None: ...

    apps = [App(app.name, database_url=app.settings.database_url, pool_size=1) for _ in range(8)]
    done = 0

    async def ask(each: App) -> None:
        each.declarations.tasks.add(visit)
        for n in range(15):
            await each.enqueue(visit, n=n)
        await each.close()

    async def serve() -> None:
        nonlocal done
        async with puppet(database) as worker:
            while done < len(apps) * 15:
                jobs = await worker.claim(room=5)
                await worker.turn([ending(job) for job in jobs])
                done += len(jobs)
                await asyncio.sleep(0)

    async def watch() -> None:
        nonlocal too_many
        while done < len(apps) * 15:
            let_in = await value(database, "SELECT count(*) FROM tidemill.job WHERE state IN ('ready', 'running')")
            too_many += let_in > limit
            await asyncio.sleep(0)

    await asyncio.gather(*(ask(each) for each in apps), serve(), serve(), watch())
    assert too_many == 0


async def test_a_killed_workers_slot_comes_back(app: App, database_url: str, executions: Database) -> None:
    declare(app)
    async with running_maintenance(app):
        async with worker_process(database_url, ["throttled"]) as victim:
            first = await app.enqueue("one_at_a_time", gate="go")
            second = await app.enqueue("one_at_a_time", gate="go")
            await eventually(lambda: attempts_are(executions, first.id, [1]))
            waiting = await find_live(executions, second.id)
            assert waiting is not None
            assert waiting["state"] == "throttled"
            victim.kill()
            await lapse(executions, victim.pid)
        async with worker_process(database_url, ["throttled"]):
            await eventually(lambda: attempts_are(executions, first.id, [1, 2]))
            waiting = await find_live(executions, second.id)
            assert waiting is not None
            assert waiting["state"] == "throttled", "the lost job has its slot back, and there is only one"
            await open_gate(executions, "go")
            rows = [await finished(executions, ref.id) for ref in (first, second)]
    assert [(row["state"], row["losses"]) for row in rows] == [("succeeded", 1), ("succeeded", 0)]


async def test_killing_workers_at_random_never_lets_too_many_run(
    app: App, database_url: str, executions: Database
) -> None:
    """A job of a killed worker runs again only once its first execution is certainly over: the process is gone."""
    declare(app)
    asked, deaths = 0, dict[int, datetime]()

    async def holds_one(victim: AppProcess) -> bool:
        nonlocal asked
        if await value(executions, "SELECT count(*) FROM tidemill.job") < 20:  # Nobody runs out of work meanwhile.
            asked += len(await app.enqueue_many("two_at_a_time", [{"seconds": 0.02}] * 30))
        return await value(executions, HELD, victim.worker_id)

    async with running_maintenance(app), AsyncExitStack() as stack:
        workers = await asyncio.gather(
            *(stack.enter_async_context(worker_process(database_url, ["throttled"])) for _ in range(3))
        )
        for victim in workers[:2]:
            await eventually(lambda victim=victim: holds_one(victim))
            victim.kill()
            deaths[victim.pid] = await value(executions, "SELECT clock_timestamp()")
            await lapse(executions, victim.pid)
        await eventually(lambda: nothing_left(executions))
    for pid, died_at in deaths.items():  # Its last words may have reached the database after its death.
        await executions.fetch(
            "UPDATE execution SET ended_at = $2 WHERE pid = $1 AND coalesce(ended_at, 'infinity') > $2", pid, died_at
        )
    assert await value(executions, MOST_AT_ONCE) <= 2
    assert await value(executions, "SELECT count(*) FROM tidemill.job_history WHERE state = 'succeeded'") == asked


async def nothing_left(database: Database) -> bool:
    return await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def attempts_are(database: Database, job_id: int, attempts: list[int]) -> bool:
    return await attempts_of(database, job_id) == attempts
