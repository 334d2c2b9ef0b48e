"""Whatever happens to a run, in whatever order: the journal alone gives its state, from any point on."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from tests.simulation.flow_world import World
from tests.simulation.seeds import batches, seeds
from tidemill.core.program import fold
from tidemill.core.ticks import EndRun, Received, RunWork, Started
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.encoding.snapshot import encode_state
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.reducer.state.flow_state import FlowState
from tidemill.flows.reducer.step_ticks import Ended, EventSent, Gathered, StepFailure, WaitAsked, Wrote
from tidemill.flows.runner.state_store import DictState

MEMBERS = 6


class Part(Event):
    n: int


class Done(Event):
    n: int


class Extra(Event):
    n: int


class Nod(Event):
    n: int


class Errand(Workflow):
    """A batch that is joined, events that are collected, a question, retries, and state that all of them write."""

    @step
    async def split(self, ev: StartEvent) -> list[Part]: ...

    @step(num_workers=2)
    async def work(self, ctx: Context, ev: Part) -> Done: ...

    @step
    async def gather(self, ctx: Context, ev: Extra) -> None: ...

    @step
    async def join(self, ctx: Context, done: list[Done]) -> StopEvent: ...


def program() -> FlowProgram:
    return FlowProgram(declared(Errand(timeout=None)).topology)


def behaviour(command: RunWork, state: FlowState) -> tuple[list[Any], Ended]:
    """What the steps do, as data: the same for the same command, however often it is asked for."""
    chance = random.Random(f"{command.work}/{command.attempt}")
    if command.name == "split":
        return [], Ended(tuple(Part(n=n) for n in range(MEMBERS)), listed=True)
    if command.name == "work":
        notes: list[Any] = [Wrote(f"part{command.input.n}", command.attempt), Wrote("last", command.input.n)]
        if command.input.n % 3 == 0:
            notes.append(EventSent(((Extra(n=command.input.n), None),)))
        if command.input.n == 1:
            notes.append(WaitAsked("nod", Nod, {"n": 1}))
        if command.attempt < 3 and chance.random() < 0.5:
            failure = StepFailure("builtins.ValueError", "no luck", exception=ValueError("no luck"))
            return notes, Ended(error=failure, retry_in=chance.choice([0.0, 1.5]))
        return notes, Ended((Done(n=command.input.n),))
    if command.name == "gather":
        return [Gathered("", command.input, (Extra, Extra))], Ended()
    return [], Ended((StopEvent(result=sorted(done.n for done in command.input)),))


def lived(seed: int) -> World:
    """A run from its start to its end, as this seed has it."""
    world = World(program(), behaviour, seed)
    world.state.store = DictState()
    world.post(Started(0.0, StartEvent()))
    chance = random.Random(seed)
    for _ in range(2000):
        if world.state.status != "running":
            return world
        if chance.random() < 0.1:
            world.post(Received(world.now, Nod(n=chance.choice([1, 2]))))
        elif not world.advance():
            world.post(Received(world.now, Nod(n=1)))
    raise AssertionError(f"seed {seed}: the run did not end")


def begun() -> FlowState:
    state = program().begin()
    state.store = DictState()
    return state


@pytest.mark.parametrize("some", batches(30, 150))
def test_every_order_of_events_has_the_same_result_and_its_journal_folds_to_its_state(some: Iterable[int]) -> None:
    for seed in some:
        world = lived(seed)
        (end,) = [command for command in world.commands if isinstance(command, EndRun)]
        assert (end.state, end.result.result) == ("succeeded", list(range(MEMBERS))), f"seed {seed}"
        assert encode_state(fold(program(), world.journal, begun())) == encode_state(world.state), f"seed {seed}"


@pytest.mark.parametrize("seed", seeds(10, 40))
def test_a_run_restored_at_any_point_goes_on_as_if_nothing_had_been(seed: int) -> None:
    world = lived(seed)
    expected = encode_state(world.state)
    for point in range(1, len(world.journal)):
        state = fold(program(), world.journal[:point], begun())
        restored = program().restore(program().snapshot(state))
        assert encode_state(restored) == encode_state(state), f"seed {seed}, tick {point}"
        assert encode_state(fold(program(), world.journal[point:], restored)) == expected, f"seed {seed}, tick {point}"
