"""Tasks that take many jobs in one call: each job succeeds, fails and is retried by itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support import running_worker
from tidemill import App, Batch, JobFailedError, current_job
from tidemill.core.errors import ConfigError, PayloadError


async def test_one_call_takes_the_jobs_that_wait(app: App) -> None:
    sizes: list[int] = []

    @app.task(batch=Batch(100, "1s"))
    async def double(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return [2 * item for item in items]

    jobs = await app.enqueue_many(double.call(n) for n in range(250))
    async with running_worker(app, max_concurrency=3):
        assert [await job for job in jobs] == [2 * n for n in range(250)]
    assert sum(sizes) == 250
    assert max(sizes) == 100
    assert await double(4) == 8


async def test_an_item_fails_by_itself(app: App) -> None:
    @app.task(batch=Batch(10, "200ms"))
    def parse(items: list[str]) -> list[int | Exception]:
        return [int(item) if item.isdigit() else ValueError(f"{item} is no number") for item in items]

    jobs = await app.enqueue_many(parse.call(text) for text in ("1", "x", "3"))
    async with running_worker(app):
        assert (await jobs[0], await jobs[2]) == (1, 3)
        with pytest.raises(JobFailedError, match="x is no number"):
            await jobs[1]


async def test_a_call_that_raises_is_split_until_the_guilty_job_is_found_and_that_one_is_retried(app: App) -> None:
    seen: Counter[int] = Counter()

    @app.task(batch=Batch(8, "200ms"), retry=app.retry(2, backoff=0.01))
    async def work(items: list[int]) -> list[int]:
        seen.update(items)
        if 5 in items and seen[5] < 5:
            raise ValueError("5 is bad")
        return items

    jobs = await app.enqueue_many(work.call(n) for n in range(8))
    async with running_worker(app):
        assert [await job for job in jobs] == list(range(8))
        views = [await job.view() for job in jobs]
    assert [view.attempt for view in views] == [1, 1, 1, 1, 1, 2, 1, 1]


async def test_a_call_for_many_jobs_has_no_transaction_that_would_commit_with_one_of_them(app: App) -> None:
    @app.task(batch=Batch(3, "10ms"))
    async def pay(orders: list[int]) -> list[int | Exception]:
        async with current_job().transaction() as connection:
            await connection.execute("SELECT 1")
        return [order if order > 0 else ValueError("no such order") for order in orders]

    jobs = await app.enqueue_many(pay.call(order) for order in (7, 8, -9))
    async with running_worker(app):
        views = [await app.wait(job) for job in jobs]
    assert [view.state for view in views] == ["failed"] * 3
    assert all("or batch=, has none" in (view.note or "") for view in views)


async def test_what_is_wrong_is_said(app: App) -> None:
    with pytest.raises(ConfigError, match="takes one argument, the list"):

        @app.task(batch=Batch(8))  # pyright: ignore[reportCallIssue, reportArgumentType] - it is wrong
        async def two(a: list[int], b: list[int]) -> list[int]:
            return a

    with pytest.raises(ConfigError, match="leave out isolation"):

        @app.task(batch=Batch(8), isolation="process")
        def isolated(items: list[int]) -> list[int]:
            return items

    @app.task(batch=Batch(8, "10ms"))
    async def short(items: list[int]) -> list[int]:
        return []

    with pytest.raises(PayloadError):
        short.call("x")  # pyright: ignore[reportArgumentType] - it is wrong
    job = await app.enqueue(short.call(1))
    async with running_worker(app):
        with pytest.raises(JobFailedError, match="was given 1 items and returned 0 results"):
            await job
