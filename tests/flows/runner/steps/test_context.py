"""The three faces of a context: before its run, inside a step, outside of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent
from tidemill.flows.errors import ContextStateError, WorkflowRuntimeError


class Draft(Event):
    pass


class Plain(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent()


class Waiting(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent:
        await ctx.store.set("n", 1)
        return InputRequiredEvent()

    @step
    async def end(self, ctx: Context, ev: HumanResponseEvent) -> StopEvent:
        return StopEvent()


async def outcome(call: Any) -> Any:
    """What a call gives, awaited or streamed if need be."""
    made = call()
    if hasattr(made, "__aiter__"):
        return [one async for one in made]
    return await made if hasattr(made, "__await__") else made


async def test_before_its_run_a_context_has_a_store_and_nothing_else() -> None:
    ctx: Any = Context(Plain())
    assert not ctx.is_running
    await ctx.store.set("n", 1)
    assert await ctx.store.get("n") == 1
    for call in (
        lambda: ctx.send_event(Draft()),
        lambda: ctx.stream_events(),
        lambda: ctx.write_event_to_stream(Draft()),
        lambda: ctx.collect_events(Draft(), [Draft]),
        lambda: ctx.retry_info(),
        lambda: ctx.running_steps(),
        lambda: ctx.wait_for_event(Draft),
        lambda: ctx.get_result(),
    ):
        with pytest.raises(ContextStateError):
            await outcome(call)


async def test_inside_a_step_the_outside_face_is_refused() -> None:
    refused: list[str] = []

    class Inside(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            assert ctx.is_running
            calls: dict[str, Any] = {
                "stream_events": ctx.stream_events,
                "get_result": ctx.get_result,
                "to_dict": ctx.to_dict,
                "running_steps": ctx.running_steps,
            }
            for name, call in calls.items():
                try:
                    await outcome(call)
                except ContextStateError:
                    refused.append(name)
            return StopEvent()

    await Inside().run()
    assert refused == ["stream_events", "get_result", "to_dict", "running_steps"]


async def test_outside_of_the_run_the_step_face_is_refused() -> None:
    handler = Waiting().run()
    ctx: Any = handler.ctx
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            for call in (
                lambda: ctx.write_event_to_stream(Draft()),
                lambda: ctx.collect_events(Draft(), [Draft]),
                lambda: ctx.retry_info(),
                lambda: ctx.wait_for_event(Draft),
            ):
                with pytest.raises(ContextStateError):
                    await outcome(call)
            assert ctx.is_running
            assert await ctx.store.get("n") == 1
            assert await ctx.running_steps() == []
            ctx.send_event(HumanResponseEvent())
    await handler
    assert not ctx.is_running


async def test_the_running_steps_can_be_asked_for() -> None:
    go_on = asyncio.Event()

    class Slow(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            await go_on.wait()
            return StopEvent()

    handler = Slow().run()
    await turns()
    assert await handler.ctx.running_steps() == ["work"]
    go_on.set()
    await handler


async def test_the_handler_has_the_context_that_was_given() -> None:
    flow = Plain()
    ctx: Context = Context(flow)
    handler = flow.run(ctx=ctx)
    assert handler.ctx is ctx
    await handler


async def test_a_context_that_runs_cannot_be_run_again() -> None:
    flow = Waiting()
    handler = flow.run()
    await turns()
    with pytest.raises(ContextStateError):
        flow.run(ctx=handler.ctx)
    await handler.cancel_run()


async def test_a_context_of_another_workflow_brings_its_state() -> None:
    class Reading(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await ctx.store.get("n"))

    ctx: Context = Context(Plain())
    await ctx.store.set("n", 5)
    assert await Reading().run(ctx=ctx) == 5


async def test_code_called_by_a_step_can_find_its_context() -> None:
    def helper() -> None:
        Context.get_step_context().write_event_to_stream(Draft())

    class Calling(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            helper()
            return StopEvent()

    handler = Calling().run()
    assert [type(event) async for event in handler.stream_events()] == [Draft, StopEvent]
    with pytest.raises(WorkflowRuntimeError):
        Context.get_step_context()


async def test_the_stream_of_a_context_tells_what_goes_on_inside() -> None:
    handler = Plain().run()
    seen = [type(event).__name__ async for event in handler.ctx.stream_events()]
    assert seen == ["StepStateChanged", "StepStateChanged", "StopEvent"]
    await handler
