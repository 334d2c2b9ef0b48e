"""Cancelling jobs, waiting and running, by id and by filter; retrying them; and what is written about it."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from tests.support import eventually, find_live, finished, running, running_maintenance, running_worker, value
from tests.support.operate import cancel_jobs, list_audit, retry_jobs
from tidemill import App, Snooze, current_job
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.jobs.pages import JobFilter, list_job_page, match_jobs
from tidemill.store.jobs.queues import list_queues


@pytest.fixture
def app(app: App) -> App:
    @app.task(tags=["t"])
    async def quick(n: int = 0) -> int:
        return n

    return app


# Waiting jobs


async def test_a_waiting_job_is_cancelled_at_once_and_never_runs(app: App, database: Database) -> None:
    ready = await app.enqueue("quick")
    delayed = await app.enqueue("quick", delay="1h")
    outcome = await cancel_jobs(database, [ready.id, delayed.id], by="ann")
    assert (sorted(outcome.done), outcome.asked, outcome.unchanged) == ([ready.id, delayed.id], [], [])
    for ref in (ready, delayed):
        row = await finished(database, ref.id)
        assert (row["state"], row["note"], row["attempt"]) == ("cancelled", "cancelled by ann", 0)
        assert await find_live(database, ref.id) is None


async def test_a_job_that_waits_for_its_retry_is_cancelled_with_its_errors_kept(app: App, database) -> None:
    @app.task(retry=app.retry(5, backoff="1h"))
    async def fail() -> None:
        raise ValueError("first")

    async with running_worker(app):
        ref = await app.enqueue(fail)
        await eventually(lambda: value(database, "SELECT failures = 1 FROM tidemill.job WHERE id = $1", ref.id))
        await cancel_jobs(database, [ref.id], by="ann")
    row = await finished(database, ref.id)
    assert (row["state"], row["failures"]) == ("cancelled", 1)
    assert b"first" in row["errors"]


async def test_cancelling_a_finished_job_changes_nothing(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("quick", 7)
        before = await finished(database, ref.id)
        outcome = await cancel_jobs(database, [ref.id], by="ann")
        assert (outcome.done, outcome.asked, outcome.unchanged) == ([], [], [ref.id])
        assert await finished(database, ref.id) == before
    assert await list_audit(database) == []


async def test_cancelling_a_job_that_does_not_exist_is_an_error_and_cancels_none(app: App, database) -> None:
    ref = await app.enqueue("quick")
    with pytest.raises(NotFoundError, match="there is no job 4711"):
        await cancel_jobs(database, [ref.id, 4711], by="ann")
    assert await find_live(database, ref.id) is not None


# Running jobs


async def test_a_running_async_job_is_cancelled_and_may_clean_up(app: App, database: Database) -> None:
    cleaned: list[int] = []

    @app.task
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(current_job().id)

    async with running_worker(app):
        ref = await app.enqueue(endless)
        await running(database, ref.id)
        outcome = await cancel_jobs(database, [ref.id], by="ann")
        assert outcome.asked == [ref.id]
        row = await finished(database, ref.id)
    assert (row["state"], row["note"], row["failures"]) == ("cancelled", "cancelled by ann", 0)
    assert cleaned == [ref.id]


async def test_a_running_plain_job_ends_when_it_asks_whether_it_is_cancelled(app: App, database: Database) -> None:
    @app.task
    def endless() -> None:
        pause = threading.Event()
        while True:
            current_job().check_cancelled()
            pause.wait(0.01)

    async with running_worker(app):
        ref = await app.enqueue(endless)
        await running(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        row = await finished(database, ref.id)
    assert (row["state"], row["note"]) == ("cancelled", "cancelled by ann")


async def test_a_plain_job_that_does_not_ask_runs_to_its_end(app: App, database: Database) -> None:
    told = threading.Event()

    @app.task
    def stubborn() -> str:
        told.wait(20)
        return "done anyway"

    async with running_worker(app):
        ref = await app.enqueue(stubborn)
        await running(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        told.set()
        row = await finished(database, ref.id)
    assert (row["state"], row["result"]) == ("succeeded", b'"done anyway"')


@pytest.mark.parametrize("error", [ValueError("no"), Snooze(0.01)], ids=["fails", "snoozes"])
async def test_a_cancelled_job_that_fails_or_snoozes_is_not_tried_again(app: App, database, error: Exception) -> None:
    attempts: list[int] = []

    @app.task(retry=app.retry(5, backoff=0.01))
    def stubborn() -> None:
        attempts.append(current_job().attempt)
        pause = threading.Event()
        while not current_job().cancelled:
            pause.wait(0.01)
        raise error

    async with running_worker(app):
        ref = await app.enqueue(stubborn)
        await running(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        row = await finished(database, ref.id)
    assert row["state"] == "cancelled"
    assert attempts == [1]


async def test_a_cancelled_job_whose_worker_is_lost_is_not_tried_again(app: App, database: Database) -> None:
    ref = await app.enqueue("quick")
    lost = await value(
        database,
        """INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until)
           VALUES ('gone', 1, '{default}', '{quick}', 1, $1, now() - interval '1 minute') RETURNING id""",
        b"{}",
    )
    await database.fetch(
        "UPDATE tidemill.job SET state = 'running', worker_id = $1, attempt = 1, started_at = now()", lost
    )
    await cancel_jobs(database, [ref.id], by="ann")
    async with running_maintenance(app), running_worker(app):
        row = await finished(database, ref.id)
    assert (row["state"], row["note"]) == ("cancelled", "cancelled by ann")


async def test_a_job_that_is_cancelled_twice_keeps_the_first_reason(app: App, database: Database) -> None:
    release = asyncio.Event()

    @app.task
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()

    async with running_worker(app):
        ref = await app.enqueue(endless)
        await running(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        second = await cancel_jobs(database, [ref.id], by="bob")
        assert second.unchanged == [ref.id]
        release.set()
        assert (await finished(database, ref.id))["note"] == "cancelled by ann"


async def test_a_running_job_hears_of_its_cancellation_at_once(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.worker.claimer.SAFETY_POLL", 600.0)  # It is told, or waits for ever.

    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with running_worker(app):
        ref = await app.enqueue(endless)
        await running(database, ref.id)
        await cancel_jobs(database, [ref.id], by="ann")
        await finished(database, ref.id)


# Retrying


async def test_a_failed_job_comes_back_as_a_new_job_that_says_what_it_repeats(app: App, database: Database) -> None:
    @app.task(priority=7, retry=app.retry(1), tags=["x"])
    async def fail(n: int) -> None:
        raise ValueError

    async with running_worker(app):
        first = await app.enqueue(fail, 5)
        before = await finished(database, first.id)
        outcome = await retry_jobs(database, [first.id], by="ann")
        (again,) = outcome.asked
        after = await finished(database, again)
    assert again != first.id
    for column in ("queue", "task", "args", "priority", "tags", "options"):
        assert after[column] == before[column]
    origin = msgspec.json.decode(after["origin"])
    assert (origin["by"], origin["retry_of"]) == ("ann", first.id)
    assert await finished(database, first.id) == before


async def test_a_waiting_job_gets_its_turn_now(app: App, database: Database) -> None:
    async with running_worker(app):
        ref = await app.enqueue("quick", 3, delay="1h")
        outcome = await retry_jobs(database, [ref.id], by="ann")
        assert outcome.done == [ref.id]
        assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_a_finished_job_whose_key_is_taken_again_is_not_doubled(app: App, database: Database) -> None:
    first = await app.enqueue("quick", unique_key="k")
    await cancel_jobs(database, [first.id], by="ann")
    await app.enqueue("quick", unique_key="k")
    assert (await retry_jobs(database, [first.id], by="ann")).asked == []
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


async def test_retrying_a_job_that_does_not_exist_is_an_error(app: App, database: Database) -> None:
    with pytest.raises(NotFoundError, match="there is no job 4711"):
        await retry_jobs(database, [4711], by="ann")


# By filter


async def test_jobs_are_cancelled_by_filter(app: App, database: Database) -> None:
    mail = [await app.enqueue("quick", queue="mail", tags=["eu"]) for _ in range(3)]
    other = await app.enqueue("quick", queue="other")
    wanted = JobFilter(queue="mail", tag="eu", task="quick", state=("ready",))
    matched = await match_jobs(database, wanted, live=wanted.live, ended=(), limit=10)
    assert matched == [ref.id for ref in mail]
    await cancel_jobs(database, matched, by="ann")
    assert await match_jobs(database, JobFilter(), live=JobFilter().live, ended=(), limit=10) == [other.id]


async def test_unsuccessful_jobs_are_retried_by_filter(app: App, database: Database) -> None:
    kept = await app.enqueue("quick", queue="mail")
    gone = [await app.enqueue("quick", queue="mail") for _ in range(2)]
    elsewhere = await app.enqueue("quick", queue="other")
    await cancel_jobs(database, [ref.id for ref in (*gone, elsewhere)], by="ann")
    async with running_worker(app, ["mail"]):
        await finished(database, kept.id)
        wanted = JobFilter(state=("succeeded", "cancelled", "running"), queue="mail")
        live, ended = wanted.retried
        matched = await match_jobs(database, wanted, live=live, ended=ended, limit=10)
        assert matched == [ref.id for ref in gone]
        outcome = await retry_jobs(database, matched, by="ann")
        for job_id in outcome.asked:
            assert (await finished(database, job_id))["state"] == "succeeded"


async def test_a_state_that_does_not_exist_is_refused_with_those_that_do(database: Database) -> None:
    with pytest.raises(ConfigError, match="there is no job state 'done'; the states are ready, throttled"):
        await list_job_page(database, JobFilter(state=("done",)))


async def test_listings_page_from_the_newest_through_live_and_finished_jobs(app: App, database: Database) -> None:
    refs = [await app.enqueue("quick", n) for n in range(6)]
    await cancel_jobs(database, [ref.id for ref in refs[::2]], by="ann")
    first = await list_job_page(database, JobFilter(), limit=4)
    rest = await list_job_page(database, JobFilter(), before=first[-1]["id"], limit=4)
    assert [row["id"] for row in (*first, *rest)] == [ref.id for ref in reversed(refs)]
    assert [row["state"] for row in first] == ["ready", "cancelled", "ready", "cancelled"]


async def test_counts_per_queue_tell_what_waits_runs_and_has_ended(app: App, database: Database) -> None:
    await app.enqueue("quick", queue="a")
    await app.enqueue("quick", queue="a", delay="1h")
    await app.enqueue("quick", queue="a", concurrency_key="k", delay="1h")
    gone = await app.enqueue("quick", queue="b")
    await cancel_jobs(database, [gone.id], by="ann")
    async with running_worker(app, ["c"]):
        counts = {row["name"]: row for row in await list_queues(database, ended_within=3600.0)}
    a, b, c = counts["a"], counts["b"], counts["c"]
    assert (a["waiting"], a["scheduled"], a["throttled"] + a["no_worker"], a["running"], a["workers"]) == (
        1,
        1,
        1,
        0,
        0,
    )
    assert (b["waiting"], b["succeeded"], b["unsuccessful"]) == (0, 0, 1)
    assert c["workers"] == 1


# The audit trail


async def test_what_operators_do_to_jobs_is_written_down(app: App, database: Database) -> None:
    refs = [await app.enqueue("quick", n, delay="1h") for n in range(25)]
    ids = [ref.id for ref in refs]
    await retry_jobs(database, ids[:1], by="ann")
    await cancel_jobs(database, ids, by="bob")
    (again,) = (await retry_jobs(database, ids[:1], by="cleo")).asked
    cleo, bob, ann = await list_audit(database)
    assert (ann["who"], ann["action"], ann["target"]) == ("ann", "job.retry", str(ids[0]))
    assert msgspec.json.decode(ann["after"]) == {"due_now": ids[:1], "enqueued": []}
    assert (bob["who"], bob["action"]) == ("bob", "job.cancel")
    assert bob["target"].endswith("and 5 more")
    assert sorted(msgspec.json.decode(bob["after"])["cancelled"]) == ids
    assert msgspec.json.decode(cleo["after"]) == {"due_now": [], "enqueued": [again]}
    assert msgspec.json.decode(cleo["before"]) == {str(ids[0]): "cancelled"}
    assert msgspec.json.decode(bob["before"])[str(ids[0])] == "ready"


async def test_a_job_that_goes_back_to_its_queue_as_it_is_cancelled_does_not_get_away(
    app: App, database: Database
) -> None:
    """It runs when the waiting ones are cancelled, and waits when the running ones are."""
    ref = await app.enqueue("quick")
    await database.fetch("UPDATE tidemill.job SET state = 'running', worker_id = 0, attempt = 1")
    async with database.transaction() as worker:
        await worker.execute("UPDATE tidemill.job SET state = 'ready', worker_id = NULL")
        cancelling = asyncio.create_task(cancel_jobs(database, [ref.id], by="ann"))
        await eventually(
            lambda: value(database, "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
        )
    assert (await cancelling).unchanged == []
    assert (await finished(database, ref.id))["state"] == "cancelled"
