"""A worker that is told to stop loses nothing, and because of it nothing runs twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import (
    attempts_of,
    eventually,
    find_live,
    find_worker,
    finished,
    open_gate,
    running_maintenance,
    running_worker,
    value,
    worker_process,
)
from tests.support.task_app import declare
from tests.support.waiting import PATIENCE
from tidemill import App, JobHandle
from tidemill.store.database import Database

MANY = 1000

#: Lets a test hold up the answer to a claim.
SLOW_CLAIMS = """
CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(42);
    RETURN new;
END $$;
CREATE TRIGGER slow_claims BEFORE UPDATE ON tidemill.job FOR EACH ROW
WHEN (old.state = 'ready' AND new.state = 'running') EXECUTE FUNCTION wait_for_the_test();
"""

#: Somebody in this database waits for the lock of the test.
WAITS = "SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database"
WAITS += " WHERE d.datname = current_database() AND locktype = 'advisory' AND NOT granted"


@pytest.fixture
def app(app: App) -> App:
    declare(app)
    return app


async def test_running_jobs_finish_and_no_more_are_claimed(app: App, database_url: str, executions: Database) -> None:
    jobs = [
        await app.enqueue("until_open", gate="go"),
        await app.enqueue("plain_until_open", gate="go"),
    ]
    async with worker_process(database_url, ["throttled", "plain"], grace_seconds=60) as worker:
        for job in jobs:
            await eventually(lambda job=job: attempts_of(executions, job.id))
        worker.terminate()
        await eventually(lambda: is_stopping(executions, worker.worker_id))
        late = await app.enqueue("until_open", gate="go")
        await open_gate(executions, "go")
        assert await worker.ends() == 0
    for job in jobs:
        done = await finished(executions, job.id)
        assert (done["state"], done["attempt"]) == ("succeeded", 1)
        assert await attempts_of(executions, job.id) == [1]
    row = await find_live(executions, late.id)
    assert row is not None
    assert (row["state"], row["attempt"]) == ("ready", 0)
    ended = await find_worker(executions, worker.worker_id)
    assert (ended["status"], ended["end_reason"]) == ("ended", "stopped")


async def test_what_was_claimed_ahead_goes_back_and_nothing_runs_twice(
    app: App, database_url: str, executions: Database
) -> None:
    """Workers are stopped in the middle of a heap of quick jobs, until one had claimed more than it could do."""
    refs: list[JobHandle[Any]] = []
    given_back, rounds = 0, 0
    while not given_back or rounds < 2:
        rounds += 1
        assert rounds < 10, "no worker had claimed ahead: this test has shown nothing"
        refs += await app.enqueue_many("work", [{}] * MANY)
        done = await value(executions, "SELECT count(*) FROM tidemill.job_history")
        async with worker_process(database_url, ["work"], max_concurrency=10) as worker:
            await eventually(lambda done=done: has_finished(executions, done + MANY / 10))
            worker.terminate()
            assert await worker.ends() == 0
        assert await value(executions, "SELECT count(*) FROM tidemill.job WHERE worker_id IS NOT NULL") == 0
        assert await value(executions, "SELECT count(*) FROM tidemill.job WHERE state <> 'ready'") == 0
        given_back = await value(executions, "SELECT count(*) FROM tidemill.job WHERE attempt > 0")
    async with worker_process(database_url, ["work"], max_concurrency=10):
        await eventually(lambda: has_finished(executions, len(refs)), timeout=PATIENCE * 3)
    twice = await executions.fetch("SELECT job_id FROM execution GROUP BY job_id HAVING count(*) > 1")
    assert twice == []
    assert await value(executions, "SELECT count(*) FROM execution") == len(refs)
    assert await value(executions, "SELECT count(DISTINCT id) FROM tidemill.job_history") == len(refs)
    assert await value(executions, "SELECT max(failures + losses) FROM tidemill.job_history") == 0


@pytest.mark.parametrize("task", ["until_open", "plain_until_open"])
@pytest.mark.parametrize("ending", ["a second signal", "the end of the grace"])
async def test_a_job_that_does_not_end_in_time_goes_back_at_once(
    app: App, database_url: str, executions: Database, task: str, ending: str
) -> None:
    job = await app.enqueue(task, gate="go")
    grace = 60 if ending == "a second signal" else 0.3
    async with (
        running_maintenance(app),
        worker_process(database_url, ["throttled", "plain"], grace_seconds=grace) as worker,
    ):
        await eventually(lambda: attempts_of(executions, job.id))
        worker.terminate()
        if ending == "a second signal":
            await eventually(lambda: is_stopping(executions, worker.worker_id))
            assert (await find_live(executions, job.id) or {})["state"] == "running"
            worker.terminate()
        assert await worker.ends() == 0
        row = await find_live(executions, job.id)
        assert row is not None
        assert (row["state"], row["worker_id"], row["failures"], row["losses"]) == ("ready", None, 0, 0)
        assert row["note"] == "its worker stopped before it had finished"
        await open_gate(executions, "go")
        async with worker_process(database_url, ["throttled", "plain"]):
            done = await finished(executions, job.id)
    assert (done["state"], done["attempt"], done["failures"], done["losses"]) == ("succeeded", 2, 0, 0)


async def test_a_claim_that_was_under_way_when_the_worker_stopped_goes_back(app: App, database: Database) -> None:
    """The database answers the claim only after the worker has been told to stop."""
    entered: list[int] = []

    @app.task(queue="late")
    async def note_entry() -> None:
        entered.append(1)

    await database.run(lambda connection: connection.execute(SLOW_CLAIMS))
    async with database.acquire() as holder, running_worker(app, ["late"]) as worker:
        await holder.execute("SELECT pg_advisory_lock(42)")
        job = await app.enqueue(note_entry)
        await eventually(lambda: database.fetch(WAITS))
        worker.stop()
        await eventually(lambda: is_stopping(database, worker.worker_id))
        await holder.execute("SELECT pg_advisory_unlock(42)")
    if row := await find_live(database, job.id):
        assert (row["state"], row["worker_id"], row["losses"]) == ("ready", None, 0)
        assert entered == []
    else:
        assert entered == [1], "it may also run to its end, but not be left in the hands of a worker that is gone"


async def test_an_idle_worker_stops_at_once(database_url: str, executions: Database) -> None:
    async with worker_process(database_url, ["work"], grace_seconds=60) as worker:
        worker.terminate()
        assert await worker.ends() == 0
    assert (await find_worker(executions, worker.worker_id))["status"] == "ended"


async def is_stopping(database: Database, worker_id: int) -> bool:
    return (await find_worker(database, worker_id))["status"] == "stopping"


async def has_finished(database: Database, count: float) -> bool:
    return await value(database, "SELECT count(*) FROM tidemill.job_history") >= count
