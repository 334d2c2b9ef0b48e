"""A step goes by an answer only when the answer is safe, and hears the same answers when it is run again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker, ticks_of
from tidemill import App
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.decorators import catch_error
from tidemill.flows.definition.events import StepFailedEvent
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database

heard: list[Any] = []


class Second(Event):
    who: str = ""


class Listener(Workflow):
    @step
    async def listen(self, ctx: Context, ev: StartEvent) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        heard.append(go.word)
        await ctx.wait_for_event(Second)
        return StopEvent(result=go.word)


class Reminding(Workflow):
    """Waits in vain twice, then for good; what it was told comes from the journal when it is run again."""

    @step
    async def remind(self, ctx: Context, ev: StartEvent) -> StopEvent:
        for n in range(10):
            try:
                await ctx.wait_for_event(Go, timeout=0.1 if n < 2 else 600)
            except TimeoutError:
                heard.append(n)
                async with ctx.store.edit_state() as state:
                    state.reminded = state.get("reminded", 0) + 1
            else:
                return StopEvent(result=(await ctx.store.get("reminded"), n))
        return StopEvent(result="never")


class GivesUp(Workflow):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.wait_for_event(Go, timeout=600), 0.1)
        heard.append("gave up")
        answer = await ctx.wait_for_event(HumanResponseEvent, timeout=None)
        return StopEvent(result=answer.text)


class Sharing(Workflow):
    """Two steps write one value; the one that wrote first fails."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> list[Second]:
        await ctx.store.set("owner", "nobody")
        return [Second(who="first"), Second(who="second")]

    @step(num_workers=2)
    async def share(self, ctx: Context, ev: Second) -> Go:
        if ev.who == "first":
            await ctx.store.set("owner", "first")
            await ctx.wait_for_event(HumanResponseEvent)
            raise ValueError("it fails")
        while await ctx.store.get("owner") != "first":
            await asyncio.sleep(0.005)
        await ctx.store.set("owner", "second")
        return Go(word="done")

    @step
    async def join(self, ctx: Context, done: list[Go]) -> StopEvent:
        return StopEvent(result=await ctx.store.get("owner"))


@pytest.fixture
def app(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """Runs stay in memory however slow the machine is, so that each step is run again only when a run worker stops."""
    monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 600.0)
    heard.clear()
    for each in (Listener, Reminding, GivesUp):
        app.workflow(each, timeout=None)
    return app


async def kinds(database: Database, run: RunHandle) -> list[str]:
    return [tick["note"]["kind"] for tick in await ticks_of(database, run.id) if tick["kind"] == "noted"]


async def test_a_step_does_not_hear_an_answer_before_it_is_written(app: App, database: Database) -> None:
    async with running_run_worker(app) as run_worker:
        run = await app.start(Listener)
        await eventually(lambda: asked(database, run, 1))
        async with database.transaction() as holder:
            await holder.execute("LOCK TABLE tidemill.tick IN SHARE MODE")
            await run.send_event(Go(word="hello"))
            await eventually(lambda: is_reduced(run_worker, run))
            await asyncio.sleep(0.05)
            assert heard == []
        await eventually(lambda: heard == ["hello"])
        await run.send_event(Second())
        assert await run.result(timeout=120) == "hello"


async def test_time_outs_are_told_again_in_order_and_a_new_wait_is_a_new_one(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Reminding)
        await eventually(lambda: heard == [0, 1])
        await eventually(lambda: asked(database, run, 3))
    assert heard == [0, 1]
    async with running_run_worker(app):
        await run.send_event(Go(word="at last"))
        assert await run.result(timeout=120) == (2, 2), "two reminders, though the step ran twice"
    assert heard == [0, 1, 0, 1]
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0


async def test_a_wait_that_was_given_up_is_closed_in_the_journal_too(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(GivesUp)
        await eventually(lambda: asked(database, run, 2))
        assert await kinds(database, run) == ["asked", "withdrew", "asked"]
        timers = "SELECT count(*) FROM tidemill.inbox WHERE timer LIKE 'wait:%'"
        await eventually(lambda: no_rows(database, timers))
        await run.send_event(HumanResponseEvent(text="fine"))
        assert await run.result(timeout=120) == "fine"


async def test_a_failed_step_does_not_take_back_what_another_has_written() -> None:
    class Rescued(Sharing):
        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> Go:
            return Go(word="rescued")

    handler = Rescued(timeout=60).run()
    while await handler.ctx.store.get("owner", default=None) != "second":
        await asyncio.sleep(0.005)
    await handler.send_event(HumanResponseEvent())
    assert await handler == "second"


async def no_rows(database: Database, query: str) -> bool:
    return await value(database, query) == 0


async def asked(database: Database, run: RunHandle, times: int) -> bool:
    return (await kinds(database, run)).count("asked") >= times


def is_reduced(run_worker: Any, run: RunHandle) -> bool:
    owned = run_worker.work.runs.get(run.id)
    return owned is not None and any(work.answers for work in owned.loop.state.works.values())
