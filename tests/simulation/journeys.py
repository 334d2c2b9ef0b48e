"""Workflows to be simulated: each has a result that counts what its steps did, so that twice or never would show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

from tidemill.flows import (
    Collect,
    Context,
    Event,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
    Take,
    Workflow,
    catch_error,
    step,
)
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_exponential_jitter, wait_fixed


class Count(Event):
    n: int


class Part(Event):
    n: int


class Done(Event):
    n: int


class Red(Event):
    n: int


class Blue(Event):
    n: int


class Question(InputRequiredEvent):
    about: str


class Reply(Event):
    about: str
    word: str


async def tally(ctx: Context, name: str) -> None:
    """Count something in the run's state."""
    async with ctx.store.edit_state() as state:
        state[name] = state.get(name, 0) + 1


class Chain(Workflow):
    """Steps one after the other, each of which writes to the state."""

    @step
    async def begin(self, ev: StartEvent) -> Count:
        return Count(n=0)

    @step
    async def count(self, ctx: Context, ev: Count) -> Count | StopEvent:
        ctx.write_event_to_stream(Count(n=ev.n))
        await ctx.store.set("sum", await ctx.store.get("sum", default=0) + ev.n)
        if ev.n < 6:
            return Count(n=ev.n + 1)
        return StopEvent(result=await ctx.store.get("sum"))


class FanOut(Workflow):
    """A list that is worked on by few at a time and joined again."""

    @step
    async def split(self, ev: StartEvent) -> list[Part]:
        return [Part(n=n) for n in range(5)]

    @step(num_workers=2)
    async def work(self, ctx: Context, ev: Part) -> Done:
        await asyncio.sleep(0.01 * (ev.n % 3))
        await tally(ctx, "worked")
        return Done(n=ev.n * ev.n)

    @step
    async def join(self, ctx: Context, done: list[Done]) -> StopEvent:
        return StopEvent(result=[sorted(each.n for each in done), await ctx.store.get("worked")])


class TakesSome(Workflow):
    """A join that is content with the first of a list; the rest goes on, and means nothing any more."""

    @step
    async def split(self, ev: StartEvent) -> list[Part]:
        return [Part(n=7) for _ in range(4)]

    @step(num_workers=4)
    async def work(self, ev: Part) -> Done:
        await asyncio.sleep(0.02)
        return Done(n=ev.n)

    @step
    async def join(self, done: Annotated[list[Done], Collect(Take(2))]) -> StopEvent:
        return StopEvent(result=[each.n for each in done])


class Gathers(Workflow):
    """Events that are sent, buffered and collected by kind; a step that takes one of each."""

    @step
    async def scatter(self, ctx: Context, ev: StartEvent) -> Red | Blue | None:
        for n in range(3):
            ctx.send_event(Red(n=n))
            ctx.send_event(Blue(n=10 * n))
        return None

    @step
    async def gather(self, ctx: Context, ev: Red | Blue) -> StopEvent | None:
        await tally(ctx, "seen")
        found = ctx.collect_events(ev, [Red, Blue, Red, Blue, Red, Blue])
        if found is None:
            return None
        return StopEvent(result=[sorted(each.n for each in found), await ctx.store.get("seen")])


class Pairs(Workflow):
    """Two lines of events that meet."""

    @step
    async def scatter(self, ctx: Context, ev: StartEvent) -> Count | Part:
        ctx.send_event(Count(n=3))
        return Part(n=4)

    @step
    async def red(self, ev: Count) -> Red:
        await asyncio.sleep(0.03)
        return Red(n=ev.n)

    @step
    def blue(self, ev: Part) -> Blue:
        return Blue(n=ev.n)

    @step
    async def meet(self, red: Red, blue: Blue) -> StopEvent:
        return StopEvent(result=red.n * blue.n)


class Asks(Workflow):
    """Questions to a person: two that are answered, one that nobody answers; writes and an effect around them."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await tally(ctx, "before")
        await ctx.once("effect", lambda: 1)
        words = []
        for about in ("wind", "tide"):
            reply = await ctx.wait_for_event(
                Reply, waiter_event=Question(about=about), waiter_id=about, requirements={"about": about}, timeout=300
            )
            words.append(reply.word)
            await tally(ctx, "after")
        try:
            await ctx.wait_for_event(Reply, waiter_id="moon", requirements={"about": "moon"}, timeout=1.5)
        except TimeoutError:
            words.append("nobody knows")
        state = await ctx.store.get_state()
        return StopEvent(result=[*words, state["before"], state["after"]])


class Stumbles(Workflow):
    """Steps that fail before they succeed: what failed attempts wrote and sent is gone."""

    @step
    async def begin(self, ev: StartEvent) -> Part:
        return Part(n=1)

    @step(retry_policy=retry_policy(wait=wait_fixed(0.6), stop=stop_after_attempt(4)))
    async def stumble(self, ctx: Context, ev: Part) -> Done | Red:
        await tally(ctx, "tried")
        ctx.send_event(Red(n=ctx.retry_info().retry_number))
        if ctx.retry_info().retry_number < 2:
            raise RuntimeError("not yet")
        return Done(n=1)

    @step
    async def red(self, ctx: Context, ev: Red) -> Done:
        await tally(ctx, "red")
        return Done(n=ev.n)

    @step(retry_policy=retry_policy(wait=wait_exponential_jitter(0.1, 1.0), stop=stop_after_attempt(3)))
    async def end(self, ctx: Context, ev: Done) -> StopEvent | None:
        if ctx.retry_info().retry_number < 1:
            raise ValueError("once more")
        both = ctx.collect_events(ev, [Done, Done])
        if both is None:
            return None
        state = await ctx.store.get_state()
        return StopEvent(result=[sorted(each.n for each in both), state["tried"], state["red"]])


class Rescued(Workflow):
    """A step that fails for good, and the handler that goes on from there."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Part:
        await tally(ctx, "begun")
        return Part(n=5)

    @step(retry_policy=retry_policy(wait=wait_fixed(0.2), stop=stop_after_attempt(2)))
    async def fail(self, ctx: Context, ev: Part) -> Done:
        await tally(ctx, "failed")
        raise ValueError("never")

    @catch_error(for_steps=["fail"])
    async def rescue(self, ctx: Context, ev: StepFailedEvent) -> Done:
        await tally(ctx, "rescued")
        return Done(n=ev.attempts)

    @step
    async def end(self, ctx: Context, ev: Done) -> StopEvent:
        state = await ctx.store.get_state()
        return StopEvent(result=[ev.n, state["begun"], state.get("failed"), state["rescued"]])


class Placed(Workflow):
    """Steps on a queue: one of them fails once, has an effect and writes; one waits for an answer there."""

    @step
    async def split(self, ev: StartEvent) -> list[Part]:
        return [Part(n=n) for n in range(3)]

    @step(queue="far", num_workers=3, retry_policy=retry_policy(wait=wait_fixed(0.3), stop=stop_after_attempt(3)))
    async def work(self, ctx: Context, ev: Part) -> Done:
        await ctx.once("effect", lambda: ev.n)
        await ctx.store.set(f"part{ev.n}", ev.n)
        if ev.n == 1 and ctx.retry_info().retry_number == 0:
            raise RuntimeError("not the first time")
        return Done(n=ev.n + 1)

    @step
    async def join(self, ctx: Context, done: list[Done]) -> Count:
        return Count(n=sum(each.n for each in done))

    @step(queue="far")
    async def ask(self, ctx: Context, ev: Count) -> StopEvent:
        await ctx.store.set("asked", True)
        reply = await ctx.wait_for_event(Reply, waiter_event=Question(about="far"), timeout=300)
        parts = [await ctx.store.get(f"part{n}") for n in range(3)]
        return StopEvent(result=[ev.n, reply.word, parts, await ctx.store.get("asked")])


class Small(Workflow):
    """A run that another run starts."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Count:
        await tally(ctx, "times")
        return Count(n=ev.n)

    @step
    async def end(self, ctx: Context, ev: Count) -> StopEvent:
        return StopEvent(result=[ev.n, await ctx.store.get("times")])


class Parent(Workflow):
    """Starts two other runs and waits for them."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        one = await ctx.child(Small, n=1)
        await tally(ctx, "told")
        two = await ctx.child(Small, n=2)
        return StopEvent(result=[one, two, await ctx.store.get("told")])


class Slow(Workflow):
    """A run that takes its time."""

    @step
    async def begin(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(0.4)
        return StopEvent(result=ev.n)


class Impatient(Workflow):
    """Gives up waiting for another run, which ends while nobody asks for it, and asks again."""

    @step(retry_policy=retry_policy(wait=wait_fixed(1.0), stop=stop_after_attempt(3)))
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        waits = 0.1 if ctx.retry_info().retry_number == 0 else 100.0
        return StopEvent(result=await asyncio.wait_for(ctx.child(Slow, n=8), waits))


class Ledger(Workflow):
    """Steps that write to the database in transactions of their own."""

    @step
    async def begin(self, ev: StartEvent) -> Count:
        return Count(n=0)

    @step(retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(20)))
    async def book(self, ctx: Context, ev: Count) -> Count | StopEvent:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO ledger VALUES ($1)", ev.n)
        return Count(n=ev.n + 1) if ev.n < 2 else StopEvent(result=ev.n)


class Waits(Workflow):
    """Waits for what does not come."""

    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await tally(ctx, "waited")
        await ctx.wait_for_event(Reply, timeout=None)
        return StopEvent()


class Fails(Workflow):
    """Fails for good, while another step is at work."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Red | Blue:
        ctx.send_event(Red(n=1))
        return Blue(n=2)

    @step
    async def red(self, ev: Red) -> StopEvent:
        await asyncio.sleep(100)
        return StopEvent(result="too late")

    @step
    async def blue(self, ev: Blue) -> StopEvent:
        await asyncio.sleep(0.05)
        raise ValueError("it cannot be done")


def well_read(event: Event) -> Event | None:
    """A person who knows the answer to every question."""
    return Reply(about=event.about, word=f"{event.about}!") if isinstance(event, Question) else None


@dataclass
class Journey:
    """A workflow with what happens around it."""

    workflow: Workflow
    options: dict[str, Any] = field(default_factory=dict)
    """For `simulate`."""

    @property
    def name(self) -> str:
        return f"{type(self.workflow).__name__}{'-cancelled' if 'cancel_after' in self.options else ''}"


JOURNEYS = {
    journey.name: journey
    for journey in (
        Journey(Chain(timeout=None)),
        Journey(FanOut(timeout=None)),
        Journey(TakesSome(timeout=None)),
        Journey(Gathers(timeout=None)),
        Journey(Pairs(timeout=None)),
        Journey(Asks(timeout=None), {"person": well_read}),
        Journey(Stumbles(timeout=None)),
        Journey(Rescued(timeout=None)),
        Journey(Placed(timeout=None), {"person": well_read}),
        Journey(Parent(timeout=None), {"others": [Small(timeout=None)]}),
        Journey(Impatient(timeout=None), {"others": [Slow(timeout=None)]}),
        Journey(Ledger(timeout=None)),
        Journey(Waits(timeout=3.0)),
        Journey(Waits(timeout=None), {"cancel_after": 1.2}),
        Journey(Fails(timeout=None)),
    )
}
