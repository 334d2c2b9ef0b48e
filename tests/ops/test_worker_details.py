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
from tidemill.store.jobs.workers import WorkerCard, end_worker, register_worker

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


async def test_the_jobs_of_a_worker_are_those_that_it_has_just_reported(database: Database) -> None:
    """They are found by their ids: to look for them would read all jobs."""
    worker = await register_worker(database, CARD, lease_seconds=60.0)
    rows = await database.fetch(
        "INSERT INTO tidemill.job (queue, task, args, state, worker_id, started_at) "
        "SELECT 'mail', 'send', '{}', 'running', $1, now() FROM generate_series(1, 2) RETURNING id",
        worker,
    )
    reported, unreported = [row["id"] for row in rows]
    at = Local(database, Caller("ann", "viewer"))

    async def shown(change: str = "", *args: object) -> list[int]:
        if change:
            await database.fetch(f"UPDATE tidemill.worker SET {change}", *args)
        return [job.id for job in (await at.do(get_worker, WorkerNumber(id=worker))).jobs]

    assert await shown() == [], "it has just said that it runs none"
    assert await shown("running = 2, held = $1", [reported]) == [reported]
    both = [reported, unreported]
    assert await shown("held = NULL") == both, "a worker of an older version reports no ids"
    assert await shown("running = 0, held = '{}', seen_at = now() - interval '1 minute'") == both, "a silent worker"
    assert await shown("queues = '{}'") == [], "it runs no jobs"


async def test_a_worker_reports_the_jobs_that_it_runs(app: App, database: Database) -> None:
    gate = asyncio.Event()

    @app.task
    async def hold() -> None:
        await gate.wait()

    async with app.running():
        jobs = [await app.enqueue(hold.call()) for _ in range(3)]

        async def is_reported() -> bool:
            rows = await database.fetch("SELECT held FROM tidemill.worker WHERE queues <> '{}' AND ended_at IS NULL")
            return [row["held"] for row in rows] == [[job.id for job in jobs]]

        await eventually(is_reported)
        gate.set()
        for job in jobs:
            await job
