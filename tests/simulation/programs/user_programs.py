"""Workflows of the kinds that users write; each has a result that a lost, doubled or swapped operation would change."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from tests.simulation.journeys import Journey, Question, Reply
from tests.simulation.programs.several_tasks import Inner, ask
from tidemill.flows import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
    Workflow,
    catch_error,
    step,
)
from tidemill.flows.definition.events import CompensationEvent
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed


class Draft(InputRequiredEvent):
    version: int
    text: str


class Review(HumanResponseEvent):
    version: int
    verdict: str


class Approvals(Workflow):
    """A draft is shown until a person approves it; each version has one verdict."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> StopEvent:
        history = list[list[Any]]()
        version = 0
        while True:
            version += 1
            review = await ctx.wait_for_event(
                Review,
                waiter_event=Draft(version=version, text=f"draft {version}"),
                requirements={"version": version},
                timeout=None,
            )
            history.append([version, review.verdict])
            await ctx.store.set("history", history)
            ctx.write_event_to_stream(Line(text=f"{version} {review.verdict}"))
            if review.verdict == "approve":
                break
        return StopEvent(result=[history, await ctx.store.get("history")])


class Line(Event):
    text: str


class PromptsBetweenSteps(Workflow):
    """One step returns a request, another takes the answer, and asks again."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Draft:
        return Draft(version=1, text="first")

    @step
    async def review(self, ctx: Context, ev: Review) -> Draft | StopEvent:
        async with ctx.store.edit_state() as state:
            state["seen"] = [*state.get("seen", []), ev.version]
        if ev.verdict == "approve":
            return StopEvent(result=await ctx.store.get("seen"))
        return Draft(version=ev.version + 1, text="next")


class Refund(CompensationEvent):
    what: str


class Booked(Event):
    what: str


class Saga(Workflow):
    """Three bookings, the last of which fails; the others are undone in reverse order."""

    undone: list[str]

    @step
    async def book(self, ctx: Context, ev: StartEvent) -> StopEvent:
        for what in ("flight", "hotel", "car"):
            await ctx.compensate(self.refund, Refund(what=what))
            number = await ctx.once(f"book {what}", lambda what=what: f"{what}-1")
            await ctx.store.set(what, number)
            await ctx.sleep(0.3)
            if what == "car":
                raise LookupError("no car")
        return StopEvent()

    @step(retry_policy=retry_policy(wait=wait_fixed(0.2), stop=stop_after_attempt(3)))
    async def refund(self, ctx: Context, ev: Refund) -> None:
        if ctx.retry_info().retry_number == 0 and ev.what == "hotel":
            raise OSError("try again")
        await ctx.once(f"refund {ev.what}", lambda: True)
        ctx.write_event_to_stream(Line(text=f"refunded {ev.what}"))


class Page(Event):
    n: int


class Size(Event):
    n: int
    size: int


class CollectsWithRetries(Workflow):
    """A fan-out over a queue with attempts that fail after they have written, sent and waited."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> Page | None:
        for n in range(5):
            ctx.send_event(Page(n=n))
        return None

    @step(num_workers=2, retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(3)))
    async def read(self, ctx: Context, ev: Page) -> Size:
        async with ctx.store.edit_state() as state:
            state["begun"] = state.get("begun", 0) + 1
        await ctx.sleep(0.1 * ev.n)
        if ctx.retry_info().retry_number < ev.n % 3:
            raise OSError(f"page {ev.n}")
        return Size(n=ev.n, size=ev.n * 10)

    @step
    async def total(self, ctx: Context, ev: Size) -> StopEvent | None:
        sizes = ctx.collect_events(ev, [Size] * 5)
        if sizes is None:
            return None
        return StopEvent(result=[sorted(each.size for each in sizes), await ctx.store.get("begun")])


class ParentRetriesChild(Workflow):
    """A child that fails is started again by the next attempt; one that has succeeded is not."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(2)))
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        first = await ctx.child(Inner, name="a", seconds=0.2)
        await ctx.store.set("first", first)
        second = await ctx.child(Inner, name="b", seconds=0.1)
        return StopEvent(result=[first, second])

    @catch_error
    async def handle(self, ctx: Context, ev: StepFailedEvent) -> StopEvent:
        state = await ctx.store.get_state()
        return StopEvent(result=[ev.attempts, str(ev.exception), type(ev.exception).__name__, sorted(state.keys())])


class Nudge(Event):
    n: int


class RemindsUntilAnswered(Workflow):
    """Reminders by a durable timer until the answer is there; the reminders count what was shown."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = asyncio.create_task(ask(ctx, "answer"))
        shown = 0
        while not answer.done():
            nap = asyncio.create_task(ctx.sleep(0.25))
            await asyncio.wait({answer, nap}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                nap.cancel()
            else:
                shown += 1
                ctx.write_event_to_stream(Nudge(n=shown))
                await ctx.store.set("shown", shown)
        word = await answer
        await ask(ctx, "end")
        assert await ctx.store.get("shown", default=0) == shown
        return StopEvent(result=word)


class TimesOutAndAsksAgain(Workflow):
    """A wait with a time limit, repeated with another one."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        tries = 0
        while True:
            tries += 1
            try:
                said = await ctx.wait_for_event(
                    Reply,
                    waiter_event=Question(about=f"try {tries}") if tries == 3 else None,
                    requirements={"about": f"try {tries}"},
                    timeout=0.4 if tries < 3 else None,
                )
            except TimeoutError:
                await ctx.store.set(f"late_{tries}", True)
                continue
            break
        state = await ctx.store.get_state()
        return StopEvent(result=[said.word, tries, sorted(state.keys())])


class Pays(Workflow):
    """Writes to a table of its own after it has waited, with effects before and after."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(5)))
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        first = await ctx.once("reserve", lambda: 7)
        word = await ask(ctx, "pay")
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO paid VALUES ($1)", word)
        await ctx.store.set("paid", word)
        return StopEvent(result=[first, word, await ctx.store.get("paid")])


class Item(BaseModel):
    name: str
    count: int = 0
    tags: list[str] = []


class Basket(BaseModel):
    items: dict[str, Item] = {}
    log: list[str] = []
    total: int = 0


class EditsNestedModels(Workflow):
    """A typed state whose models are changed at several depths, around waits."""

    @step
    async def work(self, ctx: Context[Basket], ev: StartEvent) -> StopEvent:
        for n in range(3):
            async with ctx.store.edit_state() as state:
                item = state.items.setdefault("bread", Item(name="bread"))
                item.count += 1
                item.tags.append(f"t{n}")
                state.total += item.count
            held = await ctx.store.get("items.bread")
            held.tags.append(f"held {n}")
            await ctx.store.set("items.bread", held)
            await ask(ctx, f"n{n}")
            await ctx.store.set("items.bread.count", held.count + 10)
            basket = await ctx.store.get_state()
            basket.log.append(f"{n}:{basket.items['bread'].count}")
            await ctx.store.set_state(basket)
        end = await ctx.store.get_state()
        return StopEvent(result=end.model_dump())


class Task(Event):
    n: int


class Told(Event):
    n: int
    words: list[str]


class WaitsOnAQueue(Workflow):
    """Steps on a queue that wait, write and do things once."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> list[Task]:
        return [Task(n=n) for n in range(3)]

    @step(queue="gpu", num_workers=2)
    async def work(self, ctx: Context, ev: Task) -> Told:
        first = await ctx.once("first", lambda: f"once {ev.n}")
        async with ctx.store.edit_state() as state:
            state[f"seen_{ev.n}"] = True
        word = await ask(ctx, f"q{ev.n}")
        more = await ask(ctx, f"r{ev.n}")
        await ctx.store.set(f"words_{ev.n}", [word, more])
        return Told(n=ev.n, words=[first, word, more])

    @step
    async def end(self, ctx: Context, ev: list[Told]) -> StopEvent:
        state = await ctx.store.get_state()
        return StopEvent(result=[sorted([each.n, each.words] for each in ev), sorted(state.keys())])


class GathersOnAQueue(Workflow):
    """A step on a queue whose parts wait at the same time."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Task:
        return Task(n=1)

    @step(queue="gpu")
    async def work(self, ctx: Context, ev: Task) -> StopEvent:
        async def part(name: str) -> str:
            await ctx.store.set(f"before_{name}", True)
            word = await ask(ctx, name)
            await ctx.store.set(f"after_{name}", word)
            return word

        words = await ctx.gather(part("a"), part("b"))
        state = await ctx.store.get_state()
        return StopEvent(result=[words, sorted(state.keys())])


class Batches(Workflow):
    """Children in batches of two at a time, with a semaphore, and their failures counted."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        few, failed = asyncio.Semaphore(2), list[str]()

        async def part(name: str) -> str | None:
            async with few:
                try:
                    return await ctx.child(Inner, name=name, seconds=0.2)
                except LookupError:
                    failed.append(name)
                    await ctx.store.set("failed", list(failed))
                    return None

        names = await asyncio.gather(*(part(name) for name in ("a", "b", "c", "d")))
        return StopEvent(result=[names, failed, await ctx.store.get("failed")])


class Goes(Workflow):
    """Goes on as new, with what it has collected so far."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        word = await ask(ctx, f"round {ev.round}")
        words = [*await ctx.store.get("words", default=[]), word]
        await ctx.store.set("words", words)
        if ev.round < 2:
            return ctx.continue_as_new(round=ev.round + 1)
        return StopEvent(result=words)


class Streams(Workflow):
    """Shows tokens around waits: each is shown once if no process is lost."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        count = 0
        for n in range(3):
            for token in range(3):
                ctx.write_event_to_stream(Line(text=f"{n}.{token}"))
                count += 1
            await ask(ctx, f"s{n}")
        return StopEvent(result=count)


class FirstWins(Workflow):
    """Two branches race over several waits each; the first to end cancels the other, which cleans up."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def branch(name: str) -> str:
            try:
                for n in range(2):
                    await ask(ctx, f"{name}{n}")
                    await ctx.store.set(f"at_{name}", n)
                return name
            finally:
                async with ctx.store.edit_state() as state:
                    state["ended"] = [*state.get("ended", []), name]

        tasks = [asyncio.create_task(branch(name)) for name in "ab"]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for each in left:
            each.cancel()
        await asyncio.wait(tasks)
        winner = next(each.result() for each in tasks if each in done)
        ended = await ctx.store.get("ended")
        await ask(ctx, "end")
        assert await ctx.store.get("ended") == ended
        assert ended[0] == winner or len(done) == 2, f"{winner} has won, but {ended}"
        return StopEvent(result=winner in ended)


class LimitsAStep(Workflow):
    """A step with a timeout waits, is retried, and then gets its answer."""

    @step(timeout=2.0, retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(30)))
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        number = ctx.retry_info().retry_number
        if number == 0:
            await ctx.wait_for_event(Nudge, timeout=None)
        return StopEvent(result=[number > 0, await ask(ctx, "after")])


class TwoStepsOneMailbox(Workflow):
    """Two workers of a step wait for events of one class; each event is for one of them."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> list[Task]:
        return [Task(n=n) for n in range(3)]

    @step(num_workers=3)
    async def work(self, ctx: Context, ev: Task) -> Told:
        words = [await ask(ctx, f"{ev.n}{n}") for n in range(2)]
        async with ctx.store.edit_state() as state:
            state["order"] = [*state.get("order", []), ev.n]
        return Told(n=ev.n, words=words)

    @step
    async def end(self, ctx: Context, ev: list[Told]) -> StopEvent:
        order = await ctx.store.get("order")
        return StopEvent(result=[sorted(order), sorted([each.n, each.words] for each in ev)])


class PlainSteps(Workflow):
    """Plain functions that send, collect and use the clock."""

    @step
    def begin(self, ctx: Context, ev: StartEvent) -> Page | None:
        at = ctx.now()
        for n in range(3):
            ctx.send_event(Page(n=n))
        assert ctx.now() >= at
        return None

    @step
    def size(self, ctx: Context, ev: Page) -> Size:
        return Size(n=ev.n, size=ev.n + 1)

    @step
    def end(self, ctx: Context, ev: Size) -> StopEvent | None:
        found = ctx.collect_events(ev, [Size] * 3)
        return None if found is None else StopEvent(result=sorted(each.size for each in found))


class GroupsOfEffects(Workflow):
    """A task group of side effects beside a wait; one fails at first, and the group is tried again."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0.1), stop=stop_after_attempt(3)))
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        number = ctx.retry_info().retry_number

        async def effect(name: str) -> str:
            word = await ask(ctx, name)
            if name == "b" and number == 0:
                raise ConnectionError(word)
            return await ctx.once(f"do {name}", lambda: f"{name} done")

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(effect(name)) for name in "abc"]
        return StopEvent(result=[number, [each.result() for each in tasks]])


def person(event: Event) -> Event | None:
    """A person who rejects two drafts, and knows the answer to every question."""
    if isinstance(event, Draft):
        return Review(version=event.version, verdict="approve" if event.version == 3 else "again")
    return Reply(about=event.about, word=f"{event.about}!") if isinstance(event, Question) else None


_inner = {"person": person, "others": [Inner(timeout=None)]}

USERS = {
    journey.name: journey
    for journey in (
        *(
            Journey(workflow(timeout=None), {"person": person})
            for workflow in (
                Approvals,
                PromptsBetweenSteps,
                Saga,
                CollectsWithRetries,
                RemindsUntilAnswered,
                TimesOutAndAsksAgain,
                Pays,
                EditsNestedModels,
                WaitsOnAQueue,
                GathersOnAQueue,
                Streams,
                FirstWins,
                LimitsAStep,
                TwoStepsOneMailbox,
                PlainSteps,
                GroupsOfEffects,
            )
        ),
        Journey(Goes(timeout=None), {"person": person, "round": 0}),
        Journey(ParentRetriesChild(timeout=None), _inner),
        Journey(Batches(timeout=None), _inner),
        Journey(Approvals(timeout=None), {"person": lambda event: None, "cancel_after": 1.0}),
    )
}
