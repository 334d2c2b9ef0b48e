"""Saving a context and going on from it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.flows import names
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent
from tidemill.flows.errors import ContextSerdeError, WorkflowTimeoutError


class Draft(Event):
    n: int = 0


class Done(Event):
    n: int = 0


class Reply(HumanResponseEvent):
    text: str = ""


class Asking(Workflow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Draft:
        await ctx.store.set("topic", ev.topic)
        return Draft(n=2)

    @step
    async def ask(self, ctx: Context, ev: Draft) -> StopEvent:
        reply = await ctx.wait_for_event(Reply, waiter_event=InputRequiredEvent())
        return StopEvent(result=(await ctx.store.get("topic"), ev.n, reply.text))


async def until_asked(handler: Any) -> None:
    async for event in handler.stream_events():
        if isinstance(event, InputRequiredEvent):
            return


async def saved(flow: Workflow, **fields: Any) -> dict[str, Any]:
    """A run that has asked, put away as JSON."""
    handler = flow.run(**fields)
    await until_asked(handler)
    assert handler.ctx is not None
    document = json.loads(json.dumps(handler.ctx.to_dict()))
    await handler.cancel_run()
    return document


async def test_a_waiting_run_goes_on_from_its_saved_context() -> None:
    flow = Asking()
    document = await saved(flow, topic="tides")
    assert document["is_running"] is True
    ctx = Context.from_dict(flow, document)
    assert ctx.is_running
    assert await ctx.store.get("topic") == "tides"
    handler = flow.run(ctx=ctx, topic="ignored")
    await turns()
    await handler.send_event(Reply(text="yes"))
    seen = [event async for event in handler.stream_events()]
    assert await handler == ("tides", 2, "yes")
    assert names(seen) == ["StopEvent"], "the question is not asked twice"


async def test_a_saved_context_can_be_given_to_another_one() -> None:
    flow = Asking()
    document = await saved(flow, topic="tides")
    ctx: Context = Context(flow, previous_context=document)
    handler = flow.run(ctx=ctx)
    await turns()
    handler.ctx.send_event(Reply(text="yes"))
    assert await handler == ("tides", 2, "yes")


async def test_work_that_was_under_way_or_queued_is_done_after_resuming() -> None:
    blocked = asyncio.Event()

    class Work(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Draft]:
            return [Draft(n=n) for n in range(5)]

        @step(num_workers=2)
        async def work(self, ev: Draft) -> Done:
            await blocked.wait()
            return Done(n=ev.n)

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=sorted(event.n for event in evs))

    flow = Work()
    handler = flow.run()
    await turns()
    document = json.loads(json.dumps(handler.ctx.to_dict()))
    await handler.cancel_run()
    blocked.set()
    assert await flow.run(ctx=Context.from_dict(flow, document)) == [0, 1, 2, 3, 4]


async def test_what_was_collected_is_not_forgotten() -> None:
    class Gather(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> InputRequiredEvent | Draft:
            return Draft(n=1)

        @step
        async def gather(self, ctx: Context, ev: Draft | Reply) -> StopEvent | InputRequiredEvent | None:
            found = ctx.collect_events(ev, [Draft, Reply])
            if found is None:
                return InputRequiredEvent()
            return StopEvent(result=[found[0].n, found[1].text])

    flow = Gather()
    document = await saved(flow)
    handler = flow.run(ctx=Context.from_dict(flow, document))
    await turns()
    await handler.send_event(Reply(text="late"))
    assert await handler == [1, "late"]


async def test_a_finished_run_leaves_its_state_and_begins_again() -> None:
    class Count(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.store.edit_state() as state:
                state.n = state.get("n", 0) + 1
            return StopEvent(result=state.n)

    flow = Count()
    handler = flow.run()
    await handler
    document = handler.ctx.to_dict()
    assert document["is_running"] is False
    ctx = Context.from_dict(flow, document)
    assert not ctx.is_running
    assert await flow.run(ctx=ctx) == 2
    assert await flow.run(ctx=ctx) == 3


async def test_a_cancelled_run_can_be_resumed_and_a_failed_one_cannot() -> None:
    class Broken(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise ValueError

    flow = Asking()
    handler = flow.run(topic="tides")
    await until_asked(handler)
    await handler.cancel_run()
    assert handler.ctx.to_dict()["is_running"] is True
    failing = Broken().run()
    with pytest.raises(ValueError):
        await failing
    assert failing.ctx.to_dict()["is_running"] is False


async def test_a_resumed_run_has_its_timeout() -> None:
    document = await saved(Asking(), topic="tides")
    flow = Asking(timeout=0.05)
    with pytest.raises(WorkflowTimeoutError):
        await flow.run(ctx=Context.from_dict(flow, document))


async def test_nothing_saved_is_a_fresh_context() -> None:
    flow = Asking()
    nothing: list[Any] = [{}, {"x": 1}, None]
    for data in nothing:
        assert not Context.from_dict(flow, data).is_running


async def test_a_context_saved_by_a_newer_version_is_refused() -> None:
    flow = Asking()
    document = Context(flow).to_dict() | {"version": 99}
    with pytest.raises(ContextSerdeError):
        Context.from_dict(flow, document)


async def test_a_value_that_has_no_json_form_cannot_be_saved() -> None:
    ctx: Any = Context(Asking())
    await ctx.store.set("numbers", {1, 2})
    with pytest.raises(ValueError, match="numbers"):
        ctx.to_dict()
    assert ctx.to_dict(include_state=False)["state"] == {}


class Progress(BaseModel):
    done: int = 0
    notes: list[str] = []


async def test_typed_state_and_events_in_the_state_are_saved() -> None:
    class Typed(Workflow):
        @step
        async def work(self, ctx: Context[Progress], ev: StartEvent) -> StopEvent:
            return StopEvent()

    ctx: Any = Context(Typed())
    await ctx.store.set_state(Progress(done=3, notes=["a"]))
    again: Any = Context.from_dict(Typed(), ctx.to_dict())
    assert await again.store.get_state() == Progress(done=3, notes=["a"])
    plain: Any = Context(Asking())
    await plain.store.set("draft", Draft(n=4))
    again = Context.from_dict(Asking(), plain.to_dict())
    assert await again.store.get("draft") == Draft(n=4)
