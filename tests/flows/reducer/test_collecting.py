"""`ctx.collect_events`: a step that goes on when all that it needs has come."""

from __future__ import annotations

from typing import Any

from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent


class One(Event):
    n: int


class Two(Event):
    n: int


class Gather(Workflow):
    """Sends what it is given, in order, and reports every complete set that it collects."""

    expected: list[Any]

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> One | Two | None:
        for event in ev.send:
            ctx.send_event(event)
        return None

    @step(num_workers=1)
    async def collect(self, ctx: Context, ev: One | Two) -> StopEvent | None:
        expected = self.expected
        sets = await ctx.store.get("sets", default=[])
        found = ctx.collect_events(ev, expected)
        if found is not None:
            sets = [*sets, [event.n for event in found]]
            await ctx.store.set("sets", sets)
        left = await ctx.store.get("left") - 1
        await ctx.store.set("left", left)
        return StopEvent(result=sets) if left == 0 else None


async def sets_of(expected: list[type], *events: Any) -> list[list[int]]:
    flow = Gather()
    flow.expected = expected
    ctx: Context = Context(flow)
    await ctx.store.set("left", len(events))
    return await flow.run(ctx=ctx, send=list(events))


async def test_a_set_comes_in_the_order_that_was_asked_for() -> None:
    assert await sets_of([One, Two], Two(n=2), One(n=1)) == [[1, 2]]


async def test_events_of_one_class_come_in_the_order_of_arrival() -> None:
    assert await sets_of([One] * 3, One(n=3), One(n=1), One(n=2)) == [[3, 1, 2]]


async def test_what_is_left_over_belongs_to_the_next_set() -> None:
    assert await sets_of([One, Two], One(n=1), One(n=2), Two(n=3), Two(n=4)) == [[1, 3], [2, 4]]


async def test_events_that_are_not_expected_are_not_kept() -> None:
    assert await sets_of([One, One], Two(n=9), One(n=1), Two(n=8), One(n=2)) == [[1, 2]]


async def test_an_incomplete_set_is_none() -> None:
    assert await sets_of([One, Two], One(n=1), One(n=2)) == []


async def test_buffers_are_kept_apart_by_name() -> None:
    class Buffers(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> One | None:
            for n in range(4):
                ctx.send_event(One(n=n))
            return None

        @step(num_workers=1)
        async def collect(self, ctx: Context, ev: One) -> StopEvent | None:
            found = ctx.collect_events(ev, [One, One], buffer_id=f"b{ev.n % 2}")
            if found is None:
                return None
            sets = [*await ctx.store.get("sets", default=[]), [event.n for event in found]]
            await ctx.store.set("sets", sets)
            return StopEvent(result=sets) if len(sets) == 2 else None

    assert await Buffers().run() == [[0, 2], [1, 3]]


async def test_buffers_are_kept_apart_by_step() -> None:
    class Steps(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> One | None:
            ctx.send_event(One(n=1))
            ctx.send_event(One(n=2), step="left")
            return None

        @step
        async def left(self, ctx: Context, ev: One) -> StopEvent | None:
            found = ctx.collect_events(ev, [One, One])
            return StopEvent(result=[event.n for event in found]) if found else None

        @step
        async def right(self, ctx: Context, ev: One) -> StopEvent | None:
            found = ctx.collect_events(ev, [One, One])
            return StopEvent(result="stolen") if found else None

    assert await Steps().run() == [1, 2]


async def test_a_large_fan_out_is_collected() -> None:
    class Fan(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> One | None:
            for n in range(100):
                ctx.send_event(One(n=n))
            return None

        @step
        async def work(self, ev: One) -> Two:
            return Two(n=ev.n)

        @step
        async def collect(self, ctx: Context, ev: Two) -> StopEvent | None:
            found = ctx.collect_events(ev, [Two] * 100)
            return StopEvent(result=sum(event.n for event in found)) if found else None

    assert await Fan().run() == 4950
