"""A finished job stays as it is, and only the attempt that owns a job can finish it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import Puppet, ending, eventually, find_history, find_live, operate, puppet
from tidemill import App
from tidemill.core.codec import encode
from tidemill.core.errors import NotFoundError
from tidemill.core.jobs.job import FINAL_STATES, ClaimedJob, FinalState, Finish, Requeue
from tidemill.store.database import Database
from tidemill.store.jobs import sweeps
from tidemill.store.jobs.claims.claims import finish_jobs, report_progress, requeue_jobs


@pytest.fixture
def task(app: App) -> Any:
    @app.task
    async def anything(n: int = 0) -> None: ...

    return anything


async def claimed(app: App, task: Any, worker: Puppet, **options: Any) -> ClaimedJob:
    """A new job in the hands of this worker."""
    ref = await app.enqueue(task, **options)
    (job,) = await worker.claim()
    assert job.id == ref.id
    return job


async def only_row(database: Database, job_id: int) -> dict[str, Any]:
    """The finished job as it is, which is all there is of it."""
    assert await find_live(database, job_id) is None, "the job came back to life"
    (row,) = await find_history(database, job_id)
    return dict(row)


def lose(job: ClaimedJob, worker: str, held: int) -> Finish | Requeue:
    return Requeue(job.id, job.attempt, 0.0, f"{worker} was lost", lost=True)


@pytest.mark.parametrize("state", FINAL_STATES)
async def test_nothing_that_comes_late_changes_a_finished_job(
    app: App, database: Database, task: Any, state: FinalState
) -> None:
    async with puppet(database) as worker:
        job = await claimed(app, task, worker)
        assert await worker.finish(job, {"first": True}, state) == [job.id]
        before = await only_row(database, job.id)
        assert before["state"] == state

        for other in FINAL_STATES:
            assert await worker.finish(job, {"second": True}, other) == []
            await worker.turn([ending(job, {"third": True}, other)])
        assert await worker.give_back(job) == []
        await report_progress(database, worker.worker_id, [(job.id, job.attempt, 0.5, "half way")])
        assert await worker.claims.release_unheld([]) == []
        assert (await operate.cancel_jobs(database, [job.id], by="somebody")).unchanged == [job.id]
        await worker.fall_silent()
        await sweeps.reclaim_lapsed(database, lose, lease_seconds=0.0)
        await sweeps.release_orphans(database)
        await sweeps.expire_jobs(database)
        await sweeps.route_jobs(database)

        assert await only_row(database, job.id) == before
        assert await worker.claim() == []


async def test_a_job_cancelled_while_it_waited_never_runs(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as worker:
        ref = await app.enqueue(task)
        assert (await operate.cancel_jobs(database, [ref.id], by="somebody")).done == [ref.id]
        before = await only_row(database, ref.id)
        assert (before["state"], before["note"]) == ("cancelled", "cancelled by somebody")
        assert await worker.claim() == []
        assert await only_row(database, ref.id) == before


async def test_a_job_past_its_deadline_expires_once(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as worker:
        ref = await app.enqueue(task, deadline=0.001)
        await eventually(lambda: sweeps.expire_jobs(database))
        before = await only_row(database, ref.id)
        assert before["state"] == "expired"
        assert await sweeps.expire_jobs(database) == 0
        assert (await operate.cancel_jobs(database, [ref.id], by="somebody")).unchanged == [ref.id]
        assert await worker.claim() == []
        assert await only_row(database, ref.id) == before


async def test_asking_for_a_finished_job_again_makes_a_new_one_and_leaves_the_old(
    app: App, database: Database, task: Any
) -> None:
    async with puppet(database) as worker:
        job = await claimed(app, task, worker)
        await worker.finish(job, None, "failed")
        before = await only_row(database, job.id)
        (again,) = (await operate.retry_jobs(database, [job.id], by="somebody")).asked
        assert again != job.id
        assert await only_row(database, job.id) == before


@pytest.mark.parametrize("path", ["turn", "finish"])
async def test_a_batch_that_names_a_job_twice_finishes_it_once(
    app: App, database: Database, task: Any, path: str
) -> None:
    async with puppet(database) as worker:
        refs = await app.enqueue_many(task, [{"n": n} for n in range(20)])
        jobs = await worker.claim(room=20)
        batch = [ending(job, {"job": job.id}) for job in jobs]
        for _ in range(2):
            await (worker.turn(batch + batch[:5]) if path == "turn" else worker.claims.finish(batch + batch[:5]))
        for ref in refs:
            row = await only_row(database, ref.id)
            assert row["result"] == encode({"job": ref.id})


@pytest.mark.parametrize("path", ["turn", "finish"])
async def test_two_finishes_at_the_same_moment_count_once(app: App, database: Database, task: Any, path: str) -> None:
    async with puppet(database) as worker, database.acquire() as other:
        job = await claimed(app, task, worker)
        async with other.transaction():
            assert list(await finish_jobs(database, other, worker.worker_id, [ending(job, "first")])) == [job.id]
            second = ending(job, "second", "failed")
            late = asyncio.create_task(worker.turn([second]) if path == "turn" else worker.claims.finish([second]))
            await waits_for_a_lock(database)
        assert await late == []
        assert (await only_row(database, job.id))["result"] == b'"first"'


@pytest.mark.parametrize("path", ["turn", "finish"])
async def test_a_finish_that_meets_a_reclaim_changes_nothing(
    app: App, database: Database, task: Any, path: str
) -> None:
    async with puppet(database) as worker, database.acquire() as sweeper:
        job = await claimed(app, task, worker)
        async with sweeper.transaction():
            lost = Requeue(job.id, job.attempt, 0.0, "its worker was lost", lost=True)
            assert await requeue_jobs(database, sweeper, worker.worker_id, [lost]) == [job.id]
            end = ending(job, "late")
            late = asyncio.create_task(worker.turn([end]) if path == "turn" else worker.claims.finish([end]))
            await waits_for_a_lock(database)
        await late
        assert await find_history(database, job.id) == []
        row = await find_live(database, job.id)
        assert row is not None
        assert (row["state"], row["attempt"], row["losses"]) == ("ready", 1, 1)


async def test_only_the_worker_that_claimed_a_job_can_finish_it(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as owner, puppet(database) as stranger:
        job = await claimed(app, task, owner)
        before = await find_live(database, job.id)
        assert await stranger.finish(job, "mine now") == []
        await stranger.turn([ending(job, "mine now")])
        assert await stranger.give_back(job) == []
        await report_progress(database, stranger.worker_id, [(job.id, job.attempt, 0.9, "nearly mine")])
        assert await find_live(database, job.id) == before
        assert await owner.finish(job, "done") == [job.id]


async def test_an_earlier_attempt_cannot_finish_a_later_one(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as worker:
        first = await claimed(app, task, worker)
        assert await worker.give_back(first) == [first.id]
        (second,) = await worker.claim()
        assert (second.id, second.attempt) == (first.id, first.attempt + 1)
        before = await find_live(database, first.id)
        assert await worker.finish(first, "stale") == []
        await worker.turn([ending(first, "stale")])
        assert await worker.give_back(first) == []
        await report_progress(database, worker.worker_id, [(first.id, first.attempt, 0.9, "stale")])
        assert await find_live(database, first.id) == before
        await worker.turn([ending(second, "fresh")])
        row = await only_row(database, first.id)
        assert (row["result"], row["attempt"]) == (b'"fresh"', 2)


async def test_a_waiting_job_cannot_be_finished(app: App, database: Database, task: Any) -> None:
    async with puppet(database) as worker:
        job = await claimed(app, task, worker)
        await worker.give_back(job)
        assert await worker.finish(job, "from memory") == []
        await worker.turn([ending(job, "from memory")])
        assert await find_history(database, job.id) == []


async def test_a_progress_report_during_the_finish_does_not_keep_the_job_alive(
    app: App, database: Database, task: Any
) -> None:
    async with puppet(database) as worker, database.acquire() as other:
        job = await claimed(app, task, worker)
        async with other.transaction():
            await other.execute("UPDATE tidemill.job SET progress = 0.5, note = 'half way' WHERE id = $1", job.id)
            late = asyncio.create_task(worker.turn([ending(job, "done")]))
            await waits_for_a_lock(database)
        await late
        assert (await only_row(database, job.id))["result"] == b'"done"'


async def test_cancelling_a_job_that_never_was_is_an_error(database: Database) -> None:
    with pytest.raises(NotFoundError, match="there is no job 424242"):
        await operate.cancel_jobs(database, [424242], by="somebody")


async def waits_for_a_lock(database: Database) -> None:
    """Return when a backend waits for a row that another transaction holds."""
    await eventually(
        lambda: database.fetch(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )
