"""Batches: jobs that are followed and cancelled as one, whose end enqueues what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.support import eventually, running_worker, value
from tests.support.waiting import PATIENCE
from tidemill import App, BatchFailedError, BatchHandle, Call, current_job
from tidemill.core.errors import ConfigError, NotFoundError, PayloadError
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.jobs.jobs import JobSelection, RetryJobs, cancel_jobs, retry_jobs
from tidemill.store.database import Database
from tidemill.store.jobs.batches.batches import sweep_batches
from tidemill.store.jobs.pages import JobFilter


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def app(app: App, told: list[str]) -> App:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    @app.task
    async def fragile(n: int, bad: int = 1) -> int:
        if n == bad:
            raise ValueError(f"{n} is bad")
        return n

    @app.task
    async def tell(batch: int, total: int, succeeded: int, failed: int = 0) -> None:
        told.append(f"b{batch}: {succeeded} and {failed} of {total}")

    @app.task
    async def say(text: str) -> None:
        told.append(text)

    return app


def calls(app: App, task: str, count: int) -> list:
    return [app.declarations.task(task).call(n) for n in range(count)]


async def test_a_batch_ends_with_its_last_job_and_has_the_results_in_order(app: App, told: list[str]) -> None:
    batch = await app.batch(calls(app, "double", 250), on_success=app.declarations.task("tell"), name="doubles")
    async with running_worker(app), running_worker(app):
        assert await batch == [2 * n for n in range(250)]
        await eventually(lambda: told == [f"b{batch.id}: 250 and 0 of 250"])
    view = await batch.view()
    assert (view.name, view.state, view.total, view.succeeded, view.unfinished) == ("doubles", "succeeded", 250, 250, 0)
    assert view.progress == 1.0


async def test_success_and_completion_are_told_apart(app: App, told: list[str]) -> None:
    say = app.declarations.task("say")
    batch = await app.batch(
        calls(app, "fragile", 3), on_success=say.call("all succeeded"), on_complete=say.call("all ended")
    )
    async with running_worker(app):
        view = await batch.wait(timeout="30s")
        assert (view.state, view.succeeded, view.failed) == ("failed", 2, 1)
        await eventually(lambda: told == ["all ended"])
        with pytest.raises(BatchFailedError, match=r"1 failed; the first: job .* is bad"):
            await batch
        # A retry takes the place of the failed job: now all have succeeded.
        await app.do(retry_jobs, RetryJobs(filter=JobFilter(batch=batch.id), args={"bad": -1}))
        await eventually(lambda: told == ["all ended", "all succeeded"])
    view = await batch.view()
    assert (view.state, view.total, view.succeeded, view.failed) == ("succeeded", 3, 3, 0)


async def test_results_stay_in_order_when_failed_jobs_are_retried_again_and_again(app: App) -> None:
    fragile = app.declarations.task("fragile")
    batch = await app.batch(fragile.call(n, bad=n if n in (1, 2) else -1) for n in range(4))
    async with running_worker(app):
        await batch.wait(timeout="30s")
        for bad in (1, -1):  # The first job fails again.
            await app.do(retry_jobs, RetryJobs(filter=JobFilter(batch=batch.id, state=("failed",)), args={"bad": bad}))
            await eventually(lambda: has_ended_again(batch))
        assert await batch == [0, 1, 2, 3]


async def has_ended_again(batch: BatchHandle) -> bool:
    return (await batch.view()).unfinished == 0


async def test_jobs_are_added_while_a_batch_is_open_and_it_ends_when_it_is_closed(app: App, database: Database) -> None:
    double = app.declarations.task("double")
    batch = await app.batch(keep_open=True)
    async with running_worker(app):
        assert await batch.add(calls(app, "double", 2)) == 2
        await eventually(lambda: value(database, "SELECT count(*) = 2 FROM tidemill.job_history"))
        view = await batch.view()
        assert (view.state, view.is_open, view.unfinished) == ("running", True, 0)
        assert await batch.add([double.call(2)]) == 1
        await batch.close()
        assert await batch.results(timeout="30s") == [0, 2, 4]
    with pytest.raises(ConfigError, match="accepts no more jobs"):
        await batch.add(double.call(n) for n in (3,))


async def test_a_batch_that_is_closed_while_its_last_job_ends_has_an_end(app: App) -> None:
    """Without maintenance, which would find those that have none."""
    async with running_worker(app):
        for _ in range(40):
            batch = await app.batch(calls(app, "double", 2), keep_open=True)
            await batch.close()
            assert await batch.wait(timeout=PATIENCE)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_batch_whose_last_job_ends_while_a_call_adds_no_job_to_it_has_an_end(
    app: App, database: Database, fails: bool
) -> None:
    """Without maintenance: every unique key is taken, or the caller's generator fails."""
    double = app.declarations.task("double")
    await app.enqueue(double.call(9), unique_key="taken", delay="1h")
    batch = await app.batch(calls(app, "double", 2), keep_open=True)
    await batch.close()
    ended = "SELECT count(*) = 2 FROM tidemill.job_history"

    def last(loop: asyncio.AbstractEventLoop) -> Iterator[Call[int]]:
        """Calls that are there when the others have ended, and the worker has left the batch to its holder."""
        asyncio.run_coroutine_threadsafe(work(), loop).result()
        if fails:
            raise ZeroDivisionError
        yield double.call(9)

    async def work() -> None:
        async with running_worker(app):
            await eventually(lambda: value(database, ended))

    def add(loop: asyncio.AbstractEventLoop) -> int:
        return asyncio.run(batch.add(last(loop), unique_key="taken"))

    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        assert await asyncio.to_thread(add, asyncio.get_running_loop()) == 0
    assert (await batch.view()).state == "succeeded"


async def test_batches_whose_last_jobs_end_in_transactions_at_the_same_time_have_an_end(app: App) -> None:
    @app.task
    async def write() -> None:
        async with current_job().transaction() as connection:
            await connection.execute("SELECT 1")

    async with running_worker(app), running_worker(app):
        batches = [await app.batch([write.call() for _ in range(4)]) for _ in range(40)]
        for batch in batches:
            assert await batch.wait(timeout=PATIENCE)


async def test_a_job_of_a_batch_adds_more_jobs_to_it(app: App) -> None:
    @app.task
    async def split(batch: int, n: int) -> int:
        if n > 1:
            await app.jobs.get_batch(batch).add([split.call(batch, n // 2), split.call(batch, n // 2)])
        return n

    batch = await app.batch(keep_open=True)
    await batch.add([split.call(batch.id, 4)])
    await batch.close()
    async with running_worker(app):
        assert sorted(await batch.results(timeout="30s")) == [1, 1, 1, 1, 2, 2, 4]


async def test_a_batch_without_jobs_ends_at_once(app: App, told: list[str]) -> None:
    batch = await app.batch([], on_complete=app.declarations.task("say").call("nothing to do"))
    assert (await batch.view()).state == "succeeded"
    async with running_worker(app):
        await eventually(lambda: told == ["nothing to do"])


async def test_a_batch_is_cancelled_as_one(app: App, database: Database) -> None:
    started = asyncio.Event()

    @app.task
    async def hang(n: int) -> None:
        started.set()
        await asyncio.Event().wait()

    batch = await app.batch(hang.call(n) for n in range(60))
    async with running_worker(app, max_concurrency=2):
        await started.wait()
        await batch.cancel(by="ann")
        view = await batch.wait(timeout="30s")
    assert (view.state, view.cancelled, view.total) == ("cancelled", 60, 60)
    assert view.cancel_reason == f"batch b{batch.id} was cancelled by ann"
    assert not await value(database, "SELECT count(*) FROM tidemill.job")


async def test_jobs_that_are_cancelled_or_expire_end_a_batch_too(app: App, database: Database) -> None:
    batch = await app.batch(calls(app, "double", 2), delay="1h")
    ids = [row["id"] for row in await database.fetch("SELECT id FROM tidemill.job ORDER BY id")]
    await app.do(cancel_jobs, JobSelection(ids=ids[:1]))
    assert (await batch.view()).unfinished == 1
    await app.do(cancel_jobs, JobSelection(ids=ids[1:]))
    view = await batch.view()
    assert (view.state, view.cancelled) == ("failed", 2)


async def test_maintenance_ends_a_batch_whose_worker_died_between_the_last_end_and_that_of_the_batch(
    app: App, database: Database
) -> None:
    batch = await app.batch(calls(app, "double", 1), delay="1h")
    await database.fetch("UPDATE tidemill.batch SET is_open = true")  # so that the cancellation does not end it
    await app.do(cancel_jobs, JobSelection(filter=JobFilter(batch=batch.id)))
    await database.fetch("UPDATE tidemill.batch SET is_open = false")
    await sweep_batches(database)
    assert (await batch.view()).ended


async def test_a_batch_whose_jobs_an_older_worker_has_finished_ends(
    app: App, database: Database, told: list[str]
) -> None:
    """Workers from before there were batches move jobs to the history without their batch, and count none."""
    tell, say = app.declarations.task("tell"), app.declarations.task("say")
    batch = await app.batch(calls(app, "double", 3), on_complete=tell, on_success=say.call("never"))
    old = """
    WITH gone AS (
        DELETE FROM tidemill.job WHERE id = (SELECT min(id) FROM tidemill.job WHERE batch_id = $1) RETURNING *)
    INSERT INTO tidemill.job_history
        (id, due_at, created_at, attempt, priority, queue, task, args, state, failures, losses)
    SELECT id, due_at, created_at, 1, priority, queue, task, args, 'succeeded', 0, 0 FROM gone
    """
    await database.fetch(old, batch.id)
    await sweep_batches(database)
    assert (await batch.view()).unfinished == 3, "two jobs are left: nothing is concluded before they have ended"
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.job WHERE batch_id IS NOT NULL"))
        await asyncio.gather(sweep_batches(database), sweep_batches(database))
        await sweep_batches(database)
        with pytest.raises(BatchFailedError, match=r"of the 3 jobs .*, 1 failed"):
            await batch
        await eventually(lambda: told == [f"b{batch.id}: 2 and 1 of 3"])
    found = await app.do(explain, ExplainObject(id=f"b{batch.id}"))
    assert any("How 1 job ended is not known" in line for line in found.why)


async def test_a_batch_exists_if_and_only_if_the_callers_transaction_commits(app: App, database: Database) -> None:
    await app.jobs.opened()
    connection = await database.connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        gone = await app.batch(calls(app, "double", 3), conn=connection)
        await transaction.rollback()
        async with app.atomic(connection) as tx:
            batch = await app.batch(calls(app, "double", 3), conn=tx.connection)
    finally:
        await connection.close()
    with pytest.raises(NotFoundError, match=f"no batch b{gone.id}"):
        await gone.view()
    async with running_worker(app):
        assert await batch.results(timeout="30s") == [0, 2, 4]


async def test_a_wrong_call_stores_nothing(app: App, database: Database) -> None:
    with pytest.raises(ConfigError, match="takes calls"):
        await app.batch([*calls(app, "double", 2), "double"])  # pyright: ignore[reportArgumentType] - it is wrong
    with pytest.raises(ConfigError, match="needs 'text': a task for batches takes any of batch, total"):
        await app.batch([], on_success=app.declarations.task("say"))
    with pytest.raises(ConfigError, match="a list of calls"):
        await app.batch(app.declarations.task("double").call(1))  # pyright: ignore[reportArgumentType] - it is wrong
    with pytest.raises(ConfigError, match="batch has no option 'debounce'"):
        await app.batch([], debounce="1s")  # pyright: ignore[reportCallIssue] - it is wrong
    with pytest.raises(ConfigError, match="5 is not a batch name"):
        await app.batch([], name=5)  # pyright: ignore[reportArgumentType] - it is wrong
    with pytest.raises(ConfigError, match="neither True nor False"):
        await app.batch([], keep_open="yes")  # pyright: ignore[reportArgumentType] - it is wrong
    with pytest.raises(PayloadError):
        app.declarations.task("double").call("x")
    assert not await value(database, "SELECT count(*) FROM tidemill.batch")


def test_plain_code_enqueues_batches(app: App, database: Database) -> None:
    batch = app.jobs.batch_sync(calls(app, "double", 3), name="plain")
    assert batch.created
    app.close_sync()


async def test_explain_says_what_a_batch_waits_for_and_what_followed(app: App, told: list[str]) -> None:
    tell = app.declarations.task("tell")
    batch = await app.batch(calls(app, "double", 2), on_complete=tell)
    found = await app.do(explain, ExplainObject(id=f"b{batch.id}"))
    assert found.why[1:] == ["2 of 2 jobs unfinished.", "When all have ended, tell is enqueued."]
    async with running_worker(app):
        await batch.wait(timeout="30s")
        await eventually(lambda: bool(told))
    found = await app.do(explain, ExplainObject(id=f"b{batch.id}", forward=True))
    assert (found.state, [each.what for each in found.followed]) == ("succeeded", ["job tell"])
