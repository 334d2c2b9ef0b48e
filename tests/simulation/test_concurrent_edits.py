"""Steps that change the same values at the same time: whatever dies or fails, each change counts once.

Between any two operations of a step its process may die; other steps have then built on what it has written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.simulation.seeds import again, batches, drawn
from tidemill.engine.runs.run_worker import RunWorker
from tidemill.engine.simulation.simulation import NO_FAULTS
from tidemill.flows import Context, Event, StartEvent, StepFailedEvent, StopEvent, Workflow, catch_error, step
from tidemill.flows.definition.events import HumanResponseEvent, InputRequiredEvent
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.simulate import simulate

FILE = "tests/simulation/test_concurrent_edits.py"
STEPS = 6
AGAIN = retry_policy(wait=wait_fixed(0.05), stop=stop_after_attempt(5))


class Share(Event):
    n: int


class Done(Event):
    n: int
    ticket: int = 0
    is_last: bool = False


class Asked(InputRequiredEvent):
    n: int


class Answered(HumanResponseEvent):
    n: int


@dataclass
class Purse:
    coins: int = 0
    from_whom: list[int] = field(default_factory=list)


class Shelf(BaseModel):
    weight: float = 0.0
    items: dict[str, list[int]] = Field(default_factory=dict)


class Ledger(BaseModel):
    total: int = 0
    drawn: int = 0
    left: int = STEPS
    best: int = 0
    names: list[int] = Field(default_factory=list)
    seen: set[int] = Field(default_factory=set)
    by_step: dict[str, Any] = Field(default_factory=dict)
    shelf: Shelf = Field(default_factory=Shelf)
    purse: Purse = Field(default_factory=Purse)


def add(state: Any, n: int) -> None:
    """Change a number, a list, a set, a dict, a model and a dataclass."""
    state.total += n
    state.best = max(state.best, n * 7 % 5)
    state.names.append(n)
    state.seen.add(n)
    state.by_step[str(n)] = {"n": n}
    state.by_step["all"] = state.by_step.get("all", 0) + n
    state.shelf.weight += n
    state.shelf.items.setdefault("shared", []).append(n)
    state.purse.coins += n
    state.purse.from_whom.append(n)


def told(state: Ledger) -> dict[str, Any]:
    """What the state says, whatever the order of the steps was."""
    assert len(state.names) == len(set(state.names)), state.names
    return {
        "total": state.total,
        "best": state.best,
        "names": sorted(state.names),
        "seen": sorted(state.seen),
        "by_step": dict(sorted(state.by_step.items())),
        "weight": state.shelf.weight,
        "items": sorted(state.shelf.items.get("shared", [])),
        "coins": state.purse.coins,
        "from": sorted(state.purse.from_whom),
    }


def expected(*numbers: int) -> dict[str, Any]:
    state = Ledger()
    for n in numbers:
        add(state, n)
    return told(state)


class Editing(Workflow):
    """Six steps change everything at the same time, some twice, and go on for a while; some fail once."""

    @step
    async def begin(self, ctx: Context[Ledger], ev: StartEvent) -> list[Share]:
        return [Share(n=n) for n in range(1, STEPS + 1)]

    @step(num_workers=STEPS, retry_policy=AGAIN)
    async def work(self, ctx: Context[Ledger], ev: Share) -> Done:
        await ctx.store.get("total")
        async with ctx.store.edit_state() as state:
            state.drawn += 1
            ticket = state.drawn
            add(state, ev.n)
        await asyncio.sleep(0.01 * (ev.n % 3))
        if ev.n in await ctx.store.get("names", default=[]):
            await ctx.store.set(f"by_step.mark {ev.n}", ticket)
        if ev.n % 3 == 0 and ctx.retry_info().retry_number < 2:
            raise ValueError("not yet")
        async with ctx.store.edit_state() as state:
            state.left -= 1
            is_last = state.left == 0
        await asyncio.sleep(0.02 * (ev.n % 2))
        return Done(n=ev.n, ticket=ticket, is_last=is_last)

    @step
    async def end(self, ctx: Context[Ledger], ev: list[Done]) -> StopEvent:
        state = await ctx.store.get_state()
        marks = [state.by_step.pop(f"mark {n}") for n in range(1, STEPS + 1)]
        lasts, tickets = (
            [each.n for each in ev if each.is_last],
            [each.ticket for each in sorted(ev, key=lambda e: e.n)],
        )
        return StopEvent(
            result={
                "state": told(state),
                "left": state.left,
                "drawn": state.drawn,
                "lasts": len(lasts),
                "tickets": sorted(tickets),
                "marks": marks == tickets,
            }
        )


class Waiting(Workflow):
    """Each step changes everything, waits for a person, and changes it again."""

    @step
    async def begin(self, ctx: Context[Ledger], ev: StartEvent) -> list[Share]:
        return [Share(n=n) for n in range(1, 4)]

    @step(num_workers=3, retry_policy=AGAIN)
    async def work(self, ctx: Context[Ledger], ev: Share) -> Done:
        async with ctx.store.edit_state() as state:
            add(state, ev.n)
        await ctx.wait_for_event(Answered, waiter_event=Asked(n=ev.n), requirements={"n": ev.n})
        async with ctx.store.edit_state() as state:
            add(state, ev.n * 10)
        await asyncio.sleep(0.01 * ev.n)
        if ev.n == 2 and ctx.retry_info().retry_number == 0:
            raise ValueError("not yet")
        return Done(n=ev.n)

    @step
    async def end(self, ctx: Context[Ledger], ev: list[Done]) -> StopEvent:
        return StopEvent(result={"state": told(await ctx.store.get_state())})


class GivingUp(Workflow):
    """Some of the steps fail for good, after others have built on what they wrote."""

    @step
    async def begin(self, ctx: Context[Ledger], ev: StartEvent) -> list[Share]:
        return [Share(n=n) for n in range(1, STEPS + 1)]

    @step(num_workers=STEPS)
    async def work(self, ctx: Context[Ledger], ev: Share) -> Done:
        async with ctx.store.edit_state() as state:
            best = state.best
            add(state, ev.n)
            state.best = best
        await asyncio.sleep(0.01 * (ev.n % 3))
        if ev.n % 2:
            raise ValueError("never")
        return Done(n=ev.n)

    @catch_error
    async def rescue(self, ctx: Context[Ledger], ev: StepFailedEvent) -> Done:
        return Done(n=0)

    @step
    async def end(self, ctx: Context[Ledger], ev: list[Done]) -> StopEvent:
        return StopEvent(result={"state": told(await ctx.store.get_state()) | {"best": 0}})


class OnQueue(Workflow):
    """Steps on a queue and steps beside them change everything at the same time; some fail once."""

    @step
    async def begin(self, ctx: Context[Ledger], ev: StartEvent) -> list[Share]:
        return [Share(n=n) for n in range(1, 5)]

    @step(queue="far", num_workers=4, retry_policy=AGAIN)
    async def far(self, ctx: Context[Ledger], ev: Share) -> Done:
        async with ctx.store.edit_state() as state:
            add(state, ev.n)
        await ctx.wait_for_event(Answered, waiter_event=Asked(n=ev.n), requirements={"n": ev.n})
        if ev.n == 2 and ctx.retry_info().retry_number == 0:
            raise ValueError("not yet")
        async with ctx.store.edit_state() as state:
            add(state, ev.n * 10)
        return Done(n=ev.n)

    @step(num_workers=4, retry_policy=AGAIN)
    async def near(self, ctx: Context[Ledger], ev: Share) -> None:
        async with ctx.store.edit_state() as state:
            add(state, ev.n * 100)
        await asyncio.sleep(0.5)
        if ev.n == 3 and ctx.retry_info().retry_number == 0:
            raise ValueError("not yet")

    @step
    async def end(self, ctx: Context[Ledger], ev: list[Done]) -> StopEvent:
        return StopEvent(result={"state": told(await ctx.store.get_state())})


ENDS: dict[type[Workflow], Any] = {
    Editing: {
        "state": expected(*range(1, STEPS + 1)),
        "left": 0,
        "drawn": STEPS,
        "lasts": 1,
        "tickets": list(range(1, STEPS + 1)),
        "marks": True,
    },
    Waiting: {"state": expected(1, 2, 3, 10, 20, 30)},
    GivingUp: {"state": expected(2, 4, 6) | {"best": 0}},
    OnQueue: {"state": expected(1, 2, 3, 4, 10, 20, 30, 40, 100, 200, 300, 400)},
}


class Unblaming(RunWorker):
    """A run whose processes die again and again beside one long step goes on: this is about what it writes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, max_losses=1000)


def answer(event: Event) -> Event | None:
    return Answered(n=event.n) if isinstance(event, Asked) else None


@pytest.mark.parametrize("seeds", batches(25, 500))
@pytest.mark.parametrize("kind", ENDS)
def test_each_change_counts_once_whatever_dies_or_fails(kind: type[Workflow], seeds: Any) -> None:
    undisturbed = simulate(kind(timeout=None), faults=NO_FAULTS, person=answer)
    assert undisturbed.result() == ENDS[kind]
    for seed in seeds:
        faults = drawn(seed, happened=undisturbed.happened)
        ran = simulate(kind(timeout=None), seed=seed, faults=faults, person=answer, run_worker=Unblaming)
        assert ran.result() == ENDS[kind], again(FILE, kind.__name__, seed)


@pytest.mark.parametrize("kind", [Editing, GivingUp])
async def test_each_change_counts_once_in_memory(kind: type[Workflow]) -> None:
    assert await kind(timeout=20).run() == ENDS[kind]
