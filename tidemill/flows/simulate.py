"""Simulate a durable flow run: virtual time, crashes, lost replies, two owners. The same seed gives the same history.

outcome = simulate(Article(), seed=7, topic="tides")
assert outcome.result() == "on tides"
assert outcome.history == simulate(Article(), seed=7, topic="tides").history
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import CancelAsked, Received, Tick
from tidemill.engine.jobs.task import Task
from tidemill.engine.runs.durable_run import WorkEnd
from tidemill.engine.runs.run_worker import RunWorker
from tidemill.engine.simulation.simulation import SOME_FAULTS, Faults, Simulation
from tidemill.engine.simulation.store import SimulatedRunStore
from tidemill.engine.simulation.world import SimulationError, World
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, StartEvent
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.encoding.journal import decode_tick, encode_tick
from tidemill.flows.encoding.values import unpack
from tidemill.flows.errors import StepDiverged
from tidemill.flows.runner.children import child_end
from tidemill.flows.runner.durable import FlowKind
from tidemill.flows.runner.follow import EventHistory
from tidemill.flows.runner.restore import JournalFold
from tidemill.flows.runner.run_handle import result_of
from tidemill.flows.runner.steps.queued_step import step_tasks
from tidemill.store.runs.published import EVENT_GAP
from tidemill.store.runs.run_turn import NewRun

#: The reaction of a person to a published event: an event for the run, several events, or None.
Person = Callable[[Event], Event | Iterable[Event] | None]

_CHECK_EVERY = 0.05
_PAUSES = (0.0, 0.0, 0.001, 0.02)
_THINKING = 1.0  # Most answers come when the run has left memory.


class SimulatedRun(msgspec.Struct):
    """The outcome of a simulated run."""

    state: str
    shown: list[Any]
    """The published events of the run, in order."""
    ticks: list[Tick]
    committed: list[Any]
    """The statements that steps have executed in their transactions."""
    history: list[tuple[Any, ...]]
    """The log of the simulation: the same for the same seed."""
    happened: int
    row: Any
    workflow: AnyWorkflow
    journal: list[bytes]
    published: list[tuple[int, bytes]]
    """The published events as they are stored, each with the last tick before it."""

    def events(self) -> list[Any]:
        """Return the events of the run in order, with the internal ones, as a follower sees them."""
        history = EventHistory(JournalFold(self.workflow, {}, narrates=True))
        for number, (tick, data) in enumerate(self.published, 1):
            history.add(number * EVENT_GAP, tick, data)
        seen = [each for seq, data in enumerate(self.journal, 1) for each in history.fold(seq, data)]
        return [event for _, event in [*seen, *history.rest()]]

    def result(self) -> Any:
        """Return the result of the run, or raise its exception."""
        result, error = (None if data is None else decode(data) for data in (self.row.result, self.row.error))
        return result_of(self.state, result, error, self.row.note)


def simulate(
    workflow: AnyWorkflow,
    /,
    *,
    seed: int | str = 0,
    faults: Faults = SOME_FAULTS,
    start_event: StartEvent | None = None,
    person: Person | None = None,
    cancel_after: float | None = None,
    others: Iterable[AnyWorkflow] = (),
    begun_by_owner: bool = False,
    owners: int = 2,
    workers: int = 1,
    limit: float = 600.0,
    run_worker: type[RunWorker] = RunWorker,
    **fields: Any,
) -> SimulatedRun:
    """Run a workflow to its end in a simulation, from synchronous code.

    faults        injected faults: `Faults(crashes=2, pauses=1, cuts=1, slow=0.01, lost=0.2)`, or `Faults()` for none
    person        is called with every published event, and may answer with events
    cancel_after  seconds after which the run is cancelled
    begun_by_owner  whether an owner starts the run, as `app.start` does in its process, or another process
    others        the workflows that `ctx.child` starts
    limit         seconds of virtual time after which a run that has not ended is considered stuck

    The code of steps really runs, on virtual time: `asyncio.sleep` takes no real time. Between any two operations of a
    step on its context a process may crash or lose its run. A `SimulationError` reports a violated invariant, and a
    step that does not follow its record when it runs again. A write or event whose value differs then is a warning.
    """
    steps = _SimulatedSteps()
    world = _FlowWorld([workflow, *others], steps)
    simulation = Simulation(
        seed, world.kinds, tasks=world.tasks, faults=faults, owners=owners, workers=workers, run_worker=run_worker
    )
    steps.world = simulation.world
    known = declared(workflow)
    event = known.start_event(start_event, fields)
    name, version, data = type(workflow).__name__, known.topology.version, encode_event(event)
    number = 1
    if begun_by_owner:
        new = NewRun(name, name, version, data)
        simulation.begin(
            lambda kinds, run_worker, number: kinds[name].begin(run_worker, number, event, msgspec.structs.replace(new))
        )
    else:
        number = simulation.start(workflow=name, version=version, input=data)
    if person is not None:
        _Listening(simulation, number, person).check()
    if cancel_after is not None:
        simulation.world.later(cancel_after, lambda: _cancel(simulation, number))
    try:
        simulation.go(limit=limit)
        return _outcome(workflow, simulation, min(simulation.model.ticks) if begun_by_owner else number)
    except SimulationError as error:
        raise SimulationError(f"{name}, seed {seed!r}: {error}; simulate it again with this seed") from error
    finally:
        simulation.close()


class ReplayedValueWarning(UserWarning):
    """A step that ran again wrote or sent another value than before; the first one counts."""


class _SimulatedSteps:
    """Lets things happen between the operations of steps, and watches what they do when they run again."""

    def __init__(self) -> None:
        self.world: World | None = None
        self._values: dict[tuple[Any, ...], dict[int, str]] = {}
        """What each process has written or sent: one that has lost the run meanwhile does not say what counts."""

    async def pause(self) -> None:
        chance = self.world.chance if self.world is not None else random.Random(0)
        await asyncio.sleep(chance.choice(_PAUSES))

    def did(self, place: tuple[Any, ...], value: Any) -> None:
        self._values.setdefault(place, {})[id(asyncio._get_running_loop())] = repr(value)

    def replayed(self, place: tuple[Any, ...], value: Any) -> None:
        before = self._values.get(place)
        if before and repr(value) not in before.values():
            _, _, _, _, kind, key, _ = place
            values = " or ".join(before.values())
            warnings.warn(
                f"{kind}({key}) had the value {values} and has {value!r} when the step runs again; the first one "
                "counts: use ctx.now(), ctx.random() or ctx.once() for what may differ",
                ReplayedValueWarning,
                stacklevel=2,
            )

    def diverged(self, run: str, error: StepDiverged) -> None:
        if self.world is not None:
            self.world.broken.append(SimulationError(f"run {run}: {error}"))


class _FlowWorld:
    """The workflows that every simulated process has."""

    def __init__(self, workflows: list[AnyWorkflow], steps: _SimulatedSteps) -> None:
        self._steps = steps
        self._workflows = {type(workflow).__name__: workflow for workflow in workflows}
        for workflow in workflows:
            declared(workflow).validate()

    def kinds(self, runs: SimulatedRunStore) -> dict[str, FlowKind]:
        async def start_child(
            workflow: Any, fields: dict[str, Any], key: str, parent: tuple[int, int]
        ) -> WorkEnd | None:
            name = workflow if isinstance(workflow, str) else workflow.__name__
            if name not in self._workflows:
                raise ConfigError(f"there is no workflow {name!r} in this simulation: add it to others=")
            known = declared(self._workflows[name])
            data = encode_event(known.start_event(None, fields))
            version = known.topology.version
            number = await runs.start(workflow=name, version=version, input=data, key=key, parent=parent)
            row = await runs.show(number)
            return child_end(number, row) if row["state"] not in ("running", "needs_attention") else None

        return {name: FlowKind(name, workflow, start_child, self._steps) for name, workflow in self._workflows.items()}

    def tasks(self, runs: SimulatedRunStore) -> dict[str, Task[Any, Any]]:
        async def reach() -> SimulatedRunStore:
            return runs

        made = [
            task
            for name, workflow in self._workflows.items()
            for task in step_tasks(name, workflow, reach, self._steps)
        ]
        return {task.name: task for task in made}


class _Listening:
    """A simulated person who follows the run and answers after a delay."""

    def __init__(self, simulation: Simulation, number: int, person: Person) -> None:
        self._simulation, self._number, self._person = simulation, number, person
        self._seen = 0

    def check(self) -> None:
        world, model = self._simulation.world, self._simulation.model
        shown = model.published.get(self._number, [])
        for _, data in shown[self._seen :]:
            answers = self._person(unpack(decode(data)))
            for answer in [] if answers is None else [answers] if isinstance(answers, Event) else answers:
                world.later(_THINKING * world.chance.random(), lambda answer=answer: self._send(answer))
        self._seen = len(shown)
        world.later(_CHECK_EVERY, self.check)

    def _send(self, event: Event) -> None:
        world = self._simulation.world
        world.note("a person", type(event).__name__)
        self._simulation.model.send(self._number, encode_tick(Received(world.clock.now(), event)))


def _cancel(simulation: Simulation, number: int) -> None:
    simulation.model.send(number, encode_tick(CancelAsked(simulation.clock.now(), "cancelled by the user")))


def _outcome(workflow: AnyWorkflow, simulation: Simulation, number: int) -> SimulatedRun:
    model, world = simulation.model, simulation.world
    published = model.published.get(number, [])
    return SimulatedRun(
        state=model.runs[number].state,
        shown=[unpack(decode(data)) for _, data in published],
        ticks=[decode_tick(data) for data in model.ticks[number]],
        committed=simulation.committed.get(str(number), []),
        history=world.history,
        happened=world.happened,
        row=model.runs[number],
        workflow=workflow,
        journal=model.ticks[number],
        published=published,
    )
