"""Events that come before anything waits for them are kept, in the order in which they came."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.flows import names
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.events import InputRequiredEvent
from tidemill.flows.reducer.mailbox import MAILBOX_SIZE


class Ping(Event):
    n: int = 0


class LoudPing(Ping):
    pass


class Question(InputRequiredEvent):
    pass


async def shown(handler: Any) -> list[Any]:
    return [event async for event in handler.stream_events(expose_internal=True)]


async def test_a_step_gets_an_event_that_it_has_sent_before_it_waits() -> None:
    class Early(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for n in (1, 2):
                ctx.send_event(Ping(n=n))
            first = await ctx.wait_for_event(Ping, waiter_event=Question())
            second = await ctx.wait_for_event(Ping, waiter_event=Question())
            return StopEvent(result=[first.n, second.n])

    handler = Early().run()
    seen = await shown(handler)
    assert await handler == [1, 2]
    assert names(seen).count("UnhandledEvent") == 2
    assert "Question" not in names(seen), "nothing has to be asked for what is there"


async def test_the_oldest_event_that_fits_the_requirements_is_taken_and_others_stay() -> None:
    class Picky(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for n in (1, 2, 1):
                ctx.send_event(Ping(n=n))
            two = await ctx.wait_for_event(Ping, requirements={"n": 2})
            rest = [(await ctx.wait_for_event(Ping)).n for _ in range(2)]
            return StopEvent(result=[two.n, *rest])

    assert await Picky().run() == [2, 1, 1]


async def test_a_step_that_accepts_subclasses_waits_for_them_too() -> None:
    class Accepts(Workflow):
        @step(accept_event_subclasses=True)
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.send_event(LoudPing(n=1))
            kept = await ctx.wait_for_event(Ping)
            ctx.write_event_to_stream(Question())
            later = await ctx.wait_for_event(Ping)
            return StopEvent(result=[type(kept).__name__, type(later).__name__])

    handler = Accepts().run()
    async for event in handler.stream_events():
        if isinstance(event, Question):
            await handler.send_event(LoudPing(n=2))
    assert await handler == ["LoudPing", "LoudPing"]


async def test_a_step_that_does_not_accept_subclasses_leaves_them() -> None:
    class Strict(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.send_event(LoudPing(n=1))
            ctx.send_event(Ping(n=2))
            return StopEvent(result=(await ctx.wait_for_event(Ping)).n)

    assert await Strict().run() == 2


async def test_the_oldest_events_are_dropped_when_too_many_are_kept() -> None:
    class Flooded(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for n in range(MAILBOX_SIZE + 3):
                ctx.send_event(Ping(n=n))
            return StopEvent(result=(await ctx.wait_for_event(Ping)).n)

    handler = Flooded().run()
    assert await handler == 3
    assert handler.ctx._run is not None
    assert handler.ctx._run.loop.state.dropped == 3


async def test_an_answer_that_comes_as_its_wait_is_given_up_is_kept_for_the_next_one() -> None:
    class GivesUp(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            waiting = asyncio.create_task(ctx.wait_for_event(Ping))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ctx.send_event(Ping(n=7))
            await asyncio.sleep(0)  # The event is delivered now, and the task has not run since.
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                return StopEvent(result=waiting.result().n)
            return StopEvent(result=(await ctx.wait_for_event(Ping, timeout=5)).n)

    assert await GivesUp().run() == 7


async def test_a_context_knows_its_run_and_its_attempt() -> None:
    class Knows(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=[ctx.run_id, ctx.attempt_key])

    handler = Knows().run()
    run_id, key = await handler
    assert run_id == handler.run_id
    assert key.startswith(f"{run_id}.")
