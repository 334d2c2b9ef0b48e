"""What is different from LlamaIndex Workflows on purpose: each deviation by its name in the guide, shown by a program.

The programs run on both, so that a deviation that has gone is found, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.differential.dialects import Dialect, ours, theirs
from tests.flows.differential.engines import run

GUIDE = Path(__file__).parents[3] / "docs" / "flows.md"

#: Deviations of durable runs, which LlamaIndex Workflows does not have, of what is not about runs, and by chance.
SHOWN_ELSEWHERE = {
    "durable dead ends",
    "durable publishing",
    "durable replay",
    "durable timeouts",
    "durable values",
    "late reports",
    "pickles",
}

#: How long a run may take: not long where it is known to wait for ever.
_patience = [60.0]

Shown = Callable[[Dialect], Awaitable[Any]]

DEVIATIONS: dict[str, tuple[Shown, Any, Any]] = {}


def deviation(name: str, *, there: Any, here: Any) -> Callable[[Shown], Shown]:
    """A program, with what it gives in LlamaIndex Workflows and here."""

    def add(show: Shown) -> Shown:
        DEVIATIONS[name] = (show, there, here)
        return show

    return add


def workflow(dialect: Dialect, **steps: tuple[Any, Any, Any] | tuple[Any, Any, Any, dict[str, Any]]) -> Any:
    """Create a workflow from `name=(function, what it takes, what it returns, options)`."""
    made: dict[str, Any] = {}
    for name, (function, takes, returns, *options) in steps.items():
        function.__name__, function.__qualname__ = name, f"Flow.{name}"
        function.__annotations__ = {"ctx": dialect.Context, "ev": takes, "return": returns}
        made[name] = dialect.step(**(options[0] if options else {}))(function)
    return type("Flow", (dialect.Workflow,), made)


async def outcome(flow: Any, on_event: Callable[[Any, Any], None] | None = None) -> Any:
    """The result of a run, or the class of its exception."""
    handler = flow(timeout=_patience[0]).run()
    async for event in handler.stream_events():
        if on_event is not None:
            on_event(handler, event)
    try:
        return await handler
    except Exception as error:  # noqa: BLE001 - the outcome of the program
        return type(error).__name__


@deviation("failed attempts", there=[2, [0, 1]], here=[1, [0]])
async def failed_attempts(at: Dialect) -> Any:
    one, again = at.numbered[0], asyncio.Event()

    async def first(self: Any, ctx: Any, ev: Any) -> Any:
        n = await ctx.store.get("n", default=0)
        await ctx.store.set("n", n + 1)
        ctx.send_event(one(n=n))
        await asyncio.sleep(0)
        if ctx.retry_info().retry_number == 0:
            raise ValueError("once more")
        again.set()

    async def second(self: Any, ctx: Any, ev: Any) -> Any:
        got = [*await ctx.store.get("got", default=[]), ev.n]
        await ctx.store.set("got", got)
        await again.wait()
        n = await ctx.store.get("n")
        return at.events.StopEvent(result=[n, got]) if ev.n == n - 1 else None

    policy = at.retry.retry_policy(wait=at.retry.wait_fixed(0), stop=at.retry.stop_after_attempt(2))
    return await outcome(
        workflow(
            at,
            first=(first, at.events.StartEvent, one | None, {"retry_policy": policy}),
            second=(second, one, at.events.StopEvent | None, {"num_workers": 1}),
        )
    )


def _answering(at: Dialect) -> Callable[[Any, Any], None]:
    count = 0

    def answer(handler: Any, event: Any) -> None:
        nonlocal count
        if isinstance(event, at.events.InputRequiredEvent):
            count += 1
            handler.ctx.send_event(at.Answer(v=count))

    return answer


@deviation("waiting steps", there=[2, 2], here=[1, 1])
async def waiting_steps(at: Dialect) -> Any:
    shown = 0

    async def ask(self: Any, ctx: Any, ev: Any) -> Any:
        await ctx.store.set("n", await ctx.store.get("n", default=0) + 1)
        ctx.write_event_to_stream(at.Note())
        await ctx.wait_for_event(at.Answer, waiter_event=at.Ask())
        return at.events.StopEvent(result=await ctx.store.get("n"))

    answer = _answering(at)

    def seen(handler: Any, event: Any) -> None:
        nonlocal shown
        shown += isinstance(event, at.Note)
        answer(handler, event)

    written = await outcome(workflow(at, ask=(ask, at.events.StartEvent, at.events.StopEvent)), seen)
    return [written, shown]


@deviation("repeated waits", there=[1, 1, 1], here=[1, 2, 3])
async def repeated_waits(at: Dialect) -> Any:
    async def ask(self: Any, ctx: Any, ev: Any) -> Any:
        answers = [await ctx.wait_for_event(at.Answer, waiter_event=at.Ask()) for _ in range(3)]
        return at.events.StopEvent(result=[answer.v for answer in answers])

    return await outcome(workflow(at, ask=(ask, at.events.StartEvent, at.events.StopEvent)), _answering(at))


@deviation("early events", there="WorkflowTimeoutError", here=7)
async def early_events(at: Dialect) -> Any:
    sent = asyncio.Event()

    async def ask(self: Any, ctx: Any, ev: Any) -> Any:
        ctx.write_event_to_stream(at.Note())
        await sent.wait()
        await asyncio.sleep(0.1)  # The event is delivered meanwhile.
        return at.events.StopEvent(result=(await ctx.wait_for_event(at.Answer)).v)

    def hurry(handler: Any, event: Any) -> None:
        if isinstance(event, at.Note):
            handler.ctx.send_event(at.Answer(v=7))
            sent.set()

    return await outcome(workflow(at, ask=(ask, at.events.StartEvent, at.events.StopEvent)), hurry)


@deviation("collected leftovers", there="WorkflowTimeoutError", here=[[1, 1], [2, 2]])
async def collected_leftovers(at: Dialect) -> Any:
    one, other = at.numbered[:2]

    async def send(self: Any, ctx: Any, ev: Any) -> Any:
        for event in (one(n=1), one(n=2), other(n=1), other(n=2)):
            ctx.send_event(event)

    async def collect(self: Any, ctx: Any, ev: Any) -> Any:
        found = ctx.collect_events(ev, [one, other])
        if found is None:
            return None
        pairs = [*await ctx.store.get("pairs", default=[]), [each.n for each in found]]
        await ctx.store.set("pairs", pairs)
        return at.events.StopEvent(result=pairs) if len(pairs) == 2 else None

    return await outcome(
        workflow(
            at,
            send=(send, at.events.StartEvent, one | other | None),
            collect=(collect, one | other, at.events.StopEvent | None, {"num_workers": 1}),
        )
    )


@deviation("plain functions", there="RuntimeError", here="sent")
async def plain_functions(at: Dialect) -> Any:
    one = at.numbered[0]

    def send(self: Any, ctx: Any, ev: Any) -> Any:
        ctx.send_event(one(n=1))

    async def end(self: Any, ctx: Any, ev: Any) -> Any:
        return at.events.StopEvent(result="sent")

    return await outcome(
        workflow(at, send=(send, at.events.StartEvent, one | None), end=(end, one, at.events.StopEvent))
    )


@deviation("self-cancelled steps", there="WorkflowTimeoutError", here="WorkflowRuntimeError")
async def self_cancelled_steps(at: Dialect) -> Any:
    async def leave(self: Any, ctx: Any, ev: Any) -> Any:
        raise asyncio.CancelledError

    return await outcome(workflow(at, leave=(leave, at.events.StartEvent, at.events.StopEvent)))


@deviation("targeted joins", there="WorkflowRuntimeError", here="refused")
async def targeted_joins(at: Dialect) -> Any:
    one = at.numbered[0]

    async def fan(self: Any, ctx: Any, ev: Any) -> Any:
        try:
            ctx.send_event(one(n=9), step="join")
        except Exception:  # noqa: BLE001 - the outcome of the program
            await ctx.store.set("refused", True)
        return [one(n=1)]

    async def join(self: Any, ctx: Any, ev: Any) -> Any:
        return at.events.StopEvent(result="refused" if await ctx.store.get("refused", default=False) else "taken")

    return await outcome(
        workflow(at, fan=(fan, at.events.StartEvent, list[one]), join=(join, list[one], at.events.StopEvent))
    )


@pytest.fixture(scope="module")
def dialects() -> tuple[Dialect, Dialect]:
    return theirs(), ours()


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_deviation_is_as_the_guide_says(
    name: str, dialects: tuple[Dialect, Dialect], monkeypatch: pytest.MonkeyPatch
) -> None:
    show, there, here = DEVIATIONS[name]
    assert run(show(dialects[1])) == here
    if there == "WorkflowTimeoutError":
        monkeypatch.setitem(globals(), "_patience", [1.0])
    assert run(show(dialects[0])) == there


def test_the_guide_lists_every_deviation() -> None:
    part = (
        GUIDE.read_text(encoding="utf-8").partition("What is different, on purpose:")[2].partition("\n\nNot there:")[0]
    )
    listed = set(re.findall(r"^\| ([a-z][a-z -]+) \|", part, re.MULTILINE)) - {"name"}
    assert listed == {*DEVIATIONS, *SHOWN_ELSEWHERE}
