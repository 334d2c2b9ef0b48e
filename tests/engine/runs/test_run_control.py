"""Pause, drain, stop and resume reach the runs of workflows, and the status of their worker is true."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.durable import running_run_worker
from tests.support.operate import set_control
from tests.support.waiting import eventually
from tidemill import App
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.store.database import Database


class Next(Event):
    pass


class Gated(Workflow):
    """Its first step waits for the test; both note that they began."""

    began: list[str]
    gate: asyncio.Event

    @step
    async def first(self, ev: StartEvent) -> Next:
        self.began.append("first")
        await self.gate.wait()
        return Next()

    @step
    async def second(self, ev: Next) -> StopEvent:
        self.began.append("second")
        return StopEvent(result="done")


def gated(app: App) -> Gated:
    workflow = Gated()
    workflow.began, workflow.gate = [], asyncio.Event()
    app.workflow(workflow)
    return workflow


async def owner_of(database: Database, number: int) -> Any:
    return (await database.fetch("SELECT owner FROM tidemill.run WHERE id = $1", number))[0]["owner"]


async def test_a_drained_run_worker_lets_a_step_end_and_starts_no_other(app: App, database: Database) -> None:
    workflow = gated(app)
    async with running_run_worker(app) as worker:
        run = await app.start("Gated")
        await eventually(lambda: workflow.began == ["first"])
        await set_control(database, "*", "*", "drain", by="ann")
        await eventually(lambda: worker.work.status == "draining")
        workflow.gate.set()
        await eventually(lambda: worker.work.status == "drained")
        assert await owner_of(database, run.id) is None
        assert workflow.began == ["first"]
        await set_control(database, "*", "*", "run", by="ann")
        assert await run.result(timeout=150) == "done"
        assert workflow.began == ["first", "second"]
        assert worker.work.status == "running"


async def test_a_stopped_run_worker_gives_its_runs_back_at_once(app: App, database: Database) -> None:
    workflow = gated(app)
    async with running_run_worker(app) as worker:
        run = await app.start("Gated")
        await eventually(lambda: workflow.began == ["first"])
        await set_control(database, "*", "*", "stop", by="ann")
        await eventually(lambda: worker.work.status == "stopped")
        assert await owner_of(database, run.id) is None
        workflow.gate.set()
        await set_control(database, "*", "*", "run", by="ann")
        assert await run.result(timeout=150) == "done"
        assert workflow.began == ["first", "first", "second"]


async def test_a_paused_run_worker_goes_on_with_its_runs_and_takes_no_others(app: App, database: Database) -> None:
    workflow = gated(app)
    async with running_run_worker(app) as worker:
        run = await app.start("Gated")
        await eventually(lambda: workflow.began == ["first"])
        await set_control(database, "*", "*", "pause", by="ann")
        await eventually(lambda: worker.work.status == "paused")
        other = await app.start("Gated")
        workflow.gate.set()
        assert await run.result(timeout=150) == "done"
        assert await owner_of(database, other.id) is None
        await set_control(database, "*", "*", "run", by="ann")
        assert await other.result(timeout=150) == "done"


async def test_a_run_worker_that_is_asked_to_stop_lets_a_step_end_and_gives_the_run_back(
    app: App, database: Database
) -> None:
    workflow = gated(app)
    async with running_run_worker(app, grace_seconds=60.0) as worker:
        run = await app.start("Gated")
        await eventually(lambda: workflow.began == ["first"])
        worker.stop()
        await eventually(lambda: worker.work.status == "stopping")
        workflow.gate.set()
        await eventually(lambda: not worker.work.runs)
    assert workflow.began == ["first"]
    assert await owner_of(database, run.id) is None
    async with running_run_worker(app):
        assert await run.result(timeout=150) == "done"
    assert workflow.began == ["first", "second"]


async def test_a_second_stop_gives_runs_back_at_once(app: App, database: Database) -> None:
    workflow = gated(app)
    async with running_run_worker(app, grace_seconds=600.0) as worker:
        run = await app.start("Gated")
        await eventually(lambda: workflow.began == ["first"])
        worker.stop()
        worker.stop()
        await eventually(lambda: not worker.work.runs)
    assert await owner_of(database, run.id) is None
