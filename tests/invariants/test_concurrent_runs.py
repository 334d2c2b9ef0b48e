"""`num_concurrent_runs` of a durable workflow holds over all run workers, for as long as its runs have not ended."""

from __future__ import annotations

import asyncio

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.runs.runs import RunRef, get_run
from tidemill.store.database import Database

BEGUN = "SELECT count(*) FROM tidemill.run WHERE state = 'running' AND seq > 0"


class Limited(Workflow):
    """Waits for its event, in memory or not."""

    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        return StopEvent(result=go.word)


class Free(Workflow):
    @step
    async def end(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result="free")


async def test_no_more_runs_are_begun_than_the_limit_until_one_has_ended(app: App, database: Database) -> None:
    app.workflow(Limited, num_concurrent_runs=2)
    app.workflow(Free)
    other = App("test", database_url=app.settings.database_url)
    other.workflow(Limited, num_concurrent_runs=2)
    async with running_run_worker(app), running_run_worker(other):
        runs = [await app.start(Limited) for _ in range(6)]
        most = 0
        for number, run in enumerate(runs):
            waiting = min(2, len(runs) - number)
            await eventually(lambda waiting=waiting: _has(database, waiting))
            most = max(most, await value(database, BEGUN))
            assert await (await app.start(Free)).result(timeout=120) == "free", "others are not held back"
            await run.send_event(Go(word=str(number)))
            assert await run.result(timeout=120) == str(number)
        assert most == 2
        assert await asyncio.gather(*(run.result(timeout=120) for run in runs)) == list("012345")


async def test_a_run_that_waits_for_a_slot_says_which_limit_it_waits_for_and_which_runs_hold_it(
    app: App, database: Database
) -> None:
    app.workflow(Limited, num_concurrent_runs=2)
    async with running_run_worker(app):
        first, second, third = [await app.start(Limited) for _ in range(3)]
        await eventually(lambda: _has(database, 2))
        explained = (await app.do(get_run, RunRef(id=third.id))).why
        assert explained == [
            "It waits for a slot: no more than 2 runs of Limited may run at once (num_concurrent_runs), which are "
            f"r{first.id}, r{second.id} now."
        ]
        assert (await app.do(explain, ExplainObject(id=f"r{third.id}"))).why[1:] == explained
        await first.send_event(Go(word="end"))
        await first.result(timeout=120)
        await eventually(lambda: value(database, "SELECT seq > 0 FROM tidemill.run WHERE id = $1", third.id))
        assert "waits for a slot" not in (await app.do(get_run, RunRef(id=third.id))).why[0]


async def test_a_run_that_needs_attention_gives_its_slot_to_the_next(app: App, database: Database) -> None:
    app.workflow(Limited, num_concurrent_runs=1)
    broken, waiting = await app.start(Limited), await app.start(Limited)
    await database.fetch(
        'UPDATE tidemill.run SET input = \'{"type": "gone.Start", "value": {}}\' WHERE id = $1', broken.id
    )
    async with running_run_worker(app):
        await eventually(lambda: _has(database, 1))
        await waiting.send_event(Go(word="next"))
        assert await waiting.result(timeout=120) == "next"


async def _has(database: Database, begun: int) -> bool:
    return await value(database, BEGUN) == begun
