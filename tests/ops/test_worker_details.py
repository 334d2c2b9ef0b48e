"""A worker process is shown with the jobs and runs that it holds, and with the processes that ended before it."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.ops.jobs.workers import ListWorkers, WorkerDetails, WorkerNumber, get_worker, list_workers
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database
from tidemill.store.jobs.workers import READ_WORKER_JOBS, WorkerCard, end_worker, register_worker

CARD = WorkerCard("alpha", 17, ("mail",), ("send", "read"), 4, {"tidemill": "1"})
OTHER_QUEUES = WorkerCard("alpha", 18, ("wide",), ("send",), 4, {"tidemill": "1"})


class Go(Event):
    pass


class Waiting(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(3600)
        return StopEvent()


async def test_a_worker_shows_the_jobs_and_runs_that_it_holds(app: App, database: Database) -> None:
    gate = asyncio.Event()

    @app.task
    async def hold() -> None:
        await gate.wait()

    app.workflow(Waiting)
    at = Local(database, Caller("ann", "viewer"))

    async def all_details() -> list[WorkerDetails]:
        lines = (await at.do(list_workers, ListWorkers())).items
        return [await at.do(get_worker, WorkerNumber(id=line.id)) for line in lines]

    async with app.running():
        job, run = await app.enqueue(hold.call()), await app.start(Waiting)

        async def held() -> bool:
            found = await all_details()
            jobs = [(each.id, each.task, each.attempt) for details in found for each in details.jobs]
            runs = [(each.id, each.workflow) for details in found for each in details.runs]
            return jobs == [(job.id, "hold", 1)] and runs == [(run.id, "Waiting")]

        await eventually(held)
        (holder,) = [details for details in await all_details() if details.jobs]
        assert holder.tasks == ["hold"]
        assert holder.worker.ended_at is None
        gate.set()
        await job
        await run.cancel()


async def test_a_worker_shows_the_processes_of_its_queues_that_ended_on_its_host(database: Database) -> None:
    at = Local(database, Caller("ann", "viewer"))
    first = await register_worker(database, CARD, lease_seconds=60.0)
    await end_worker(database, first, "stopped")
    await end_worker(database, await register_worker(database, OTHER_QUEUES, lease_seconds=60.0), "stopped")
    now = await register_worker(database, CARD, lease_seconds=60.0)
    found = await at.do(get_worker, WorkerNumber(id=now))
    assert [(each.id, each.pid, each.status, each.end_reason) for each in found.ended] == [
        (first, 17, "ended", "stopped")
    ]
    assert found.tasks == ["read", "send"]
    with pytest.raises(NotFoundError, match="there is no worker 404: `tidemill workers` lists them"):
        await at.do(get_worker, WorkerNumber(id=404))


async def test_the_jobs_are_not_read_for_a_worker_that_has_just_said_that_it_runs_none(database: Database) -> None:
    worker = await register_worker(database, CARD, lease_seconds=60.0)
    await database.fetch(
        "INSERT INTO tidemill.job (queue, task, args, state, worker_id, started_at) "
        "VALUES ('mail', 'send', '{}', 'running', $1, now())",
        worker,
    )

    async def jobs_read() -> bool:
        plan = await database.fetch(f"EXPLAIN (ANALYZE) {READ_WORKER_JOBS}", worker, 100)
        return any(" on job " in row[0] and "never executed" not in row[0] for row in plan)

    assert not await jobs_read()
    await database.fetch("UPDATE tidemill.worker SET running = 1 WHERE id = $1", worker)
    assert await jobs_read()
    await database.fetch("UPDATE tidemill.worker SET running = 0, seen_at = now() - interval '1 minute'")
    at = Local(database, Caller("ann", "viewer"))
    found = await at.do(get_worker, WorkerNumber(id=worker))
    assert [job.task for job in found.jobs] == ["send"], "a silent worker may hold what it has never reported"
    await database.fetch("UPDATE tidemill.worker SET queues = '{}'")
    assert not await jobs_read(), "it runs no jobs"
