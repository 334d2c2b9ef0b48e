"""Many runs of one owner: their turns are written two at a time, and no run is ever in two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.simulation.journeys import FanOut
from tests.simulation.seeds import seeds
from tests.simulation.test_simulated_flows import undisturbed
from tidemill.core.codec import decode
from tidemill.engine.runs.run_worker import WORTH_SHARING, WRITERS
from tidemill.engine.simulation.simulation import SOME_FAULTS, Simulation
from tidemill.engine.simulation.store import SimulatedRunStore
from tidemill.flows.definition.declared import declared
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.encoding.values import unpack
from tidemill.flows.runner.durable import FlowKind
from tidemill.store.runs.run_turn import RunTurn

RUNS = 3 * WORTH_SHARING


class UnderWay:
    """The turns that owners have asked the store to write, and that it has not answered yet."""

    def __init__(self) -> None:
        self.most = 0
        self.twice: set[int] = set()
        self._turns: dict[tuple[Any, int], list[set[int]]] = {}

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        commit = SimulatedRunStore.commit

        async def watched(store: SimulatedRunStore, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
            now = self._turns.setdefault((store, owner), [])
            runs = {turn.run_id for turn in turns}
            self.twice |= runs & set[int]().union(*now)
            now.append(runs)
            self.most = max(self.most, len(now))
            try:
                return await commit(store, owner, number, turns)
            finally:
                now.remove(runs)

        patch.setattr(SimulatedRunStore, "commit", watched)


@pytest.mark.parametrize("seed", seeds(4, 10))
def test_turns_of_different_runs_go_together_and_those_of_one_after_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed("FanOut").result()
    under_way = UnderWay()
    under_way.watch(monkeypatch)
    workflow = FanOut(timeout=None)

    async def no_children(*_: Any) -> None:
        raise AssertionError("a fan-out starts no runs")

    simulation = Simulation(seed, lambda _: {"FanOut": FlowKind("FanOut", workflow, no_children)}, faults=SOME_FAULTS)
    known = declared(workflow)
    data = encode_event(known.start_event(None, {}))
    numbers = [simulation.start(workflow="FanOut", version=known.topology.version, input=data) for _ in range(RUNS)]
    try:
        simulation.go()
        ends = [simulation.model.runs[number] for number in numbers]
    finally:
        simulation.close()
    assert {end.state for end in ends} == {"succeeded"}
    assert [unpack(decode(end.result)).result for end in ends if end.result is not None] == [expected] * RUNS
    assert not under_way.twice
    assert under_way.most == WRITERS
