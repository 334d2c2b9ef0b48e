"""The simulation as users have it: what it says, and when it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.journeys import Asks, Chain, Parent, Waits, well_read
from tidemill.core.errors import ConfigError
from tidemill.engine.simulation.world import SimulationError
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.flows.testing import Faults, simulate

ROOT = Path(__file__).parents[2]


class Patient(Workflow):
    @step
    async def sleep(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(3600)
        return StopEvent(result=ev.word)


def test_an_hour_passes_in_no_time() -> None:
    outcome = simulate(Patient(timeout=None), faults=Faults(), owners=1, workers=0, limit=10_000.0, word="slept")
    assert outcome.result() == "slept"
    assert outcome.ticks[-1].at - outcome.ticks[0].at >= 3600


def test_a_run_that_hangs_is_told_with_its_seed() -> None:
    with pytest.raises(SimulationError, match=r"Waits, seed 3: it is not over after 20 seconds of virtual time"):
        simulate(Waits(timeout=None), seed=3, limit=20.0)


def test_a_child_that_the_simulation_does_not_know_is_told() -> None:
    with pytest.raises(ConfigError, match="there is no workflow 'Small' in this simulation: add it to others="):
        simulate(Parent(timeout=None), faults=Faults()).result()


async def test_a_simulation_inside_of_a_coroutine_is_refused() -> None:
    with pytest.raises(ConfigError, match="call it from plain code"):
        simulate(Chain(timeout=None))


def test_nothing_goes_wrong_without_faults() -> None:
    outcome = simulate(Asks(timeout=None), faults=Faults(), person=well_read)
    happened = {what for _, _, what, *_ in outcome.history}
    assert not happened & {"ends", "stands still", "loses its connections", "is asked to stop"}


def test_a_seed_has_the_same_history_in_another_process() -> None:
    """Also where Python orders its sets in another way."""
    program = (
        "import hashlib\n"
        "from tests.simulation.test_simulated_flows import disturbed\n"
        "print(hashlib.sha256(repr(disturbed('Stumbles', 5).history).encode()).hexdigest())\n"
    )
    told = set()
    for order in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": order}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        told.add(done.stdout.splitlines()[-1])
    assert len(told) == 1
    assert len(told.pop()) == hashlib.sha256().digest_size * 2
