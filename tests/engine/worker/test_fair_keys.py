"""Jobs of different fair keys share their queue: by weight, without idle slots, and before priorities say otherwise."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from typing_extensions import Unpack

from tests.support import eventually, running_worker, value
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.engine.jobs.enqueue_options import ManyOptions
from tidemill.store.database import Database


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def app(app: App, seen: list[str]) -> App:
    @app.task(fair_key="{tenant}")
    async def work(tenant: str) -> None:
        seen.append(tenant)

    @app.task
    async def unkeyed() -> None:
        seen.append("")

    return app


async def all_done(database: Database) -> bool:
    return await value(database, "SELECT NOT EXISTS (SELECT FROM tidemill.job WHERE due_at <= now())")


async def enqueue(app: App, tenant: str, count: int, **options: Unpack[ManyOptions]) -> None:
    await app.enqueue_many("work", ({"tenant": tenant} for _ in range(count)), **options)


async def test_a_small_tenant_does_not_wait_for_a_large_one(app: App, database: Database, seen: list[str]) -> None:
    await enqueue(app, "large", 500)
    await enqueue(app, "small", 3)
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: all_done(database))
    assert len(seen) == 503
    assert [n for n, tenant in enumerate(seen) if tenant == "small"][-1] < 20


async def test_a_tenant_that_comes_later_overtakes_what_already_waits(
    app: App, database: Database, seen: list[str]
) -> None:
    @app.task(fair_key="large")
    async def large(n: int) -> None:
        seen.append("large")
        if n == 100:
            await app.enqueue("work", "small")
        await asyncio.sleep(0.001)

    await app.enqueue_many("large", ({"n": n} for n in range(600)))
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: all_done(database))
    assert len(seen) == 601
    assert seen.index("small") < 300


async def test_busy_tenants_share_by_weight(app: App, database: Database, seen: list[str]) -> None:
    app.queue("default", weights={"heavy": 3})
    for tenant in ("light", "heavy", "other"):
        await enqueue(app, tenant, 300)
    async with running_worker(app, max_concurrency=4):
        await eventually(lambda: all_done(database))
    early = Counter(seen[:250])
    assert 120 <= early["heavy"] <= 180
    assert 30 <= early["light"] <= 70


async def test_jobs_without_a_key_are_one_tenant_of_a_mixed_queue(
    app: App, database: Database, seen: list[str]
) -> None:
    await enqueue(app, "a", 300)
    await app.enqueue_many("unkeyed", ({} for _ in range(300)))
    async with running_worker(app, max_concurrency=4):
        await eventually(lambda: all_done(database))
    assert len(seen) == 600
    assert 100 <= Counter(seen[:300])["a"] <= 200


async def test_priorities_come_before_fairness(app: App, database: Database, seen: list[str]) -> None:
    await enqueue(app, "low", 50, priority=1)
    await enqueue(app, "high", 50, priority=9)
    async with running_worker(app, max_concurrency=1):
        await eventually(lambda: all_done(database))
    assert seen == ["high"] * 50 + ["low"] * 50


async def test_a_delayed_job_of_a_tenant_starts_when_it_is_due(app: App, database: Database, seen: list[str]) -> None:
    async with running_worker(app, max_concurrency=2):
        await enqueue(app, "now", 3)
        await enqueue(app, "soon", 1, delay="300ms")
        await eventually(lambda: seen.count("soon") == 1, timeout=10)
    assert Counter(seen) == {"now": 3, "soon": 1}


async def test_the_jobs_of_a_tenant_with_an_empty_name_are_found(app: App, database: Database, seen: list[str]) -> None:
    await enqueue(app, "", 3)
    await enqueue(app, "large", 20)
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: all_done(database), timeout=20)
    assert Counter(seen) == {"": 3, "large": 20}


async def test_a_retry_without_delay_is_found_behind_what_was_claimed(app: App, database: Database) -> None:
    runs: Counter[int] = Counter()

    @app.task(fair_key="t", retry=app.retry(max_attempts=2, schedule=[0]))
    async def flaky(n: int) -> None:
        runs[n] += 1
        if runs[n] == 1:
            raise RuntimeError("once")

    await app.enqueue_many("flaky", ({"n": n} for n in range(50)))
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: len(runs) == 50 and min(runs.values()) == 2, timeout=20)


async def test_two_workers_share_many_tenants_and_run_each_job_once(
    app: App, database: Database, seen: list[str]
) -> None:
    await app.enqueue_many("work", ({"tenant": f"t{n % 600}"} for n in range(1800)))
    async with running_worker(app, max_concurrency=4), running_worker(app, max_concurrency=4):
        await eventually(lambda: all_done(database))
    assert Counter(seen) == {f"t{n}": 3 for n in range(600)}


async def test_a_rate_limited_queue_is_shared_too(app: App, database: Database, seen: list[str]) -> None:
    app.queue("default", rate=200.0, burst=4.0)
    await enqueue(app, "large", 100)
    await enqueue(app, "small", 2)
    async with running_worker(app, max_concurrency=2):
        await eventually(lambda: seen.count("small") == 2)
    assert len(seen) < 30


async def test_a_queue_without_keys_again_is_claimed_plainly(app: App, database: Database, seen: list[str]) -> None:
    async with running_worker(app, max_concurrency=2):
        await enqueue(app, "a", 5)
        await eventually(lambda: len(seen) == 5)
        for n in range(20):
            await app.enqueue("unkeyed")
            await eventually(lambda n=n: len(seen) == 6 + n)
    assert seen == ["a"] * 5 + [""] * 20


async def test_a_job_tells_its_key_and_what_it_waits_for(app: App, database: Database) -> None:
    await enqueue(app, "large", 3)
    handle = await app.enqueue("work", "small")
    assert await value(database, f"SELECT fair_key FROM tidemill.job WHERE id = {handle.id}") == "small"
    view = await app.jobs.get(handle)
    assert view.state == "ready"


@pytest.mark.parametrize("weight", [0, -1, 1.5, True, 1001])
def test_a_weight_that_is_none_is_refused(app: App, weight: int) -> None:
    with pytest.raises(ConfigError, match="whole number from 1 to 1000"):
        app.queue("default", weights={"a": weight})
