"""A failed job is retried with other arguments, alone and in bulk; what does not fit its task is refused as a whole."""

from __future__ import annotations

import pytest

from tests.support import value
from tests.support.operate import list_audit
from tests.support.roles import running_worker
from tidemill import App
from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.ops.jobs.jobs import RetryJobs, preview_retry_jobs, retry_jobs
from tidemill.store.database import Database
from tidemill.store.jobs.pages import JobFilter


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="mail")
    async def send(order: int, to: str = "") -> str:
        if order < 0:
            raise ValueError("no such order")
        return f"{order} {to}"

    return app


async def test_failed_jobs_are_retried_with_other_arguments_alone_and_in_bulk(app: App, database: Database) -> None:
    async with running_worker(app):
        jobs = [await app.enqueue("send", order=-1, to=f"a{n}") for n in range(3)]
        for job in jobs:
            await app.wait(job)
        one = await app.do(retry_jobs, RetryJobs(ids=[jobs[0].id], args={"order": 7}))
        assert (await app.wait(one.ids[0])).result == "7 a0"
        many = await app.do(retry_jobs, RetryJobs(filter=JobFilter(task="send"), args={"order": 8}))
        ended = [await app.wait(id) for id in many.ids]
        assert [each.result for each in ended] == ["8 a1", "8 a2"]
    again = await database.fetchrow("SELECT origin FROM tidemill.job_history WHERE id = $1", one.ids[0])
    assert again is not None
    assert decode(again["origin"])["retry_of"] == jobs[0].id
    audit = await list_audit(database)
    assert any(row["action"] == "job.retry" and b'"order"' in row["after"] for row in audit)


async def test_a_job_is_repeated_once_however_often_its_filter_is_retried(app: App, database: Database) -> None:
    """Its repetition is what matches from then on; by its id, it is repeated again."""
    failed = JobFilter(task="send", state=("failed",))
    async with running_worker(app):
        first = await app.enqueue("send", order=-1)
        await app.wait(first)
        for number in (first.id, first.id + 1):
            assert (await app.do(preview_retry_jobs, failed)).sample == [number]
            again = await app.do(retry_jobs, RetryJobs(filter=failed))
            assert again.count == 1
            assert (await app.wait(again.ids[0])).state == "failed"
        mended = await app.do(retry_jobs, RetryJobs(filter=failed, args={"order": 7}))
        assert (await app.wait(mended.ids[0])).result == "7 "
        assert (await app.do(retry_jobs, RetryJobs(filter=failed))).count == 0
        assert (await app.do(retry_jobs, RetryJobs(ids=[first.id]))).count == 1


async def test_arguments_that_do_not_fit_retry_nothing(app: App, database: Database) -> None:
    async with running_worker(app):
        jobs = [await app.enqueue("send", order=-1) for _ in range(2)]
        for job in jobs:
            await app.wait(job)
    reasons = {
        "order": ("seven", "Expected `int`, got `str`.*nothing was retried"),
        "oder": (7, "there is no argument 'oder'; did you mean 'order'.*nothing was retried"),
    }
    for name, (given, reason) in reasons.items():
        wrong = {name: given}
        with pytest.raises(PayloadError, match=reason):
            await app.do(retry_jobs, RetryJobs(ids=[job.id for job in jobs], args=wrong))
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def test_a_waiting_job_gets_its_other_arguments_too(app: App, database: Database) -> None:
    job = await app.enqueue("send", delay="1h", args={"order": -1})
    await app.do(retry_jobs, RetryJobs(ids=[job.id], args={"order": 3, "to": "b"}))
    async with running_worker(app):
        assert (await app.wait(job)).result == "3 b"
