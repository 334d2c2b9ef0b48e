"""Durable runs of workflows under thousands of schedules: whatever goes wrong, each ends as if nothing had.

The real run worker, loop, shells, programs and steps, on virtual time; the store is a model, which `test_store_model`
holds against PostgreSQL. That no command is ahead of its tick, and that the journal folds to the state in memory, is
watched inside of every simulation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest

from tests.simulation.journeys import JOURNEYS
from tests.simulation.replayed_programs import PROGRAMS
from tests.simulation.seeds import again, batches, drawn, replayed
from tidemill.core.ticks import Completed, Noted
from tidemill.engine.simulation.simulation import NO_FAULTS, Faults
from tidemill.engine.simulation.world import SimulationError
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step
from tidemill.flows.reducer.step_ticks import Did
from tidemill.flows.runner.replay.turns import PATIENCE
from tidemill.flows.simulate import ReplayedValueWarning, SimulatedRun, simulate

FILE = "tests/simulation/test_simulated_flows.py"
ALL = JOURNEYS | PROGRAMS


@lru_cache
def undisturbed(name: str) -> SimulatedRun:
    journey = ALL[name]
    return simulate(journey.workflow, seed="undisturbed", faults=NO_FAULTS, **journey.options)


def disturbed(name: str, seed: int, **more: Any) -> SimulatedRun:
    journey = ALL[name]
    faults = drawn(seed, happened=undisturbed(name).happened)
    return simulate(journey.workflow, seed=seed, faults=faults, **journey.options, **more)


def end(outcome: SimulatedRun) -> tuple[Any, ...]:
    """How a run has ended: its state, and its result or what it failed with."""
    try:
        return outcome.state, outcome.result()
    except Exception as error:  # noqa: BLE001 - whatever it failed with is how it ended
        return outcome.state, type(error)


def counted_twice(outcome: SimulatedRun) -> list[int]:
    """Pieces of work whose success is in the journal more than once."""
    ends = [tick.work for tick in outcome.ticks if isinstance(tick, Completed) and tick.outcome.error is None]
    return [work for work, times in Counter(ends).items() if times > 1]


def effects(outcome: SimulatedRun) -> set[tuple[int, str]]:
    notes = [(tick.work, tick.note) for tick in outcome.ticks if isinstance(tick, Noted)]
    return {(work, note.name) for work, note in notes if isinstance(note, Did)}


@pytest.mark.parametrize("seeds", batches(12, 100))
@pytest.mark.parametrize("name", ALL)
def test_whatever_goes_wrong_a_run_ends_as_if_nothing_had(name: str, seeds: Iterable[int]) -> None:
    expected = undisturbed(name)
    for seed in seeds:
        try:
            outcome = disturbed(name, seed)
            if replayed() is not None:
                print(*outcome.history, sep="\n")
            assert end(outcome) == end(expected)
            assert counted_twice(outcome) == [], "a result counts once"
            assert effects(outcome) == effects(expected), "an effect that happens once is known to have happened"
            assert sorted(outcome.committed) == sorted(expected.committed), "a step's own writes are there once"
        except Exception as error:
            error.add_note(again(FILE, name, seed))
            raise


@pytest.mark.parametrize("seeds", batches(12, 60))
@pytest.mark.parametrize("name", ["Chain", "FanOut", "Stumbles"])
def test_a_run_that_its_owner_begins_ends_as_if_nothing_had_gone_wrong(name: str, seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            assert end(disturbed(name, seed, begun_by_owner=True)) == end(undisturbed(name))
        except Exception as error:
            error.add_note(again(FILE, name, seed))
            raise


@pytest.mark.parametrize("name", JOURNEYS)
def test_one_seed_has_one_history(name: str) -> None:
    for seed in (1, 2, 3):
        assert disturbed(name, seed).history == disturbed(name, seed).history
    assert disturbed(name, 1).history != disturbed(name, 2).history


def test_many_kinds_of_faults_have_been_seen() -> None:
    """What is drawn really happens: owners die and stand still, connections break, two own a run at once."""
    happened = Counter[str]()
    for seed in range(120):
        for _, who, what, *more in disturbed("Asks" if seed % 2 else "FanOut", seed).history:
            if what in ("ends", "stands still", "loses its connections"):
                happened[f"{str(who).split()[0]} {what}"] += 1
            elif str(what).startswith("turn ") and more == [[]]:
                happened["a turn was refused"] += 1
    assert min(happened[each] for each in ("owner ends", "owner stands still", "owner loses its connections")) > 20
    assert happened["sweeper ends"] > 10, "leases have lapsed"
    assert happened["a turn was refused"] > 3, "an owner that had lost its run wanted to write"


class Forgetful(Workflow):
    """Does something else when it runs again, because it asks the process and not its context."""

    lives = 0

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        type(self).lives += 1
        await ctx.store.set(f"life_{self.lives}", True)
        await ctx.sleep(1)
        return StopEvent()


class Stamping(Workflow):
    """Writes and sends another value each time it runs."""

    lives = 0

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        type(self).lives += 1
        await ctx.store.set("stamp", self.lives)
        await ctx.sleep(1)
        return StopEvent(result=await ctx.store.get("stamp"))


def test_a_simulation_fails_at_once_when_a_step_does_not_follow_its_record() -> None:
    Forgetful.lives = 0
    said = r"the record continues with set\(life_1\), sleep, but the step now does set\(life_2\)"
    with pytest.raises(SimulationError, match=said):
        simulate(Forgetful(timeout=None), seed=1, faults=NO_FAULTS)


def test_a_simulation_warns_of_values_that_differ_when_a_step_runs_again_and_the_first_counts() -> None:
    Stamping.lives = 0
    with pytest.warns(ReplayedValueWarning, match=r"set\(stamp\) had the value 1 and has 2"):
        outcome = simulate(Stamping(timeout=None), seed=1, faults=NO_FAULTS)
    assert outcome.result() == 1


def test_steps_are_brought_back_between_any_two_operations() -> None:
    """The programs really run again: without their record most of them would end in another way."""
    resumed = Counter[str]()
    for seed in range(20):
        for tick in disturbed("AppendsToList", seed).ticks:
            resumed[type(tick).__name__] += 1
    assert resumed["Resumed"] > 20, "more than once a seed"


class FansOut(Workflow):
    """Waits in its own task, and then only in others."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def part(seconds: float) -> float:
            await ctx.sleep(seconds)
            return seconds

        await ctx.sleep(10)
        parts = part(20), part(30)
        return StopEvent(result=await (ctx.gather(*parts) if ev.is_ours else asyncio.gather(*parts)))


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_a_step_that_runs_again_waits_for_no_task_that_only_it_can_begin(is_ours: bool, seed: int) -> None:
    outcome = simulate(FansOut(timeout=None), seed=seed, faults=Faults(crashes=2), is_ours=is_ours)
    assert outcome.result() == [20, 30]
    assert outcome.history[-1][0] - outcome.history[0][0] < 40 + PATIENCE / 2
