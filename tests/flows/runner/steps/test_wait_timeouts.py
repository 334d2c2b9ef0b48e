"""A step that gives up waiting, or waits again after its time had run out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.support.flows import names
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_none


class Reply(HumanResponseEvent):
    text: str = ""


class Question(InputRequiredEvent):
    n: int = 0


class Later(Event):
    pass


def open_waits(handler: Any) -> int:
    state = handler.ctx._run.loop.state
    assert sum(len(waits) for waits in state.waits.values()) == sum(len(work.waiting) for work in state.works.values())
    return sum(len(work.waiting) for work in state.works.values())


async def until(handler: Any, kind: type, *, internal: bool = False) -> list[Any]:
    """What a run shows up to the first event of a class."""
    seen: list[Any] = []
    async for event in handler.stream_events(expose_internal=internal):
        seen.append(event)
        if isinstance(event, kind):
            break
    return seen


class GivesUp(Workflow):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> Later:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.wait_for_event(Reply, timeout=600), 0.01)
        ctx.write_event_to_stream(Later())
        return Later()

    @step
    async def wait(self, ctx: Context, ev: Later) -> StopEvent:
        reply = await ctx.wait_for_event(Reply, waiter_event=Question(n=2))
        return StopEvent(result=reply.text)


async def test_a_wait_that_was_given_up_is_closed_and_takes_nothing() -> None:
    handler = GivesUp().run()
    await until(handler, Question)
    run = handler.ctx._run
    assert run is not None
    assert open_waits(handler) == 1, "only the second step's"
    assert [name for name in run._timers if name.startswith("wait:1:")] == []
    await handler.send_event(Reply(text="for the second"))
    assert await handler == "for the second"


async def test_an_event_for_a_wait_that_was_given_up_is_unhandled() -> None:
    class Alone(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            waiting = asyncio.create_task(ctx.wait_for_event(Reply))
            await turns()
            waiting.cancel()
            await asyncio.wait([waiting])
            ctx.write_event_to_stream(Question())
            later = await ctx.wait_for_event(HumanResponseEvent)
            return StopEvent(result=later.text)

    handler = Alone().run()
    seen: list[Any] = []
    async for event in handler.stream_events(expose_internal=True):
        seen.append(event)
        if isinstance(event, Question):
            await handler.send_event(Reply(text="too late"))
            await handler.send_event(HumanResponseEvent(text="in time"))
    assert await handler == "in time"
    assert names(seen).count("UnhandledEvent") == 1


async def test_a_wait_that_was_given_up_can_be_asked_again() -> None:
    class Patient(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for n in range(4):
                patience = 0.01 if n < 2 else 60
                try:
                    reply = await asyncio.wait_for(ctx.wait_for_event(Reply, waiter_event=Question(n=n)), patience)
                except TimeoutError:
                    continue
                return StopEvent(result=(n, reply.text))
            return StopEvent(result="nobody came")

    handler = Patient().run()
    async for event in handler.stream_events():
        if isinstance(event, Question) and event.n == 2:
            await handler.send_event(Reply(text="here"))
    assert await handler == (2, "here")


async def test_a_wait_whose_time_ran_out_waits_again_when_it_is_asked_again() -> None:
    class Patient(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            for n in range(4):
                patience = 0.01 if n < 2 else 60
                try:
                    asked = Question(n=n)
                    reply = await ctx.wait_for_event(Reply, waiter_event=asked, waiter_id="reply", timeout=patience)
                except TimeoutError:
                    continue
                again = await ctx.wait_for_event(Reply, waiter_id="reply")
                return StopEvent(result=(n, reply.text, again.text))
            return StopEvent(result="nobody came")

    handler = Patient().run()
    seen: list[Any] = []
    async for event in handler.stream_events():
        seen.append(event)
        if isinstance(event, Question) and event.n == 2:
            await handler.send_event(Reply(text="here"))
    assert await handler == (2, "here", "here")
    assert [event.n for event in seen if isinstance(event, Question)] == [0, 1, 2]


async def test_a_retry_waits_again_where_the_attempt_before_waited_in_vain() -> None:
    class Again(Workflow):
        @step(retry_policy=retry_policy(wait=wait_none(), stop=stop_after_attempt(3)))
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            number = ctx.retry_info().retry_number
            patience = 60 if number else 0.01
            reply = await ctx.wait_for_event(Reply, waiter_event=Question(n=number), timeout=patience)
            return StopEvent(result=(number, reply.text))

    handler = Again().run()
    async for event in handler.stream_events():
        if isinstance(event, Question) and event.n == 1:
            await handler.send_event(Reply(text="here"))
    assert await handler == (1, "here")


async def test_several_parts_of_a_step_may_wait_for_one_answer() -> None:
    class Both(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            both = asyncio.gather(ctx.wait_for_event(Reply), ctx.wait_for_event(Reply))
            hasty = asyncio.create_task(ctx.wait_for_event(Reply))
            await asyncio.sleep(0)
            hasty.cancel()
            ctx.write_event_to_stream(Question())
            return StopEvent(result=[reply.text for reply in await both])

    handler = Both().run()
    await until(handler, Question)
    await handler.send_event(Reply(text="one"))
    assert await handler == ["one", "one"]


async def test_the_first_of_two_answers_wins_and_the_other_question_is_closed() -> None:
    class Race(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            asked = [asyncio.create_task(ctx.wait_for_event(kind)) for kind in (Reply, HumanResponseEvent)]
            done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for each in left:
                each.cancel()
            await asyncio.wait(left)
            ctx.write_event_to_stream(Question())
            reply = await ctx.wait_for_event(HumanResponseEvent, waiter_id="other")
            return StopEvent(result=[done.pop().result().text, reply.text])

    handler = Race().run()
    await turns()
    await handler.send_event(Reply(text="first"))
    await until(handler, Question)
    await turns()
    assert open_waits(handler) == 1
    await handler.send_event(HumanResponseEvent(text="second"))
    assert await handler == ["first", "second"]


async def test_a_saved_wait_has_its_whole_time_again() -> None:
    class Slow(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            reply = await ctx.wait_for_event(Reply, waiter_event=Question(), timeout=600)
            return StopEvent(result=reply.text)

    handler = Slow().run()
    await until(handler, Question)
    saved = handler.ctx.to_dict()
    await handler.cancel_run()
    flow = Slow()
    resumed_at = asyncio.get_running_loop().time()
    resumed = flow.run(ctx=Context.from_dict(flow, saved))
    await turns()
    run = resumed.ctx._run
    assert run is not None
    (until_when,) = [timer.when() for name, timer in run._timers.items() if name.startswith("wait:")]
    assert until_when >= resumed_at + 600
    await resumed.send_event(Reply(text="in time"))
    assert await resumed == "in time"


async def test_a_step_that_is_over_leaves_no_timer_behind() -> None:
    class Hasty(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> Later:
            asyncio.get_running_loop().create_task(_ignored(ctx.wait_for_event(Reply, timeout=600)))
            await turns()
            return Later()

        @step
        async def wait(self, ctx: Context, ev: Later) -> StopEvent:
            ctx.write_event_to_stream(Question())
            await ctx.wait_for_event(HumanResponseEvent)
            return StopEvent()

    handler = Hasty().run()
    await until(handler, Question)
    await turns()
    run = handler.ctx._run
    assert run is not None
    assert [name for name in run._timers if name.startswith("wait:1:")] == []
    await handler.send_event(HumanResponseEvent())
    await handler


async def _ignored(waiting: Any) -> None:
    with suppress(Exception):
        await waiting
