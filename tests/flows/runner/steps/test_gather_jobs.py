"""`ctx.gather_jobs`: a step enqueues jobs as one batch and waits for all of them; its run may leave memory then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import eventually, running_worker, value
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.store.database import Database
from tidemill.store.jobs.batches.batches import sweep_batches


class Many(StartEvent):
    count: int
    bad: int = -1


@pytest.fixture
def app(app: App) -> App:
    @app.task
    async def double(n: int, bad: int) -> int:
        if n == bad:
            raise ValueError(f"{n} is bad")
        return 2 * n

    @app.workflow(timeout=None)
    class Total(Workflow):
        @step
        async def start(self, ctx: Context[Any], ev: Many) -> StopEvent:
            found = await ctx.gather_jobs(*(double.call(n, ev.bad) for n in range(ev.count)))
            return StopEvent(result=sum(found))

    return app


async def test_a_step_gets_the_results_of_its_jobs_in_order(app: App) -> None:
    async with running_run_worker(app), running_worker(app):
        run = await app.start("Total", Many(count=100))
        assert await run.result(timeout=60) == 9900


async def test_jobs_are_enqueued_once_though_the_run_leaves_its_process(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start("Total", Many(count=5))
        await eventually(lambda: value(database, "SELECT count(*) = 5 FROM tidemill.job"))
    async with running_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) = 5 FROM tidemill.job_history"))
    async with running_run_worker(app):
        assert await run.result(timeout=60) == 20
    assert await value(database, "SELECT count(*) FROM tidemill.job_history") == 5


async def test_a_job_that_fails_fails_the_step(app: App) -> None:
    async with running_run_worker(app), running_worker(app):
        run = await app.start("Total", Many(count=3, bad=1))
        with pytest.raises(Exception, match=r"of the 3 jobs of batch b\d+, 1 failed; the first: job \d+ .*1 is bad"):
            await run.result(timeout=60)


async def test_a_run_that_ends_takes_its_jobs_with_it(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start("Total", Many(count=5))
        await eventually(lambda: value(database, "SELECT count(*) = 5 FROM tidemill.job"))
        await run.cancel()
        await eventually(lambda: value(database, "SELECT ended_at IS NOT NULL FROM tidemill.run"))
    await sweep_batches(database)
    assert await value(database, "SELECT cancelled FROM tidemill.batch_count") == 5


async def test_a_run_in_memory_has_no_jobs() -> None:
    class Plain(Workflow):
        @step
        async def start(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.gather_jobs()
            return StopEvent()

    with pytest.raises(WorkflowRuntimeError, match="only available in durable runs"):
        await Plain().run()
