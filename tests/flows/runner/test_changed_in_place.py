"""What a step changes in values that it has read is in the state, in memory and durably."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.simulate import simulate


class Next(Event):
    given: list[int] = Field(default_factory=list)


class Talk(BaseModel):
    lines: list[str] = Field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)


class Talking(Workflow):
    """Reads a list and a model, changes both in place, and never writes them back."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Next:
        talk = Talk()
        await ctx.store.set("talk", talk)
        talk.say("after it was written")
        await ctx.store.set("numbers", [1])
        numbers = await ctx.store.get("numbers")
        numbers.append(2)
        again = await ctx.store.get("numbers")
        again.append(3)
        return Next(given=[1])

    @step
    async def ask(self, ctx: Context, ev: Next) -> StopEvent:
        ev.given.append(2)
        talk = await ctx.store.get("talk")
        talk.say("before the wait")
        await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent())
        talk.say("after the wait")
        state = await ctx.store.get_state()
        state["more"] = len(ev.given)
        return StopEvent(result=None)


def folded(ticks: list[Any], flow: Workflow) -> dict[str, Any]:
    from tests.flows.differential.engines import folded

    return dict(folded(flow, ticks).items())


EXPECTED = {
    "talk": Talk(lines=["after it was written", "before the wait", "after the wait"]),
    "numbers": [1, 2, 3],
    "more": 2,
}


def answer(event: Any) -> Any:
    return HumanResponseEvent() if isinstance(event, InputRequiredEvent) else None


async def test_values_that_a_step_changes_in_place_are_in_the_state_of_a_run_in_memory() -> None:
    handler = Talking().run()
    async for event in handler.stream_events():
        if (reply := answer(event)) is not None:
            handler.ctx.send_event(reply)
    await handler
    assert dict((await handler.ctx.store.get_state()).items()) == EXPECTED


@pytest.mark.parametrize("seed", range(6))
def test_values_that_a_step_changes_in_place_are_in_the_state_of_a_durable_run(seed: int) -> None:
    flow = Talking()
    ran = simulate(flow, seed=seed, person=answer)
    assert ran.result() is None
    assert folded(ran.ticks, flow) == EXPECTED


def test_a_change_in_place_that_another_step_has_overtaken_fails_the_step() -> None:
    class Overtaken(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Next:
            await ctx.store.set("numbers", [1])
            return Next()

        @step
        async def change(self, ctx: Context, ev: Next) -> StopEvent:
            numbers = await ctx.store.get("numbers")
            await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent())
            numbers.append(2)
            return StopEvent()

        @step
        async def write(self, ctx: Context, ev: HumanResponseEvent) -> None:
            await ctx.store.set("numbers", [7])

    def under_many_orders() -> None:
        for seed in range(40):  # It is overtaken under some of them.
            simulate(Overtaken(), seed=seed, person=lambda ev: [HumanResponseEvent()] * bool(answer(ev))).result()

    with pytest.raises(WorkflowRuntimeError, match="changed the value at 'numbers' of the state in place"):
        under_many_orders()


async def test_a_write_inside_an_edit_is_refused_instead_of_waiting_for_itself() -> None:
    class Nested(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
            with pytest.raises(RuntimeError, match="writer called inside edit_state"):  # noqa: PT012
                async with ctx.store.edit_state() as state:
                    state["a"] = 1
                    await ctx.store.set("b", 2)
            with pytest.raises(RuntimeError, match="writer called inside edit_state"):
                async with ctx.store.edit_state(), ctx.store.edit_state():
                    pass
            async with ctx.store.edit_state() as state:
                state["c"] = 3
            return StopEvent(result=dict((await ctx.store.get_state()).items()))

    assert await Nested().run() == {"c": 3}
