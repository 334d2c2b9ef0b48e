"""What happens after a failed attempt: waits, limits, and what a task may ask for."""

from __future__ import annotations

import itertools
import time

import msgspec
import pytest

from tests.support import eventually, find_live, finished, running_worker
from tidemill import App, Discard, RetryAfter, RetryPolicy, Snooze, current_job
from tidemill.core.retry import retry
from tidemill.store.database import Database


@pytest.fixture
def starts() -> list[float]:
    """When each attempt started."""
    return []


def failing(app: App, starts: list[float], policy: RetryPolicy | None, error: Exception, times: int = 99) -> None:
    """A task that fails so many times and then succeeds."""

    @app.task(name="flaky", retry=policy)
    async def flaky() -> int:
        starts.append(time.monotonic())
        if len(starts) <= times:
            raise error
        return len(starts)


async def run_flaky(app: App, database: Database):
    async with running_worker(app):
        ref = await app.enqueue("flaky")
        return await finished(database, ref.id)


def waits(starts: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(starts)]


async def test_waits_grow_exponentially_until_the_attempts_are_used_up(app: App, database, starts) -> None:
    failing(app, starts, retry(4, backoff=0.05, factor=2, jitter=0), OSError("down"))
    row = await run_flaky(app, database)
    assert (row["state"], row["failures"], row["attempt"]) == ("failed", 4, 4)
    assert row["note"] == "OSError: down: all 4 attempts failed"
    assert [wait >= least for wait, least in zip(waits(starts), (0.05, 0.1, 0.2), strict=True)] == [True] * 3


async def test_a_schedule_gives_exactly_these_waits(app: App, database, starts) -> None:
    failing(app, starts, retry(schedule=(0.2, 0.05)), OSError())
    row = await run_flaky(app, database)
    assert (row["state"], row["failures"]) == ("failed", 3)
    first, second = waits(starts)
    assert first >= 0.2
    assert second >= 0.05


async def test_a_job_succeeds_after_failures_and_keeps_them(app: App, database, starts) -> None:
    failing(app, starts, retry(5, backoff=0.01), ValueError("not yet"), times=2)
    row = await run_flaky(app, database)
    assert (row["state"], row["result"], row["failures"], row["attempt"]) == ("succeeded", b"3", 2, 3)
    errors = msgspec.json.decode(row["errors"])
    assert [error["attempt"] for error in errors] == [1, 2]


async def test_while_it_waits_a_job_says_why_it_will_be_tried_again(app: App, database, starts) -> None:
    failing(app, starts, retry(5, backoff="1h", jitter=0), ConnectionError("refused"))
    async with running_worker(app):
        ref = await app.enqueue("flaky")
        row = await eventually(lambda: waiting(database, ref.id))
    assert row["note"] == "ConnectionError: refused: attempt 1 of 5 failed; trying again in 1h"
    assert (row["failures"], row["worker_id"], row["started_at"]) == (1, None, None)
    seconds = (row["due_at"] - row["created_at"]).total_seconds()
    assert 3600 <= seconds < 3630


async def waiting(database: Database, job_id: int):
    row = await find_live(database, job_id)
    return row if row is not None and row["state"] == "ready" and row["note"] else None


async def test_retry_after_waits_as_long_as_it_asks_and_counts_as_a_failure(app: App, database, starts) -> None:
    failing(app, starts, retry(3, backoff="1h"), RetryAfter(0.2, "busy"), times=1)
    row = await run_flaky(app, database)
    assert (row["state"], row["failures"]) == ("succeeded", 1)
    assert waits(starts)[0] >= 0.2


async def test_retry_after_does_not_go_beyond_the_attempts(app: App, database, starts) -> None:
    failing(app, starts, None, RetryAfter(0.01))
    row = await run_flaky(app, database)
    assert (row["state"], row["attempt"]) == ("failed", 1)


async def test_a_discarded_job_fails_at_once(app: App, database, starts) -> None:
    failing(app, starts, retry(5, backoff=0.01), Discard("order was cancelled"))
    row = await run_flaky(app, database)
    assert (row["state"], row["attempt"], row["note"]) == ("failed", 1, "discarded: order was cancelled")


async def test_errors_that_are_not_worth_retrying_are_not_retried(app: App, database, starts) -> None:
    failing(app, starts, retry(5, backoff=0.01, no_retry=(LookupError,)), KeyError("x"))
    row = await run_flaky(app, database)
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert "KeyError is declared as not worth retrying" in row["note"]


async def test_only_the_errors_that_are_worth_retrying_are_retried(app: App, database) -> None:
    @app.task(retry=app.retry(5, backoff=0.01, retry_on=(ConnectionError,)))
    async def fetch() -> None:
        raise ConnectionResetError if current_job().attempt < 3 else ValueError

    async with running_worker(app):
        row = await finished(database, (await app.enqueue(fetch)).id)
    assert (row["state"], row["attempt"], row["failures"]) == ("failed", 3, 3)


async def test_a_job_is_retried_as_its_task_said_when_it_was_enqueued(app: App, database: Database) -> None:
    attempts: list[str] = []

    async def flaky(who: str) -> None:
        attempts.append(who)
        raise ValueError

    app.task(name="flaky", retry=app.retry(3, backoff=0.01))(flaky)
    later = App(app.name, database_url=app.settings.database_url)
    later.task(name="flaky")(flaky)
    try:
        patient = await app.enqueue("flaky", "patient")
        hasty = await later.enqueue("flaky", "hasty")
        async with running_worker(later):
            await finished(database, patient.id)
            await finished(database, hasty.id)
        async with running_worker(app):
            hasty = await later.enqueue("flaky", "still hasty")
            await finished(database, hasty.id)
    finally:
        await later.close()
    assert sorted(attempts) == ["hasty", "patient", "patient", "patient", "still hasty"]


# Snoozing


async def test_a_snooze_is_not_a_failure(app: App, database: Database, starts) -> None:
    failing(app, starts, None, Snooze(0.05, "report is not ready"), times=3)
    row = await run_flaky(app, database)
    assert (row["state"], row["failures"], row["attempt"], row["errors"]) == ("succeeded", 0, 4, None)
    assert all(wait >= 0.05 for wait in waits(starts))


async def test_a_snoozing_job_says_what_it_waits_for(app: App, database, starts) -> None:
    failing(app, starts, None, Snooze("1h", "report is not ready"))
    async with running_worker(app):
        ref = await app.enqueue("flaky")
        row = await eventually(lambda: waiting(database, ref.id))
    assert row["note"] == "report is not ready"
    assert row["failures"] == 0


async def test_a_subclass_of_snooze_is_a_snooze(app: App, database: Database) -> None:
    class NotReady(Snooze):
        def __init__(self) -> None:
            super().__init__(0.01, "not ready")

    @app.task
    async def wait() -> None:
        if current_job().attempt == 1:
            raise NotReady

    async with running_worker(app):
        row = await finished(database, (await app.enqueue(wait)).id)
    assert (row["state"], row["failures"]) == ("succeeded", 0)


# Errors that are kept


def deep(levels: int) -> None:
    if levels == 0:
        raise ZeroDivisionError(f"attempt {current_job().attempt}")
    deep(levels - 1)


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_every_attempt_keeps_its_error_with_the_full_traceback(app: App, database: Database, kind: str) -> None:
    if kind == "async":

        @app.task(name="dig", retry=app.retry(3, backoff=0.01))
        async def dig() -> None:
            deep(2)
    else:

        @app.task(name="dig", retry=app.retry(3, backoff=0.01))
        def dig_plainly() -> None:
            deep(2)

    async with running_worker(app) as worker:
        row = await finished(database, (await app.enqueue("dig")).id)
    errors = msgspec.json.decode(row["errors"])
    assert [error["attempt"] for error in errors] == [1, 2, 3]
    for error in errors:
        assert error["kind"] == "ZeroDivisionError"
        assert error["message"] == f"attempt {error['attempt']}"
        assert error["worker"] == worker.work.runner.worker
        assert error["traceback"].count("in deep") == 3
        assert __file__ in error["traceback"]
        assert error["traceback"].endswith(f"ZeroDivisionError: attempt {error['attempt']}\n")


async def test_a_cause_is_part_of_the_traceback(app: App, database: Database) -> None:
    @app.task
    async def chained() -> None:
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("could not look it up") from error

    async with running_worker(app):
        row = await finished(database, (await app.enqueue(chained)).id)
    (error,) = msgspec.json.decode(row["errors"])
    assert "KeyError: 'missing'" in error["traceback"]
    assert "direct cause" in error["traceback"]
