"""Durable runs of dags under thousands of schedules: whatever goes wrong, each ends as if nothing had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pytest

from tests.simulation.dag_journeys import DAG_JOURNEYS, TASKS
from tests.simulation.seeds import again, batches, drawn, replayed
from tidemill.core.ticks import Completed
from tidemill.dags import Dag, node
from tidemill.dags.errors import DagRunError
from tidemill.dags.simulate import DagOutcome, simulate_dag
from tidemill.engine.simulation.simulation import NO_FAULTS

FILE = "tests/simulation/test_simulated_dags.py"


@lru_cache
def undisturbed(name: str) -> DagOutcome:
    journey = DAG_JOURNEYS[name]
    return simulate_dag(journey.dag, TASKS, seed="undisturbed", faults=NO_FAULTS, **journey.options)


def disturbed(name: str, seed: int, **more: Any) -> DagOutcome:
    journey = DAG_JOURNEYS[name]
    faults = drawn(seed, happened=undisturbed(name).happened)
    return simulate_dag(journey.dag, TASKS, seed=seed, faults=faults, **journey.options, **more)


def end(outcome: DagOutcome) -> tuple[Any, ...]:
    """How a run has ended: its state, its result or what it failed with, and what became of its nodes."""
    try:
        return outcome.state, outcome.result(), outcome.statuses
    except DagRunError as error:
        return outcome.state, str(error), outcome.statuses


def counted_twice(outcome: DagOutcome) -> list[int]:
    """Pieces of work whose end is in the journal more than once."""
    ends = Counter(tick.work for tick in outcome.ticks if isinstance(tick, Completed))
    return [work for work, times in ends.items() if times > 1]


@pytest.mark.parametrize("seeds", batches(12, 100))
@pytest.mark.parametrize("name", DAG_JOURNEYS)
def test_whatever_goes_wrong_a_run_ends_as_if_nothing_had(name: str, seeds: Iterable[int]) -> None:
    expected = undisturbed(name)
    for seed in seeds:
        try:
            outcome = disturbed(name, seed)
            if replayed() is not None:
                print(*outcome.history, sep="\n")
            assert end(outcome) == end(expected)
            assert counted_twice(outcome) == [], "a node's end counts once"
            assert outcome.asks == [], "a run that has ended asks nothing"
        except Exception as error:
            error.add_note(again(FILE, name, seed))
            raise


def test_a_node_may_be_on_another_queue_than_its_task() -> None:
    task = next(iter(TASKS))
    dag = Dag("elsewhere", [node("first", task.name, args={"n": 1}, queue="far away")])
    assert simulate_dag(dag, [task], seed=1, faults=NO_FAULTS, limit=60).state == "succeeded"


@pytest.mark.parametrize("name", DAG_JOURNEYS)
def test_one_seed_has_one_history(name: str) -> None:
    for seed in (1, 2, 3):
        assert disturbed(name, seed).history == disturbed(name, seed).history
