"""Steps with several tasks run again as they ran: each task sees the same, in the same order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
import pytest

from tests.simulation.programs.several_tasks import LANES
from tests.simulation.seeds import again, batches, drawn, replayed
from tests.simulation.test_simulated_flows import end
from tidemill.engine.simulation.simulation import NO_FAULTS
from tidemill.flows.simulate import SimulatedRun, simulate

FILE = "tests/simulation/programs/test_several_tasks.py"

#: `as_completed` begins its coroutines by address, so no seed says what faults meet. A run that loses its process
#: for the third time in one step would stop for attention.
BY_ADDRESS = {"AsCompletedAlike"}


@lru_cache
def undisturbed(name: str) -> SimulatedRun:
    return simulate(LANES[name].workflow, seed="undisturbed", faults=NO_FAULTS, **LANES[name].options)


@pytest.mark.filterwarnings("error::tidemill.flows.simulate.ReplayedValueWarning")
@pytest.mark.parametrize("seeds", batches(12, 100))
@pytest.mark.parametrize("name", LANES)
def test_the_tasks_of_a_step_see_the_same_in_the_same_order_when_it_runs_again(name: str, seeds: Iterable[int]) -> None:
    expected = end(undisturbed(name))
    for seed in seeds:
        try:
            faults = drawn(seed, happened=undisturbed(name).happened) if seed % 3 else NO_FAULTS
            if name in BY_ADDRESS:
                faults = msgspec.structs.replace(faults, crashes=min(faults.crashes, 1), pauses=0)
            outcome = simulate(LANES[name].workflow, seed=seed, faults=faults, **LANES[name].options)
            if replayed() is not None:
                print(*outcome.history, sep="\n")
            assert end(outcome) == expected
            outcome.result()
        except Exception as error:
            error.add_note(again(FILE, name, seed))
            raise


@pytest.mark.filterwarnings("error::tidemill.flows.simulate.ReplayedValueWarning")
def test_what_a_process_does_that_has_lost_the_run_is_no_value_that_counts() -> None:
    """It stands still, another one runs the step to its next wait, and then it goes on until it hears of that."""
    faults = drawn(730_031, happened=undisturbed("EditsBeside").happened)
    outcome = simulate(LANES["EditsBeside"].workflow, seed=730_031, faults=faults, **LANES["EditsBeside"].options)
    assert any("stands still" in entry for entry in outcome.history)
    assert outcome.result() == [["a", "a", "b", "b", "c", "c"], 3]
