"""Build a program as a workflow of one implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from tests.flows.differential.dialects import Dialect, State
from tests.flows.differential.programs import (
    Asked,
    Batch,
    Body,
    Failing,
    Nested,
    Pair,
    Plain,
    Program,
    Sent,
    Stage,
    Subclassed,
)

MODULUS = 1009
TIMEOUT = 60.0

#: The id of what follows from an empty batch: it may be there several times, so that nothing is kept under it.
NO_ID = "none"


class Unlucky(Exception):
    """What a step of a program raises."""


def build(program: Program, dialect: Dialect) -> Any:
    """Return the workflow class of a program."""
    return Builder(dialect, typed=program.typed).workflow("Flow", program.stages)


class Builder:
    """Makes steps, and gives each the event classes that it needs."""

    def __init__(self, dialect: Dialect, *, typed: bool) -> None:
        self.at = dialect
        self.typed = typed
        self.context = dialect.Context[State] if typed else dialect.Context
        self.used = self.asked = self.families = self.flows = 0

    def workflow(self, name: str, stages: tuple[Stage, ...]) -> Any:
        self.flows += 1
        steps: dict[str, Any] = {}
        taken = self.at.events.StartEvent
        for at, stage in enumerate(stages):
            given = self.fresh()
            self.add(steps, f"{name.lower()}{at}", stage, taken, given)
            taken = given

        async def end(self_: Any, ctx: Any, ev: Any) -> Any:
            return self.at.events.StopEvent(result={"n": ev.n, "state": await self.whole_state(ctx)})

        self.step(steps, "end", end, {"ev": taken}, self.at.events.StopEvent)
        # Found by its name, because durable runs remember classes by name.
        return type(f"{name}{self.flows}", (self.at.Workflow,), steps)

    def fresh(self) -> Any:
        self.used += 1
        return self.at.numbered[self.used - 1]

    def step(
        self, steps: dict[str, Any], name: str, function: Any, takes: dict[str, Any], gives: Any, **options: Any
    ) -> None:
        function.__name__, function.__qualname__ = name, f"Flow.{name}"
        with_context = "ctx" in function.__code__.co_varnames[: function.__code__.co_argcount]
        function.__annotations__ = {**({"ctx": self.context} if with_context else {}), **takes, "return": gives}
        steps[name] = self.at.step(**options)(function)

    def add(self, steps: dict[str, Any], where: str, stage: Stage, taken: Any, given: Any) -> None:
        """Add the steps of one stage."""
        _ADDERS[type(stage)](self, steps, where, stage, taken, given)

    # -- stages -----------------------------------------------------------------------------------

    def plain(self, steps: dict[str, Any], where: str, stage: Plain, taken: Any, given: Any) -> None:
        if stage.threaded:

            def plain(self_: Any, ev: Any) -> Any:
                return given(n=ev.n + 1, id=ev.id)

            self.step(steps, where, plain, {"ev": taken}, given)
            return
        again = self.fresh()

        async def first(self_: Any, ctx: Any, ev: Any) -> Any:
            n = await self.perform(ctx, stage.body, where, ev)
            return again(n=n * 10 + stage.rounds, id=ev.id)

        async def more(self_: Any, ctx: Any, ev: Any) -> Any:
            left = ev.n % 10
            if left == 0:
                return given(n=ev.n // 10, id=ev.id)
            await self.perform(ctx, ("add",), f"{where}_more", ev)
            return again(n=ev.n - 1, id=ev.id)

        self.step(steps, where, first, {"ev": taken}, again)
        self.step(steps, f"{where}_more", more, {"ev": again}, again | given)

    def batch(self, steps: dict[str, Any], where: str, stage: Batch, taken: Any, given: Any) -> None:
        part, done = self.fresh(), self.fresh()

        async def fan(self_: Any, ctx: Any, ev: Any) -> Any:
            return [part(n=ev.n * 10 + at, id=f"{ev.id}.{at}") for at in range(stage.count)]

        self.step(steps, where, fan, {"ev": taken}, list[part])
        if stage.inner is not None:
            between = self.fresh()
            self.batch(steps, f"{where}_in", stage.inner, part, between)
        else:
            between = part

        async def work(self_: Any, ctx: Any, ev: Any) -> Any:
            n = await self.perform(ctx, stage.body, f"{where}_work", ev)
            return None if stage.drops and ev.n % 2 else done(n=n, id=ev.id)

        self.step(steps, f"{where}_work", work, {"ev": between}, done | None, num_workers=stage.workers)
        members: Any = list[done]
        if stage.take is not None:
            members = Annotated[members, self.at.collect.Collect(self.at.collect.Take(stage.take))]
        if not stage.two_joins:
            self.join(steps, f"{where}_join", members, given, stage.take is not None)
            return
        one, other = self.fresh(), self.fresh()
        self.join(steps, f"{where}_join", members, one, stage.take is not None)
        self.join(steps, f"{where}_also", list[done], other, False)

        async def both(self_: Any, ctx: Any, a: Any, b: Any) -> Any:
            return given(n=(a.n + 3 * b.n) % MODULUS, id=a.id)

        self.step(steps, f"{where}_both", both, {"a": one, "b": other}, given)

    def join(self, steps: dict[str, Any], name: str, members: Any, given: Any, only_count: bool) -> None:
        async def join(self_: Any, ctx: Any, evs: Any) -> Any:
            # Which events come first is nobody's promise, so a join that takes some of them only counts them.
            n = len(evs) if only_count else sum(ev.n for ev in evs) % MODULUS + len(evs)
            return given(n=n, id=evs[0].id.rpartition(".")[0] if evs else NO_ID)

        self.step(steps, name, join, {"evs": members}, given)

    def sent(self, steps: dict[str, Any], where: str, stage: Sent, taken: Any, given: Any) -> None:
        part, done = self.fresh(), self.fresh()

        async def send(self_: Any, ctx: Any, ev: Any) -> Any:
            for at in range(stage.count):
                ctx.send_event(part(n=ev.n * 10 + at, id=f"{ev.id}.{at}"))

        async def work(self_: Any, ctx: Any, ev: Any) -> Any:
            return done(n=await self.perform(ctx, stage.body, f"{where}_work", ev), id=ev.id)

        async def collect(self_: Any, ctx: Any, ev: Any) -> Any:
            found = ctx.collect_events(ev, [done] * stage.count)
            if found is None:
                return None
            return given(n=sum(each.n for each in found) % MODULUS, id=ev.id.rpartition(".")[0])

        self.step(steps, where, send, {"ev": taken}, part | None)
        self.step(steps, f"{where}_work", work, {"ev": part}, done, num_workers=stage.workers)
        # One worker: LlamaIndex collects what its workers have seen when they began.
        self.step(steps, f"{where}_collect", collect, {"ev": done}, given | None, num_workers=1)

    def pair(self, steps: dict[str, Any], where: str, stage: Pair, taken: Any, given: Any) -> None:
        left, right, a, b = (self.fresh() for _ in range(4))

        async def send(self_: Any, ctx: Any, ev: Any) -> Any:
            ctx.send_event(left(n=ev.n, id=ev.id))
            ctx.send_event(right(n=ev.n + 1, id=ev.id))

        async def join(self_: Any, ctx: Any, a: Any, b: Any) -> Any:
            return given(n=(a.n * 2 + b.n) % MODULUS, id=a.id)

        self.step(steps, where, send, {"ev": taken}, left | right | None)
        self.step(steps, f"{where}_left", self.worker(stage.left, f"{where}_left", a), {"ev": left}, a)
        self.step(steps, f"{where}_right", self.worker(stage.right, f"{where}_right", b), {"ev": right}, b)
        self.step(steps, f"{where}_join", join, {"a": a, "b": b}, given)

    def question(self, steps: dict[str, Any], where: str, stage: Asked, taken: Any, given: Any) -> None:
        ask, reply = self.at.questions[self.asked], self.at.replies[self.asked]
        self.asked += 1
        self.step(steps, where, self.worker(stage.body, where, ask), {"ev": taken}, ask)
        self.step(steps, f"{where}_reply", self.worker((), f"{where}_reply", given), {"ev": reply}, given)

    def failing(self, steps: dict[str, Any], where: str, stage: Failing, taken: Any, given: Any) -> None:
        done = self.fresh()

        async def fail(self_: Any, ctx: Any, ev: Any) -> Any:
            attempt = ctx.retry_info().retry_number
            n = await self.perform(ctx, stage.body, where, ev) if stage.late else ev.n
            if attempt < stage.failures:
                raise Unlucky(f"{where} {ev.n} attempt {attempt}")
            return done(n=n if stage.late else await self.perform(ctx, stage.body, where, ev), id=ev.id)

        policy = self.at.retry.retry_policy(
            wait=self.at.retry.wait_fixed(0), stop=self.at.retry.stop_after_attempt(stage.attempts)
        )
        self.step(steps, where, fail, {"ev": taken}, done, retry_policy=policy)
        self.step(steps, f"{where}_then", self.worker((), f"{where}_then", given), {"ev": done}, given)
        if stage.rescued:

            async def rescue(self_: Any, ctx: Any, ev: Any) -> Any:
                ctx.write_event_to_stream(self.at.Note(where=f"{ev.step_name}: {ev.exception}", n=ev.attempts))
                return done(n=ev.input_event.n, id=ev.input_event.id)

            rescue.__name__, rescue.__qualname__ = f"{where}_rescue", f"Flow.{where}_rescue"
            rescue.__annotations__ = {
                "ctx": self.context,
                "ev": self.at.events.StepFailedEvent,
                "return": done,
            }
            steps[rescue.__name__] = self.at.catch_error(for_steps=[where])(rescue)

    def subclassed(self, steps: dict[str, Any], where: str, stage: Subclassed, taken: Any, given: Any) -> None:
        parent, left, right = self.at.families[self.families]
        self.families += 1

        async def choose(self_: Any, ctx: Any, ev: Any) -> Any:
            n = await self.perform(ctx, stage.body, where, ev)
            return (left if n % 2 else right)(n=n, id=ev.id)

        self.step(steps, where, choose, {"ev": taken}, left | right)
        self.step(
            steps,
            f"{where}_any",
            self.worker((), f"{where}_any", given),
            {"ev": parent},
            given,
            accept_event_subclasses=True,
        )

    def nested(self, steps: dict[str, Any], where: str, stage: Nested, taken: Any, given: Any) -> None:
        inner = self.workflow("Inner", stage.inner)

        async def run(self_: Any, ctx: Any, ev: Any) -> Any:
            n = await self.perform(ctx, stage.body, where, ev)
            found = await inner(timeout=TIMEOUT).run(n=n, id="0")
            return given(n=(found["n"] + n) % MODULUS, id=ev.id)

        self.step(steps, where, run, {"ev": taken}, given)

    # -- what steps do ----------------------------------------------------------------------------

    def worker(self, body: Body, where: str, given: Any) -> Callable[..., Any]:
        async def work(self_: Any, ctx: Any, ev: Any) -> Any:
            return given(n=await self.perform(ctx, body, where, ev), id=ev.id)

        return work

    async def perform(self, ctx: Any, body: Body, where: str, ev: Any) -> int:
        """Do the operations of a step; returns the number that goes on."""
        key, turn = f"{where}-{ev.id.replace('.', '_')}", 0
        start = n = ev.n
        for at, op in enumerate(body):
            if ev.id == NO_ID and op not in ("add", "show", "stray"):
                continue
            if op == "set":
                await ctx.store.set(f"slots.{key}", start * 7 + at)
            elif op == "own":
                n = (n + await ctx.store.get(f"slots.{key}", default=1)) % MODULUS
            elif op == "list":
                known = list(await ctx.store.get(f"slots.{key}-list", default=[]))
                await ctx.store.set(f"slots.{key}-list", [*known, at])
            elif op == "add":
                async with ctx.store.edit_state() as state:
                    state.total = (state.total if self.typed else state.get("total", 0)) + start
            elif op == "mark":
                if not await ctx.store.get(f"slots.{key}-mark", default=False):
                    await ctx.store.set(f"slots.{key}-mark", True)
                    ctx.write_event_to_stream(self.at.Note(where=where, n=start * 100 + at))
                else:
                    n = (n + 1) % MODULUS
            elif op == "show":
                ctx.write_event_to_stream(self.at.Note(where=where, n=start * 100 + at))
            elif op == "stray":
                ctx.send_event(self.at.Stray(n=start))
            elif op == "rest":
                await asyncio.sleep(0)
            elif op == "wait":
                answer = await ctx.wait_for_event(
                    self.at.Answer,
                    waiter_event=self.at.Ask(where=where, id=ev.id, turn=turn),
                    requirements={"where": where, "id": ev.id, "turn": turn},
                )
                n = (n + answer.v) % MODULUS
                turn += 1
        return n

    async def whole_state(self, ctx: Any) -> dict[str, Any]:
        state = await ctx.store.get_state()
        return state_of(state)


def state_of(state: Any) -> dict[str, Any]:
    """Return a state as a dict; what was never written is left out."""
    found = dict(vars(state)) if isinstance(state, State) else dict(state.items())
    return {name: value for name, value in found.items() if value not in (0, {})}


_ADDERS: dict[type, Callable[..., None]] = {
    Plain: Builder.plain,
    Batch: Builder.batch,
    Sent: Builder.sent,
    Pair: Builder.pair,
    Asked: Builder.question,
    Failing: Builder.failing,
    Subclassed: Builder.subclassed,
    Nested: Builder.nested,
}
