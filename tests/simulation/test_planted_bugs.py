"""A simulation that cannot fail proves nothing: known bugs are planted, and some schedule must show each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulation import test_simulated_dags as dags
from tests.simulation.test_simulated_flows import counted_twice, disturbed, end, undisturbed
from tidemill.core.ticks import Command, Tick
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.engine.runs.durable_run import DurableRun
from tidemill.engine.simulation.store import SimulatedRunStore
from tidemill.engine.simulation.world import SimulationError
from tidemill.flows import simulate
from tidemill.flows.reducer.state.paths import read_path
from tidemill.flows.runner.durable import DurableFlowRun
from tidemill.flows.runner.replay.step_replay import StepReplay
from tidemill.store.runs.model import DuplicateTick, StoreModel
from tidemill.store.runs.run_turn import RunTurn

pytestmark = pytest.mark.long

MOST_SEEDS = 1500
Plant = Callable[[pytest.MonkeyPatch], None]


def acting_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    journal = DurableRun.journal

    def hasty(self: DurableRun, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        journal(self, loop, ticks, commands)
        after, self._after = self._after, []
        loop.execute(after)

    patch.setattr(DurableFlowRun, "journal", hasty)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    def anybody(self: StoreModel, turn: RunTurn, owner: int, number: int) -> bool:
        return turn.run_id in self.runs and turn.new is None

    patch.setattr(StoreModel, "_is_mine", anybody)


def a_fence_that_knows_only_the_owner(patch: pytest.MonkeyPatch) -> None:
    """The same turn may be written twice: once by the statement whose answer was lost."""

    def owner_only(self: StoreModel, turn: RunTurn, owner: int, number: int) -> bool:
        run = self.runs.get(turn.run_id)
        return run is not None and run.owner == owner

    patch.setattr(StoreModel, "_is_mine", owner_only)


def taking_from_the_inbox_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    due = StoreModel.due

    def eager(self: StoreModel, owner: int, taken: Sequence[int], room: int) -> list[Any]:
        rows = due(self, owner, taken, room)
        for row in rows:
            del self.inbox[row.id]
        return rows

    patch.setattr(StoreModel, "due", eager)


def timers_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreModel, "_set_timer", lambda self, number, timer, due: None)


def claims_whose_answer_is_lost_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: SimulatedRunStore, owner: int, held: Sequence[int], room: int) -> list[Any]:
        return []

    patch.setattr(SimulatedRunStore, "find_own", nothing)


def runs_of_the_dead_are_kept_from_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreModel, "free_runs", lambda self: 0)


def a_run_that_starts_another_is_let_go_meanwhile(patch: pytest.MonkeyPatch) -> None:
    ask, started = DurableFlowRun.ask, set[Any]()

    async def begin_later(begin: Any) -> None:
        await asyncio.sleep(1.0)  # of virtual time
        await begin()

    async def ask_first(self: Any, replay: Any, lane: Any, note: Any, begin: Any = None) -> Any:
        if begin is not None:
            started.add(asyncio.ensure_future(begin_later(begin)))
        return await ask(self, replay, lane, note)

    patch.setattr(DurableFlowRun, "ask", ask_first)


def results_of_reads_are_not_recorded(patch: pytest.MonkeyPatch) -> None:
    read = StepReplay.read

    def read_again(self: Any, kind: str, path: str, store: Any, live: Any) -> Any:
        read(self, kind, path, store, live)
        return read_path(store, path) if path else store

    patch.setattr(StepReplay, "read", read_again)


def an_end_that_came_before_the_question_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulate, "child_end", lambda number, row: None)


@pytest.mark.parametrize(
    ("plant", "name", "first"),
    [
        (acting_before_the_commit, "Chain", 0),
        (no_fence, "FanOut", 0),
        (a_fence_that_knows_only_the_owner, "Chain", 30),
        (taking_from_the_inbox_before_the_commit, "Asks", 0),
        (timers_in_memory_only, "Stumbles", 0),
        (claims_whose_answer_is_lost_are_forgotten, "Chain", 375),
        (runs_of_the_dead_are_kept_from_others, "FanOut", 0),
        (a_run_that_starts_another_is_let_go_meanwhile, "Parent", 0),
        (an_end_that_came_before_the_question_is_forgotten, "Parent", 0),
        (results_of_reads_are_not_recorded, "BranchesOnState", 0),
    ],
)
@pytest.mark.timeout(900)  # Where the first seed no longer shows it, all of them are tried.
def test_a_planted_bug_is_found(plant: Plant, name: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(name)
    assert end(disturbed(name, 0)) == end(expected)
    plant(monkeypatch)
    seeds = [*range(first, MOST_SEEDS), *range(first)]
    assert any(shows(name, seed) for seed in seeds), f"no seed has shown it: {plant.__name__}"


def shows(name: str, seed: int) -> bool:
    """Whether something is wrong under this seed."""
    try:
        outcome = disturbed(name, seed, limit=60.0)
    except (SimulationError, DuplicateTick):
        return True
    return end(outcome) != end(undisturbed(name)) or bool(counted_twice(outcome))


@pytest.mark.parametrize("plant", [taking_from_the_inbox_before_the_commit, no_fence])
def test_a_planted_bug_is_found_in_dags(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dags.end(dags.undisturbed("asked"))
    assert dags.end(dags.disturbed("asked", 0)) == expected
    plant(monkeypatch)

    def shows(seed: int) -> bool:
        try:
            return dags.end(dags.disturbed("asked", seed, limit=60.0)) != expected
        except (SimulationError, DuplicateTick):
            return True

    assert any(shows(seed) for seed in range(MOST_SEEDS)), f"no seed has shown it: {plant.__name__}"
