"""Workflows of the kinds that users write end under faults as they end without, and as they end in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest

from tests.simulation.journeys import Journey
from tests.simulation.programs.user_programs import USERS
from tests.simulation.seeds import again, batches, drawn, replayed
from tests.simulation.test_simulated_flows import counted_twice, end
from tidemill.engine.simulation.simulation import NO_FAULTS
from tidemill.flows.simulate import SimulatedRun, simulate

FILE = "tests/simulation/programs/test_user_programs.py"
IN_MEMORY = [name for name in USERS if name not in ("Pays", "Approvals-cancelled")]


@lru_cache
def undisturbed(name: str) -> SimulatedRun:
    return simulate(USERS[name].workflow, seed="undisturbed", faults=NO_FAULTS, **USERS[name].options)


@pytest.mark.filterwarnings("error::tidemill.flows.simulate.ReplayedValueWarning")
@pytest.mark.parametrize("seeds", batches(5, 80))
@pytest.mark.parametrize("name", USERS)
def test_a_program_of_a_user_ends_under_faults_as_without(name: str, seeds: Iterable[int]) -> None:
    expected = undisturbed(name)
    for seed in seeds:
        try:
            faults = drawn(seed, happened=expected.happened) if seed % 3 else NO_FAULTS
            outcome = simulate(USERS[name].workflow, seed=seed, faults=faults, **USERS[name].options)
            if replayed() is not None:
                print(*outcome.history, sep="\n")
            assert end(outcome) == end(expected)
            assert counted_twice(outcome) == [], "a result counts once"
            assert sorted(outcome.committed) == sorted(expected.committed), "a step's own writes are there once"
        except Exception as error:
            error.add_note(again(FILE, name, seed))
            raise


async def in_memory(journey: Journey) -> Any:
    options = {name: value for name, value in journey.options.items() if name not in ("person", "others")}
    handler = type(journey.workflow)(timeout=60).run(**options)
    async for event in handler.stream_events():
        if (answer := journey.options["person"](event)) is not None:
            await handler.send_event(answer)
    try:
        return await handler
    except Exception as error:  # noqa: BLE001 - whatever it failed with is how it ended
        return type(error)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_durable_run_ends_as_one_in_memory(name: str) -> None:
    assert asyncio.run(in_memory(USERS[name])) == end(undisturbed(name))[1]
