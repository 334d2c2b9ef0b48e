"""A durable run that nothing can continue fails with the reason; one that something outside can continue waits."""

from __future__ import annotations

import pytest

from tests.support import eventually, value
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.errors import RunNeedsAttentionError, WorkflowRuntimeError
from tidemill.store.database import Database


class Lost(Event):
    pass


class Odd(Lost):
    pass


class Middle(Event):
    pass


class Strays(Workflow):
    """Returns an event of a class that no step takes."""

    @step
    async def begin(self, ev: StartEvent) -> Lost | StopEvent:
        return Odd()

    @step
    async def end(self, ev: Lost) -> StopEvent:
        return StopEvent()


class Silent(Workflow):
    """Its first step may return nothing, and then nothing follows."""

    @step
    async def begin(self, ev: StartEvent) -> Middle | None:
        return None

    @step
    async def end(self, ev: Middle) -> StopEvent:
        return StopEvent()


class Outside(Workflow):
    """Continues with an answer that comes from outside."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        return InputRequiredEvent(prompt="Go on?")

    @step
    async def end(self, ev: HumanResponseEvent) -> StopEvent:
        return StopEvent(result=ev.text)


@pytest.mark.parametrize(
    ("workflow", "reason"),
    [(Strays, "no step takes the Odd that it has received"), (Silent, "its last step has returned no event")],
)
async def test_a_run_that_nothing_can_continue_fails_with_the_reason(
    app: App, workflow: type[Workflow], reason: str
) -> None:
    app.workflow(workflow)
    async with running_run_worker(app):
        run = await app.start(workflow)
        with pytest.raises(WorkflowRuntimeError, match=f"the run cannot go on: {reason}"):
            await run.result(timeout=120)
        assert await run.state() == "failed"


async def test_a_run_that_an_event_from_outside_continues_waits_for_it(app: App, database: Database) -> None:
    app.workflow(Outside)
    async with running_run_worker(app):
        run = await app.start(Outside)
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.run_input"))
        await run.send_event(HumanResponseEvent(text="yes"))
        assert await run.result(timeout=120) == "yes"


async def test_awaiting_or_following_a_run_that_needs_attention_raises_why(app: App, database: Database) -> None:
    app.workflow(Outside)
    run = await app.start(Outside)
    await database.fetch('UPDATE tidemill.run SET input = \'{"type": "gone.Start", "value": {}}\'')
    async with running_run_worker(app):
        with pytest.raises(RunNeedsAttentionError, match=rf"run r{run.id} needs attention: .*gone\.Start"):
            await run.result(timeout=120)
        with pytest.raises(RunNeedsAttentionError, match=r"gone\.Start"):
            assert [event async for event in run.stream_events()] == []


async def test_a_follower_resumes_from_the_number_of_any_event(app: App) -> None:
    @app.workflow
    class Talking(Workflow):
        @step
        async def talk(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for _ in range(5):
                ctx.write_event_to_stream(Middle())
            return StopEvent(result=1)

    async with running_run_worker(app):
        run = await app.start(Talking)
        await run
        shown = [each async for each in run.stream_events(numbered=True)]
        assert [type(event).__name__ for _, event in shown] == ["Middle"] * 5 + ["StopEvent"]
        for place, (number, _) in enumerate(shown):
            rest = [each async for each in run.stream_events(after=number, numbered=True)]
            assert [each for each, _ in rest] == [each for each, _ in shown[place + 1 :]]


async def test_an_event_that_run_workers_do_not_know_is_refused_before_it_is_sent(app: App, database: Database) -> None:
    @app.workflow
    class Waiting(Workflow):
        @step
        async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=(await ctx.wait_for_event(Middle)) is not None)

    run = await app.start(Waiting)
    async with running_run_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.worker WHERE events IS NOT NULL"))

        class Midle(Event):
            """Defined after the run worker has said what it knows."""

        with pytest.raises(ConfigError, match=r"Midle is not an event class of this .*; did you mean 'Middle'"):
            await run.send_event(Midle())
        await run.send_event(Middle())
        assert await run.result(timeout=120)
