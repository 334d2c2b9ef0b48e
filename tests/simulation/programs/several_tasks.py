"""Workflows whose steps have several tasks, which see the same in the same order when the step runs again.

Each keeps a log in a local variable and writes it to the state as it grows. The log of the last run of the step must be
the one in the state, which the first run has written.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.journeys import Journey, Question, Reply, well_read
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step


class Bell(Event):
    pass


class Ring(InputRequiredEvent):
    pass


async def ask(ctx: Context, about: str, **options: Any) -> str:
    reply = await ctx.wait_for_event(
        Reply, waiter_event=Question(about=about), requirements={"about": about}, timeout=None, **options
    )
    return reply.word


class Log:
    """What a step has seen, here and in the state."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._count, self._here = ctx, 0, dict[str, Any]()

    @property
    def lines(self) -> list[Any]:
        return list(self._here.values())

    async def add(self, line: Any) -> None:
        self._count += 1
        name = f"log_{self._count}"
        await self._ctx.store.set(name, line)
        self._here[name] = line

    async def end(self) -> StopEvent:
        state = await self._ctx.store.get_state()
        stored = {name: value for name, value in state.items() if name.startswith("log_")}
        assert stored == self._here, f"the step saw {self._here}, and its first run {stored}"
        return StopEvent(result=sorted(self.lines, key=repr))


class FirstCompleted(Workflow):
    """Three questions at a time; each answer is taken as it comes."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)
        left = {asyncio.create_task(ask(ctx, name), name=name) for name in "abc"}
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            await log.add(sorted(each.result() for each in done))
        await log.add([await ask(ctx, "end")])
        await log.end()
        return StopEvent(result=sorted(word for words in log.lines for word in words))


class AsCompleted(Workflow):
    """Answers in the order in which they come, and a question after each."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)
        for n, each in enumerate(asyncio.as_completed([ask(ctx, name) for name in "abcd"])):
            await log.add(await each)
            if n % 2:
                await log.add(await ask(ctx, f"more {n}"))
        return await log.end()


class AsCompletedAlike(Workflow):
    """Parts that begin with the same operation, in the order in which they end."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(seconds: float, name: str) -> str:
            await ctx.sleep(seconds)
            return f"{name} {await ask(ctx, name)}"

        log = Log(ctx)
        for each in asyncio.as_completed([part(0.7, "a"), part(0.3, "b"), part(1.1, "c")]):
            await log.add(await each)
        await log.add(await ask(ctx, "end"))
        return await log.end()


class CancelledWrites(Workflow):
    """The first of two answers counts; the other question is cancelled, and its task writes that."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(name: str) -> str:
            try:
                return await ask(ctx, name)
            except asyncio.CancelledError:
                await ctx.store.set(f"cancelled_{name}", True)
                raise

        log = Log(ctx)
        tasks = [asyncio.create_task(part(name)) for name in "ab"]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        winner = [each.result() for each in tasks if each in done]
        loser = "b" if winner == ["a!"] else "a"
        assert winner in (["a!"], ["b!"]), f"both have won: {winner}"
        await log.add(winner)
        assert await ctx.store.get(f"cancelled_{loser}", default=False)
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=len(winner))


class QueueBetween(Workflow):
    """Answers go through a queue to a task that logs them."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, queue = Log(ctx), asyncio.Queue[str | None]()

        async def produce(name: str) -> None:
            for n in range(2):
                await queue.put(await ask(ctx, f"{name}{n}"))

        async def consume() -> None:
            while (word := await queue.get()) is not None:
                await log.add(word)

        consumer = asyncio.create_task(consume())
        await asyncio.gather(produce("a"), produce("b"))
        await queue.put(None)
        await consumer
        await log.add(await ask(ctx, "end"))
        return await log.end()


class LocalConsumer(Workflow):
    """A task without operations of its own counts what the step has received."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, queue, heard = Log(ctx), asyncio.Queue[str](), list[str]()

        async def consume() -> None:
            while True:
                word = await queue.get()
                for _ in range(5):
                    await asyncio.sleep(0)
                heard.append(word)

        consumer = asyncio.create_task(consume())
        for n in range(4):
            await queue.put(await ask(ctx, str(n)))
            await log.add(len(heard))
        consumer.cancel()
        return await log.end()


class LocksBetween(Workflow):
    """Tasks take turns with a lock, a semaphore and an event."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, lock, few, open_ = Log(ctx), asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()

        async def part(name: str) -> None:
            async with few:
                word = await ask(ctx, name)
                if name == "a":
                    open_.set()
                await open_.wait()
                async with lock:
                    await log.add(word)
                    await log.add(await ask(ctx, f"{name} inside"))

        await asyncio.gather(*(part(name) for name in "abc"))
        await ask(ctx, "end")
        return await log.end()


class GroupFails(Workflow):
    """A task of a group fails with its answer; the others are cancelled and write that."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)

        async def part(name: str) -> None:
            try:
                word = await ask(ctx, name)
            except asyncio.CancelledError:
                await log.add(f"{name} cancelled")
                raise
            await log.add(word)
            if name == "b":
                raise ValueError(word)

        try:
            async with asyncio.TaskGroup() as group:
                for name in "abc":
                    group.create_task(part(name))
        except* ValueError as errors:
            await log.add([str(each) for each in errors.exceptions])
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=["b!"] in log.lines)


class TimesOutBeside(Workflow):
    """A local timeout in one task, answers in others."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)
        seen = list[str]()

        async def limited() -> None:
            try:
                async with asyncio.timeout(0.4):
                    await ctx.wait_for_event(Bell, timeout=None)
            except TimeoutError:
                seen.append("late")

        async def part(name: str) -> None:
            seen.append(await ask(ctx, name))

        await asyncio.gather(limited(), part("a"), part("b"))
        await log.add(seen)
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=sorted(seen))


class Nested(Workflow):
    """Gathers inside of gathers, with a shared log."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, seen = Log(ctx), list[str]()

        async def leaf(name: str) -> None:
            seen.append(await ask(ctx, name))

        async def branch(name: str) -> None:
            await asyncio.gather(leaf(f"{name}1"), leaf(f"{name}2"))
            seen.append(name)
            await log.add(list(seen))

        await ctx.gather(branch("a"), branch("b"))
        await ask(ctx, "end")
        await log.add(list(seen))
        await log.end()
        return StopEvent(result=sorted(seen))


class OneForTwo(Workflow):
    """One event answers two tasks of a step."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)

        async def part(name: str) -> str:
            await ctx.wait_for_event(Bell, waiter_event=Ring(), waiter_id=name, timeout=None)
            return name

        left = {asyncio.create_task(part(name)) for name in "ab"}
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            await log.add(sorted(each.result() for each in done))
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=sorted(name for names in log.lines for name in names))


class OwnWorkBetween(Workflow):
    """Tasks that do something of their own between and after their operations."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, seen = Log(ctx), list[str]()

        async def part(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            word = await ask(ctx, name)
            await asyncio.sleep(seconds)
            await ctx.store.set(f"done_{name}", True)
            seen.append(word)

        await asyncio.gather(part("a", 0.5), part("b", 0.01), part("c", 0.2))
        await log.add(seen)
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=sorted(seen))


class EffectsBeside(Workflow):
    """Side effects of several tasks end in the order in which they ended first."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, seen = Log(ctx), list[str]()

        async def part(name: str) -> None:
            seen.append(await ctx.once(name, lambda: name))
            seen.append(await ask(ctx, name))
            seen.append(await ctx.once(f"{name} again", lambda: f"{name} again"))

        await asyncio.gather(*(part(name) for name in "abc"))
        await log.add(seen)
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=sorted(seen))


class EditsBeside(Workflow):
    """Edits of several tasks that wait for each other."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log, seen = Log(ctx), list[str]()

        async def part(name: str) -> None:
            await ask(ctx, name)
            async with ctx.store.edit_state() as state:
                state["n"] = state.get("n", 0) + 1
                await asyncio.sleep(0)
                seen.append(name)
                await asyncio.sleep(0)
                seen.append(name)

        await asyncio.gather(*(part(name) for name in "abc"))
        await log.add(seen)
        await ask(ctx, "end")
        await log.end()
        assert seen[0::2] == seen[1::2], f"two edits at the same time: {seen}"
        return StopEvent(result=[sorted(seen), await ctx.store.get("n")])


class RaceAgainstTime(Workflow):
    """Durable sleeps race with answers."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)

        async def nap(seconds: float) -> str:
            await ctx.sleep(seconds)
            return "time is up"

        for name in "abc":
            tasks = [asyncio.create_task(ask(ctx, name)), asyncio.create_task(nap(0.5))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in tasks:
                each.cancel()
            await log.add([each.result() for each in tasks if each in done])
        await ask(ctx, "end")
        await log.end()
        return StopEvent(result=len(log.lines))


class Inner(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.sleep(ev.seconds)
        if ev.name == "b":
            raise LookupError("b is lost")
        return StopEvent(result=ev.name)


class ChildrenBeside(Workflow):
    """Child runs in the order in which they end, one of which fails."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        log = Log(ctx)

        async def part(name: str, seconds: float) -> str:
            try:
                return await ctx.child(Inner, name=name, seconds=seconds)
            except LookupError as error:
                return str(error)

        tasks = [asyncio.create_task(part(name, seconds)) for name, seconds in (("a", 0.6), ("b", 0.3), ("c", 0.9))]
        for each in asyncio.as_completed(tasks):
            await log.add(await each)
        await ask(ctx, "end")
        return await log.end()


def ringing(event: Event) -> Event | None:
    return Bell() if isinstance(event, Ring) else well_read(event)


LANES = {
    journey.name: journey
    for journey in (
        *(
            Journey(workflow(timeout=None), {"person": ringing})
            for workflow in (
                FirstCompleted,
                AsCompleted,
                AsCompletedAlike,
                CancelledWrites,
                QueueBetween,
                LocalConsumer,
                LocksBetween,
                GroupFails,
                TimesOutBeside,
                Nested,
                OneForTwo,
                OwnWorkBetween,
                EffectsBeside,
                EditsBeside,
                RaceAgainstTime,
            )
        ),
        Journey(ChildrenBeside(timeout=None), {"person": ringing, "others": [Inner(timeout=None)]}),
    )
}
