"""Who gets an event: by class, by subclass, by name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent
from tidemill.flows.errors import WorkflowRuntimeError, WorkflowTimeoutError, WorkflowValidationError


class Draft(Event):
    n: int = 0


class LongDraft(Draft):
    pass


class Done(Event):
    by: str


class Broadcast(Workflow):
    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Draft | None:
        ctx.send_event(Draft(), step=ev.get("to"))
        return None

    @step
    async def left(self, ev: Draft) -> Done:
        return Done(by="left")

    @step
    async def right(self, ev: Draft) -> Done:
        return Done(by="right")

    @step
    async def end(self, ctx: Context, ev: Done) -> StopEvent | None:
        heard = [*await ctx.store.get("heard", default=[]), ev.by]
        await ctx.store.set("heard", heard)
        await turns()
        return StopEvent(result=sorted(await ctx.store.get("heard")))


async def test_an_event_goes_to_every_step_that_takes_it() -> None:
    assert await Broadcast().run() == ["left", "right"]


async def test_an_event_can_be_sent_to_one_step() -> None:
    assert await Broadcast().run(to="right") == ["right"]


async def test_an_event_cannot_be_sent_to_a_step_that_does_not_exist_or_does_not_take_it() -> None:
    handler = Broadcast(timeout=60).run(to="left")
    for wrong in ("nope", "end"):
        with pytest.raises(WorkflowRuntimeError):
            await handler.send_event(Draft(), step=wrong)
        with pytest.raises(WorkflowRuntimeError):
            handler.ctx.send_event(Draft(), step=wrong)
    await handler
    with pytest.raises(WorkflowRuntimeError):
        await Broadcast(timeout=60).run(to="nope")


async def test_only_events_can_be_sent() -> None:
    handler = Broadcast().run()
    with pytest.raises(ValidationError):
        await handler.send_event("text")  # type: ignore[arg-type]
    await handler


async def test_a_union_takes_any_of_its_classes() -> None:
    class Union(Workflow):
        @step
        async def loop(self, ev: StartEvent | Draft) -> Draft | StopEvent:
            if isinstance(ev, StartEvent):
                return Draft(n=1)
            return StopEvent(result=ev.n) if ev.n > 3 else Draft(n=ev.n + 1)

    assert await Union().run() == 4


async def test_subclasses_are_another_class_unless_the_step_welcomes_them() -> None:
    class Strict(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> LongDraft:
            return LongDraft(n=1)

        @step
        async def read(self, ev: Draft) -> StopEvent:
            return StopEvent(result=type(ev).__name__)

    class Open(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> LongDraft:
            return LongDraft(n=1)

        @step(accept_event_subclasses=True)
        async def read(self, ev: Draft) -> StopEvent:
            return StopEvent(result=type(ev).__name__)

    with pytest.raises(WorkflowValidationError):
        Strict().run()
    with pytest.raises(WorkflowTimeoutError):
        await Strict(timeout=0.05, disable_validation=True).run()
    assert await Open().run() == "LongDraft"


async def test_steps_begin_in_the_order_of_their_declaration_and_events_in_the_order_of_sending() -> None:
    begun: list[str] = []

    class Order(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Draft | None:
            for n in range(4):
                ctx.send_event(Draft(n=n))
            return None

        @step(num_workers=1)
        async def work(self, ctx: Context, ev: Draft) -> StopEvent | None:
            begun.append(f"work {ev.n}")
            return StopEvent() if ctx.collect_events(ev, [Draft] * 4) else None

        @step
        async def beside(self, ev: StartEvent) -> None:
            begun.append("beside")

    await Order().run()
    assert begun == ["beside", "work 0", "work 1", "work 2", "work 3"]
