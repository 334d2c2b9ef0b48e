"""A job that does not end, or gives no sign of life any more, is ended; what follows is written down first."""

from __future__ import annotations

import asyncio
import json
import threading

import psutil
import pytest

from tests.support import (
    attempts_of,
    eventually,
    find_live,
    find_worker,
    finished,
    open_gate,
    running,
    running_worker,
    value,
    worker_process,
)
from tests.support.task_app import declare
from tidemill import App
from tidemill.store.database import Database

EXIT_BUDGET, EXIT_STALL = 75, 76
QUEUES = ["limits", "throttled"]


@pytest.fixture
def app(app: App) -> App:
    declare(app)
    return app


async def test_a_plain_task_over_its_budget_ends_its_process_and_is_failed_with_the_reason(
    app: App, database_url: str, executions: Database
) -> None:
    """It cannot be stopped in its thread; the other jobs in hand go back, and no lease has to lapse for it."""
    async with worker_process(database_url, QUEUES) as worker:
        other = await app.enqueue("until_open", gate="go")
        await eventually(lambda: attempts_of(executions, other.id))
        job = await app.enqueue("plain_over_budget")
        assert await worker.ends() == EXIT_BUDGET
        assert "watchdog" in worker.said
    done = await finished(executions, job.id)
    assert (done["state"], done["attempt"], done["failures"], done["losses"]) == ("failed", 1, 1, 0)
    assert done["note"].startswith("ran longer than its budget of 500ms")
    (error,) = json.loads(done["errors"])
    assert (error["attempt"], error["kind"]) == (1, "BudgetExceeded")
    row = await find_live(executions, other.id)
    assert row is not None
    assert (row["state"], row["worker_id"], row["failures"], row["losses"]) == ("ready", None, 0, 0)
    assert row["note"] == f"its worker was ended for job {job.id} (BudgetExceeded)"
    ended = await find_worker(executions, worker.worker_id)
    assert ended["end_reason"].startswith(f"BudgetExceeded: job {job.id} (task ")
    await open_gate(executions, "go")
    async with worker_process(database_url, QUEUES):
        assert (await finished(executions, other.id))["attempt"] == 2


async def test_a_worker_claims_nothing_more_after_its_last_words(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between writing down what follows and the exit it would hear of the jobs that it has just given back."""
    exits: list[int] = []
    monkeypatch.setattr("tidemill.engine.containment.watchdog.exit_now", exits.append)
    may_end, others_may_end = threading.Event(), asyncio.Event()

    @app.task(queue="here", budget=0.2)
    def stuck() -> None:
        may_end.wait()

    @app.task(queue="here")
    async def innocent() -> None:
        await others_may_end.wait()

    other = await app.enqueue(innocent)
    try:
        async with running_worker(app, ["here"]) as doomed:
            await running(database, other.id)
            await app.enqueue(stuck)
            await eventually(lambda: exits == [EXIT_BUDGET])
            others_may_end.set()
            async with running_worker(app, ["here"]) as heir:
                done = await finished(database, other.id)
                assert doomed.worker_id != heir.worker_id == done["worker_id"]
    finally:
        may_end.set()


async def test_a_plain_task_over_its_budget_is_tried_again_if_its_policy_says_so(
    app: App, database_url: str, executions: Database
) -> None:
    job = await app.enqueue("plain_over_budget_retried")
    async with worker_process(database_url, QUEUES) as worker:
        assert await worker.ends() == EXIT_BUDGET
    row = await find_live(executions, job.id)
    assert row is not None
    assert (row["state"], row["attempt"], row["failures"], row["losses"]) == ("ready", 1, 1, 0)
    assert "ran longer than its budget" in row["note"]
    async with worker_process(database_url, QUEUES):
        done = await finished(executions, job.id)
    assert (done["state"], done["attempt"], done["failures"]) == ("succeeded", 2, 1)
    assert [error["kind"] for error in json.loads(done["errors"])] == ["BudgetExceeded"]


async def test_a_task_that_falls_silent_after_its_first_sign_of_life_ends_its_process(
    app: App, database_url: str, executions: Database
) -> None:
    async with worker_process(database_url, QUEUES) as worker:
        other = await app.enqueue("until_open", gate="go")
        await eventually(lambda: attempts_of(executions, other.id))
        job = await app.enqueue("silent", gate="never", sign=True)
        assert await worker.ends() == EXIT_STALL
    done = await finished(executions, job.id)
    assert (done["state"], done["failures"], done["losses"]) == ("failed", 1, 0)
    assert done["note"].startswith("no sign of life for 500ms")
    assert json.loads(done["errors"])[0]["kind"] == "Stalled"
    row = await find_live(executions, other.id)
    assert row is not None
    assert (row["state"], row["note"]) == ("ready", f"its worker was ended for job {job.id} (Stalled)")


async def test_a_long_silent_start_is_not_a_stall(app: App, database_url: str, executions: Database) -> None:
    async with worker_process(database_url, QUEUES) as worker:
        job = await app.enqueue("silent", gate="go", sign=False)
        silent_for = "SELECT count(*) FROM execution WHERE started_at < clock_timestamp() - interval '1.2 s'"
        await eventually(lambda: value(executions, silent_for))
        await open_gate(executions, "go")
        done = await finished(executions, job.id)
        assert (done["state"], done["attempt"]) == ("succeeded", 1)
        assert worker.exit_status is None


async def test_an_async_task_over_its_budget_is_cancelled_and_the_process_lives(
    app: App, database_url: str, executions: Database
) -> None:
    async with worker_process(database_url, QUEUES) as worker:
        other = await app.enqueue("until_open", gate="go")
        await eventually(lambda: attempts_of(executions, other.id))
        job = await app.enqueue("over_budget")
        done = await finished(executions, job.id)
        assert (done["state"], done["failures"]) == ("failed", 1)
        assert done["note"].startswith("ran longer than its budget of 500ms")
        await open_gate(executions, "go")
        assert (await finished(executions, other.id))["attempt"] == 1
        assert worker.exit_status is None


async def test_an_isolated_task_over_its_budget_costs_only_its_child(
    app: App, database_url: str, executions: Database
) -> None:
    async with worker_process(database_url, QUEUES) as worker:
        other = await app.enqueue("until_open", gate="go")
        await eventually(lambda: attempts_of(executions, other.id))
        child = json.loads((await finished(executions, (await app.enqueue("isolated")).id))["result"])
        assert child != worker.pid
        job = await app.enqueue("isolated_over_budget")
        done = await finished(executions, job.id)
        assert (done["state"], done["failures"], done["losses"]) == ("failed", 1, 0)
        assert done["note"].startswith("ran longer than its budget of 500ms")
        await eventually(lambda: not psutil.pid_exists(child), what="the child is gone")
        await open_gate(executions, "go")
        assert (await finished(executions, other.id))["attempt"] == 1
        assert worker.exit_status is None
