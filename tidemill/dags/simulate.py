"""Simulate a durable dag run: virtual time, crashes, lost replies, two owners. The same seed gives the same history.

outcome = simulate_dag(dag, [extract, load], seed=7, args={"day": "2026-03-01"}, answers={"approve": True})
assert outcome.result() == {"rows": 12}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.ticks import CancelAsked, Received, Tick
from tidemill.dags.definition.model import Dag
from tidemill.dags.errors import DagRunError
from tidemill.dags.reducer.events import RunFailure, Submission
from tidemill.dags.reducer.journal import decode_tick, encode_tick
from tidemill.dags.runner.runner import DagInput, DagKind
from tidemill.engine.jobs.task import Task
from tidemill.engine.runs.run_worker import RunWorker
from tidemill.engine.simulation.simulation import SOME_FAULTS, Faults, Simulation
from tidemill.engine.simulation.world import SimulationError
from tidemill.store.runs.claims import DAG_KIND

_CHECK_EVERY = 0.05
_THINKING = 0.5


class DagOutcome(msgspec.Struct):
    """The outcome of a simulated run."""

    state: str
    statuses: dict[str, str]
    """The final state of each node."""
    asks: list[str]
    """The nodes that still wait for a person's answer; empty after a run has ended."""
    ticks: list[Tick]
    history: list[tuple[Any, ...]]
    """The log of the simulation: the same for the same seed."""
    happened: int
    row: Any

    def result(self) -> Any:
        """Return the result of the run; a `DagRunError` names the nodes that failed."""
        if self.state == "succeeded":
            return None if self.row.result is None else decode(self.row.result)
        failure = RunFailure(self.state, self.row.note or "")
        if self.row.error is not None:
            failure = decode(self.row.error, RunFailure)
        raise DagRunError(f"the run {self.state}: {failure.message}", nodes=failure.nodes)


def simulate_dag(
    dag: Dag,
    tasks: Iterable[Task[Any, Any]] = (),
    /,
    *,
    seed: int | str = 0,
    faults: Faults = SOME_FAULTS,
    args: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    cancel_after: float | None = None,
    owners: int = 2,
    workers: int = 2,
    limit: float = 600.0,
    run_worker: type[RunWorker] = RunWorker,
) -> DagOutcome:
    """Run a dag to its end in a simulation, from synchronous code.

    tasks         the tasks of its nodes, async functions: their code really runs, on virtual time
    answers       the answers to input nodes, by node name; other input nodes get no answer
    cancel_after  seconds after which the run is cancelled
    limit         seconds of virtual time after which a run that has not ended is considered stuck
    """
    known = {task.name: task for task in tasks}
    kind = DagKind(known)
    simulation = Simulation(
        seed,
        lambda runs: {DAG_KIND: kind},
        tasks=lambda runs: known,
        faults=faults,
        owners=owners,
        workers=workers,
        run_worker=run_worker,
    )
    stored = encode(DagInput(msgspec.Raw(dag.to_json()), dict(args or {})))
    version = kind.program(dag.to_json()).version
    number = simulation.start(workflow=dag.name, version=version, input=stored, kind=DAG_KIND)
    if answers:
        _InputAnswers(simulation, number, answers).check()
    if cancel_after is not None:
        simulation.world.later(cancel_after, lambda: _cancel(simulation, number))
    try:
        simulation.go(limit=limit)
    except SimulationError as error:
        raise SimulationError(f"{dag.name}, seed {seed!r}: {error}; simulate it again with this seed") from error
    finally:
        simulation.close()
    model, world = simulation.model, simulation.world
    _, state = kind.restore(stored, None, model.ticks[number])
    return DagOutcome(
        state=model.runs[number].state,
        statuses={name: node.status for name, node in state.nodes.items()},
        asks=[node for run, node in model.inputs if run == number],
        ticks=[decode_tick(data) for data in model.ticks[number]],
        history=world.history,
        happened=world.happened,
        row=model.runs[number],
    )


class _InputAnswers:
    """Answers the input nodes of a run after a delay, sometimes twice."""

    def __init__(self, simulation: Simulation, number: int, answers: Mapping[str, Any]) -> None:
        self._simulation, self._number, self._answers = simulation, number, answers
        self._asked: set[str] = set()

    def check(self) -> None:
        world, model = self._simulation.world, self._simulation.model
        for run, node in list(model.inputs):
            if run == self._number and node in self._answers and node not in self._asked:
                self._asked.add(node)
                for _ in range(world.chance.choice([1, 2])):
                    world.later(_THINKING * world.chance.random(), lambda node=node: self._submit(node))
        world.later(_CHECK_EVERY, self.check)

    def _submit(self, node: str) -> None:
        world = self._simulation.world
        world.note("person", "answers", node)
        given = Submission(node, self._answers[node], "ann", f"answer to {node}")
        self._simulation.model.send(self._number, encode_tick(Received(world.clock.now(), given, node)))


def _cancel(simulation: Simulation, number: int) -> None:
    simulation.model.send(number, encode_tick(CancelAsked(simulation.clock.now(), "enough")))
