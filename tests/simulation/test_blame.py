"""Over random mixes of guilty and innocent work, with deaths that are blamed on it: no innocent ends otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulation.seeds import seeds
from tidemill.engine.runs.durable_run import RunKind
from tidemill.engine.simulation.simulation import Faults, Simulation
from tidemill.engine.simulation.store import SimulatedRunStore
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.runner.durable import FlowKind


class Went(Event):
    n: int


class Trip(Workflow):
    """Two steps; `deadly` says which of them ends its process, if any."""

    runs: SimulatedRunStore

    @step
    async def first(self, ev: StartEvent) -> Went:
        await asyncio.sleep(ev.seconds)
        if ev.deadly == 1:
            await self.runs.die()
        return Went(n=ev.deadly)

    @step
    async def second(self, ev: Went) -> StopEvent:
        await asyncio.sleep(0.5)
        if ev.n == 2:
            await self.runs.die()
        return StopEvent(result="home")


def kinds(runs: SimulatedRunStore) -> Mapping[str, RunKind]:
    workflow = Trip()
    workflow.runs = runs
    return {"Trip": FlowKind("Trip", workflow, _no_children)}


async def _no_children(*given: Any) -> None:
    raise AssertionError("no child runs here")


@pytest.mark.parametrize("seed", seeds(30, 200))
def test_no_innocent_run_is_blamed_and_every_guilty_one_is(seed: int) -> None:
    simulation = Simulation(seed, kinds, faults=Faults(crashes=1, slow=0.01, lost=0.1, within=200), workers=0)
    chance = simulation.world.chance
    version = FlowKind("Trip", Trip(), _no_children).version
    guilty: dict[int, bool] = {}
    for _ in range(chance.randint(2, 8)):
        deadly = chance.choice([0, 0, 0, 1, 2])
        seconds = chance.choice([0.0, 0.1, 2.0])
        event = encode_event(StartEvent(seconds=seconds, deadly=deadly))
        number = simulation.start(workflow="Trip", version=version, input=event)
        guilty[number] = deadly > 0
    settled = lambda: all(run.state != "running" for run in simulation.model.runs.values())  # noqa: E731
    simulation.world.go(settled, limit=900.0)
    ends = {number: run.state for number, run in simulation.model.runs.items()}
    simulation.close()
    assert ends == {number: "needs_attention" if each else "succeeded" for number, each in guilty.items()}
