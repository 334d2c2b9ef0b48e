"""Workflows whose steps are brought back and run again: what they do then depends on what they have read."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.journeys import Journey, Question, Reply, well_read
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed


class Sent(Event):
    word: str


class Item(Event):
    n: int


class Pair(Event):
    ns: list[int]


class Next(InputRequiredEvent):
    n: int


class Said(Event):
    n: int


async def ask(ctx: Context, about: str) -> str:
    reply = await ctx.wait_for_event(
        Reply, waiter_event=Question(about=about), requirements={"about": about}, timeout=None
    )
    return reply.word


class BranchesOnState(Workflow):
    """Writes only what is not there yet, around two waits."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        if not await ctx.store.get("asked", default=False):
            await ctx.store.set("asked", True)
        first = await ask(ctx, "one")
        if await ctx.store.get("first", default=None) is None:
            await ctx.store.set("first", first)
            ctx.write_event_to_stream(Sent(word="first"))
        second = await ask(ctx, "two")
        if await ctx.store.get("second", default=None) is None:
            await ctx.store.set("second", second)
        state = await ctx.store.get_state()
        return StopEvent(result=[state["asked"], state["first"], state["second"]])


class AppendsToList(Workflow):
    """Changes the list that it has read, and writes it back."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        for about in ("a", "b", "c"):
            words = await ctx.store.get("words", default=[])
            words.append(about)
            await ctx.store.set("words", words)
            words.append(await ask(ctx, about))
            await ctx.store.set("words", words)
        return StopEvent(result=await ctx.store.get("words"))


class GathersOwnKeys(Workflow):
    """Asks three people at a time, each part with keys of its own."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(name: str) -> str:
            await ctx.store.set(f"before_{name}", name)
            word = await ask(ctx, name)
            await ctx.store.set(f"after_{name}", word)
            return word

        words = await asyncio.gather(*(part(name) for name in "xyz"))
        state = await ctx.store.get_state()
        return StopEvent(result=[words, sorted(state.keys())])


class GathersSharedState(Workflow):
    """Three parts count in one value, before and after they wait."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(name: str) -> int:
            async with ctx.store.edit_state() as state:
                state["n"] = state.get("n", 0) + 1
            await ask(ctx, name)
            async with ctx.store.edit_state() as state:
                state["n"] = state.get("n", 0) + 10
            return await ctx.store.get("n")

        await asyncio.gather(*(part(name) for name in "xyz"))
        return StopEvent(result=await ctx.store.get("n"))


class GathersReads(Workflow):
    """Parts that do what they have read, before and after they wait."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(name: str) -> list[Any]:
            mine = await ctx.store.get(f"n_{name}", default=0)
            await ctx.store.set(f"n_{name}", mine + 1)
            word = await ask(ctx, name)
            if await ctx.store.get(f"n_{name}") == 1:
                await ctx.store.set(f"n_{name}", 2)
            again = await ask(ctx, f"{name}{name}")
            return [mine, word, again, await ctx.store.get(f"n_{name}")]

        return StopEvent(result=await ctx.gather(*(part(name) for name in "xyz")))


class RetriesSends(Workflow):
    """Attempts that have sent something and waited before they fail; each sends another word."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0.3), stop=stop_after_attempt(4)))
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent | Sent:
        number = ctx.retry_info().retry_number
        ctx.send_event(Sent(word="always"))
        ctx.send_event(Sent(word=f"only {number}"))
        await ask(ctx, f"try {number}")
        if number < 2:
            raise RuntimeError("not yet")
        words: list[str] = []
        while len(words) < 4:
            words = await ctx.store.get("words", default=[])
            await ctx.sleep(0.2)
        return StopEvent(result=sorted(words))

    @step(num_workers=1)
    async def hear(self, ctx: Context, ev: Sent) -> None:
        async with ctx.store.edit_state() as state:
            state["words"] = [*state.get("words", []), ev.word]


class WaitsForAWhile(Workflow):
    """A local time limit around a wait that is not answered, and one around a wait that is."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        try:
            await asyncio.wait_for(ctx.wait_for_event(Said, timeout=None), 1.0)
        except TimeoutError:
            await ctx.store.set("gave_up", True)
        word = await ask(ctx, "after")
        try:
            async with asyncio.timeout(1.0):
                await ctx.wait_for_event(Said, timeout=None)
        except TimeoutError:
            word += " twice"
        more = await asyncio.wait_for(ask(ctx, "more"), 100.0)
        return StopEvent(result=[await ctx.store.get("gave_up"), word, more])


class WorksBesideAWait(Workflow):
    """Work of its own beside a wait; what is there first counts."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def own() -> str:
            await asyncio.sleep(1.5)
            await ctx.store.set("worked", True)
            return "own work"

        waiting = asyncio.create_task(ctx.wait_for_event(Said, timeout=None))
        working = asyncio.create_task(own())
        done, left = await asyncio.wait((waiting, working), return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        word = await ask(ctx, "then")
        return StopEvent(result=[[each.result() for each in done], await ctx.store.get("worked"), word])


class CollectsPairs(Workflow):
    """Two workers that each collect a pair and then ask a person about it."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> Item | None:
        for n in (1, 2, 3, 4):
            ctx.send_event(Item(n=n))
        return None

    @step(num_workers=2)
    async def collect(self, ctx: Context, ev: Item) -> Pair | None:
        found = ctx.collect_events(ev, [Item, Item])
        if found is None:
            return None
        about = "".join(str(each.n) for each in found)
        word = await ask(ctx, about)
        assert word == f"{about}!"
        return Pair(ns=[each.n for each in found])

    @step
    async def end(self, ctx: Context, ev: Pair) -> StopEvent | None:
        both = ctx.collect_events(ev, [Pair, Pair])
        return None if both is None else StopEvent(result=sorted(n for each in both for n in each.ns))


class Listens(Workflow):
    """A loop of waits, each of which gets an answer of its own."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        heard: list[int] = []
        while len(heard) < 4:
            said = await ctx.wait_for_event(Said, waiter_event=Next(n=len(heard)), timeout=None)
            heard.append(said.n)
            await ctx.store.set("heard", heard)
        return StopEvent(result=[heard, await ctx.store.get("heard")])


class SleepsAndDraws(Workflow):
    """Times and numbers that are drawn before a sleep are the same after it."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        drawn = ctx.random()
        at = ctx.now()
        await ctx.store.set("drawn", [drawn, at.isoformat()])
        await ctx.sleep("2s")
        same = await ctx.store.get("drawn") == [drawn, at.isoformat()]
        return StopEvent(result=[same, (ctx.now() - at).total_seconds() >= 2.0])


class FailsInside(Workflow):
    """Operations that raise, raise again."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        seen: list[str] = []
        try:
            await ctx.store.get("nothing")
        except ValueError:
            seen.append("no value")
        await ctx.store.set("nothing", 1)
        try:
            await ctx.store.set("nothing.inside.0", 2)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the same again
            seen.append(type(error).__name__)
        try:
            await ctx.once("effect", lambda: 1 / 0)
        except ZeroDivisionError:
            seen.append("zero")
        try:
            await ctx.wait_for_event(Said, timeout=0.5)
        except TimeoutError:
            seen.append("late")
        word = await ask(ctx, "end")
        return StopEvent(result=[*seen, word])


def counting(event: Event) -> Event | None:
    """A person who says the next number, and knows the answer to every question."""
    return Said(n=event.n) if isinstance(event, Next) else well_read(event)


PROGRAMS = {
    journey.name: journey
    for journey in (
        Journey(workflow(timeout=None), {"person": counting})
        for workflow in (
            BranchesOnState,
            AppendsToList,
            GathersOwnKeys,
            GathersSharedState,
            GathersReads,
            RetriesSends,
            WaitsForAWhile,
            WorksBesideAWait,
            CollectsPairs,
            Listens,
            SleepsAndDraws,
            FailsInside,
        )
    )
}
