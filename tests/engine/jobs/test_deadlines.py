"""Deadlines: a job that could not start in time expires without having run, and says so."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support import eventually, find_live, finished, running_maintenance, running_worker, value
from tidemill import App
from tidemill.store.database import Database

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def started() -> list[int]:
    return []


@pytest.fixture
def app(app: App, started: list[int]) -> App:
    @app.task
    async def note(n: int = 0) -> None:
        started.append(n)

    return app


async def test_the_sweep_drops_what_waited_past_its_deadline(app: App, database: Database, started: list[int]) -> None:
    ref = await app.enqueue("note", deadline=PAST)
    kept = await app.enqueue("note", deadline="1h")
    async with running_maintenance(app):
        row = await finished(database, ref.id)
    assert (row["state"], row["note"]) == ("expired", "its deadline passed before it could start")
    assert (row["attempt"], row["worker_id"], row["started_at"], row["deadline"]) == (0, None, None, PAST)
    assert await find_live(database, kept.id) is not None


async def test_a_worker_drops_what_it_claims_past_its_deadline(
    app: App, database: Database, started: list[int]
) -> None:
    ref = await app.enqueue("note", 1, deadline=PAST)
    after = await app.enqueue("note", 2)
    async with running_worker(app):
        row = await finished(database, ref.id)
        await finished(database, after.id)
    assert (row["state"], row["note"]) == ("expired", "its deadline had passed before it could start")
    assert started == [2]


async def test_a_job_that_starts_before_its_deadline_runs(app: App, database: Database, started: list[int]) -> None:
    ref = await app.enqueue("note", 1, deadline=timedelta(hours=1))
    async with running_worker(app):
        assert (await finished(database, ref.id))["state"] == "succeeded"
    assert started == [1]


async def test_a_deadline_in_words_counts_from_now(app: App, database: Database) -> None:
    before = datetime.now(UTC)
    ref = await app.enqueue("note", deadline="10m")
    row = await find_live(database, ref.id)
    assert row is not None
    assert before + timedelta(minutes=10) <= row["deadline"] <= datetime.now(UTC) + timedelta(minutes=10)


async def test_an_expired_job_frees_its_keys(app: App, database: Database) -> None:
    first = await app.enqueue("note", deadline=PAST, unique_key="u", concurrency_key="c")
    second = await app.enqueue("note", concurrency_key="c")
    async with running_maintenance(app), running_worker(app):
        await finished(database, first.id)
        await finished(database, second.id)
    assert (await app.enqueue("note", unique_key="u")).created


async def test_a_retry_that_would_come_too_late_is_dropped(app: App, database: Database) -> None:
    @app.task(retry=app.retry(5, backoff="1h"))
    async def fail() -> None:
        raise ValueError("first")

    async with running_worker(app), running_maintenance(app):
        ref = await app.enqueue(fail.call(), deadline="30m")
        await eventually(lambda: value(database, "SELECT failures = 1 FROM tidemill.job WHERE id = $1", ref.id))
        await database.fetch("UPDATE tidemill.job SET deadline = now()")  # Half an hour has passed.
        row = await finished(database, ref.id)
    assert (row["state"], row["failures"]) == ("expired", 1)
    assert b"first" in row["errors"]


@pytest.mark.parametrize("many", [False, True])
async def test_a_deadline_from_now_on_counts_by_the_clock_of_the_database(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """A host whose clock is an hour behind must not have its jobs dropped."""
    behind = time.time() - 3600
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: behind)
        if many:
            await app.enqueue_many("note", [{"n": 1}], deadline="10m")
        else:
            await app.enqueue("note", 1, deadline="10m")
        await app.enqueue("note", 1, deadline="10m", unique_key="k")
    left = await database.fetch("SELECT extract(epoch FROM deadline - now())::float8 AS left FROM tidemill.job")
    assert [round(row["left"], -2) for row in left] == [600, 600]


async def test_a_job_that_failed_and_could_not_be_tried_again_in_time_says_so(app: App, database: Database) -> None:
    @app.task(retry=app.retry(2, backoff="1h"))
    async def fragile() -> None:
        raise ValueError

    ref = await app.enqueue(fragile.call(), deadline="1h")
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT failures = 1 FROM tidemill.job"))
    await database.fetch("UPDATE tidemill.job SET deadline = now()")
    async with running_maintenance(app):
        row = await finished(database, ref.id)
    assert (row["state"], row["note"]) == ("expired", "its deadline passed before it could be tried again")
