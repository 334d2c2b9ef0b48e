"""Runs in a simulated world: the real run worker, loop and shells on a model of the store, with faults in between.

    simulation = Simulation(7, lambda runs: {"Article": FlowKind("Article", workflow, runs.start_child)})
    number = simulation.start(workflow="Article", version=..., input=...)
    simulation.go()                              # until all runs are over, or a `SimulationError` says what went wrong

Each request of an owner to the store is a message, a statement that takes time, and a response. Between any two of
these an owner may crash or be paused beyond its lease, a connection may break before the response arrives, and wake-ups
may be lost or arrive twice. The seed decides all of it; the same seed gives the same history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from tidemill.core.errors import LeaseLostError, StoreError
from tidemill.core.jobs.job import ClaimedJob, Finish
from tidemill.engine.jobs.task import Task
from tidemill.engine.roles.role import Role
from tidemill.engine.runs.durable_run import DurableRun, RunKind
from tidemill.engine.runs.run_worker import RunWorker, run_worker_role
from tidemill.engine.simulation.checks import Watched
from tidemill.engine.simulation.store import HEARTBEAT, LEASE, SimulatedRunStore
from tidemill.engine.simulation.worker import SimulatedWorker
from tidemill.engine.simulation.world import Process, World
from tidemill.engine.worker.outcome import after_loss, record
from tidemill.store.runs.model import Notification, StoreModel
from tidemill.store.runs.model_rows import StoreView

SWEEP_EVERY = 0.5
BACK_AFTER = 0.3
SLOW = 4.0


class Faults(msgspec.Struct, frozen=True):
    """Faults to inject. The first four are counts; the seed decides when they happen."""

    crashes: int = 0
    """Owners and workers that are killed; each is started again a little later."""
    pauses: int = 0
    """Owners and workers that are paused, some beyond their lease: two processes then believe that they own a run."""
    cuts: int = 0
    """Connections that break: the response is lost, whether the statement was executed or not."""
    stops: int = 0
    """Owners that are stopped, as for a deployment: they release their runs."""
    slow: float = 0.0
    """The share of statements that take seconds."""
    lost: float = 0.0
    """The share of wake-ups that do not arrive."""
    repeated: float = 0.0
    """The share of wake-ups that arrive twice."""
    within: int = 1000
    """Faults happen during this many first events: an event is a message or a turn of a process."""


NO_FAULTS = Faults()

#: A bad day.
SOME_FAULTS = Faults(crashes=2, pauses=1, cuts=1, slow=0.01, lost=0.2, repeated=0.2, within=250)


class Simulation:
    """Owners, workers and a sweeper around one store, in a simulated world."""

    def __init__(
        self,
        seed: int | str,
        kinds: Callable[[SimulatedRunStore], Mapping[str, RunKind]],
        *,
        tasks: Callable[[SimulatedRunStore], Mapping[str, Task[Any, Any]]] = lambda runs: {},
        faults: Faults = NO_FAULTS,
        owners: int = 2,
        workers: int = 1,
        run_worker: type[RunWorker] = RunWorker,
    ) -> None:
        self.world = World(seed)
        self.faults = faults
        self.model = StoreModel(self.world.clock, self._deliver)
        self.watched = Watched(self.model, self.world.broken.append)
        self.committed: dict[str, list[Any]] = {}
        """What steps have written in transactions of their own, by run."""
        self._kinds, self.tasks, self._run_worker = kinds, tasks, run_worker
        self._listening: dict[Process, tuple[str, Callable[[str], None]]] = {}
        self._run_workers: dict[Process, Role[RunWorker]] = {}
        self._to_begin: list[Callable[[Mapping[str, Any], RunWorker, int], DurableRun]] = []
        self._born = 0
        for _ in range(owners):
            self._begin_owner()
        for _ in range(workers):
            self._begin_worker()
        self._sweep()
        happens = {
            self._crash: faults.crashes,
            self._pause: faults.pauses,
            self._cut: faults.cuts,
            self._stop: faults.stops,
        }
        for fault, count in happens.items():
            for _ in range(count):
                self.world.when(self.world.chance.randint(1, faults.within), fault)

    @property
    def clock(self) -> Any:
        return self.world.clock

    def start(self, **row: Any) -> int:
        """Store a run, before or while the world turns."""
        return self.model.start(**row)[0]

    def begin(self, open: Callable[[Mapping[str, Any], RunWorker, int], DurableRun]) -> None:
        """Have an owner start a run, which is stored with its first ticks. Retried until a response arrives, so that
        there may be more than one run in the end."""
        self._to_begin.append(open)

    def go(self, *, limit: float = 600.0) -> None:
        """Let the world turn until all runs are over."""
        self.world.go(self._is_over, limit=limit)

    def close(self) -> None:
        self.world.close()

    def _is_over(self) -> bool:
        return not self._to_begin and all(
            run.state not in ("running", "needs_attention") for run in self.model.runs.values()
        )

    # -- who there is -----------------------------------------------------------------------------

    def _begin_owner(self) -> None:
        process = self._new("owner")
        runs = SimulatedRunStore(self, process)
        process.begin(lambda: self._own(process, runs))

    async def _own(self, process: Process, runs: SimulatedRunStore) -> None:
        kinds = {name: self.watched.kind(kind) for name, kind in self._kinds(runs).items()}
        role = self._run_workers[process] = run_worker_role(
            self._run_worker(runs, kinds), runs, None, lease_seconds=LEASE, heartbeat_seconds=HEARTBEAT
        )
        begins = asyncio.create_task(self._begin_runs(runs, role))
        try:
            await role.run()
        except LeaseLostError:
            pass
        except BaseException as error:
            if process.alive:
                self.world.broken.append(error)
            raise
        begins.cancel()
        self.process_ended(process)

    async def _begin_runs(self, runs: SimulatedRunStore, role: Role[RunWorker]) -> None:
        await role.wait_ready()
        run_worker = role.work
        for open in list(self._to_begin):
            try:
                begun = await run_worker.begin(lambda number, open=open: open(self._kinds(runs), run_worker, number))
            except StoreError:
                continue  # It is unknown whether the run is stored.
            if begun is not None and open in self._to_begin:
                self._to_begin.remove(open)

    def _begin_worker(self) -> None:
        process = self._new("worker")
        worker = SimulatedWorker(self, process)
        process.begin(worker.run)

    def _new(self, what: str) -> Process:
        self._born += 1
        return self.world.process(f"{what} {self._born}")

    def process_ended(self, process: Process) -> None:
        """A process has ended; another replaces it."""
        if not process.alive:
            return
        self._listening.pop(process, None)
        self._run_workers.pop(process, None)
        process.crash()
        begin = self._begin_owner if process.name.startswith("owner") else self._begin_worker
        self.world.later(BACK_AFTER * self.world.chance.random(), begin)

    # -- what goes wrong --------------------------------------------------------------------------

    def _crash(self) -> None:
        if (victim := self._victim()) is not None:
            self.process_ended(victim)

    def _pause(self) -> None:
        if (victim := self._victim()) is not None:
            chance = self.world.chance
            victim.pause(chance.choice([0.5 * chance.random(), LEASE * (1.0 + chance.random())]))

    def _cut(self) -> None:
        if (victim := self._victim()) is not None:
            victim.cut_off()

    def _stop(self) -> None:
        if self._run_workers:
            process, role = self.world.chance.choice(list(self._run_workers.items()))
            self.world.note(process.name, "is asked to stop")
            process.deliver(role.stop)

    def _victim(self) -> Process | None:
        return self.world.chance.choice(self.world.processes) if self.world.processes else None

    # -- the store --------------------------------------------------------------------------------

    async def ask(self, process: Process, name: str, statement: Callable[[StoreView], Any]) -> Any:
        """Send a statement to the store and wait for the response. Raises `ConnectionError` if it is lost."""
        world, answer = self.world, process.expect()

        def arrives() -> None:
            view = self.model.read_view()
            world.later(self._duration(), lambda: done(view))

        def done(view: StoreView) -> None:
            if answer.done() and world.chance.random() < 0.5:
                return  # The connection broke before the statement arrived.
            try:
                result, error = statement(view), None
            except Exception as raised:  # noqa: BLE001 - it is for the one who asked
                result, error = None, raised
            world.note(process.name, name, _in_history(result))
            world.later(self._message_delay(), lambda: process.deliver(_answer, answer, result, error))

        world.later(self._message_delay(), arrives)
        return await answer

    def _message_delay(self) -> float:
        return 0.0001 + 0.001 * self.world.chance.random()

    def _duration(self) -> float:
        if self.faults.slow and self.world.chance.random() < self.faults.slow:
            return SLOW * self.world.chance.random()
        return 0.0001 + 0.002 * self.world.chance.random()

    def listen(self, process: Process, channel: str, callback: Callable[[str], None]) -> None:
        self._listening[process] = (channel, callback)

    def _deliver(self, notification: Notification) -> None:
        sent_on, payload = notification
        for process, (channel, callback) in self._listening.items():
            if not process.alive or (channel != sent_on and not (channel == "jobs" and sent_on == "control")):
                continue
            times = (self.world.chance.random() >= self.faults.lost) + (
                self.world.chance.random() < self.faults.repeated
            )
            for _ in range(times):
                self.world.later(self._message_delay(), partial(process.deliver, callback, payload))

    def _sweep(self) -> None:
        """One sweep of maintenance."""
        for worker in self.model.end_lapsed():
            self.world.note("sweeper", "ends", worker)
            jobs = self.model.held_by(worker)
            for job in jobs:
                self._settle(worker, job, len(jobs))
        self.model.free_runs()
        self.model.cancel_unwanted()
        self.world.later(SWEEP_EVERY * (0.5 + self.world.chance.random()), self._sweep)

    def _settle(self, worker: int, job: ClaimedJob, held: int) -> None:
        report = record(job, kind="WorkerLost", message="its worker was lost", at=self.clock.now(), worker=str(worker))
        outcome = after_loss(job, report, held=held)
        if isinstance(outcome, Finish):
            self.model.finish(worker, [outcome])
        else:
            self.model.requeue(worker, [outcome])


def _answer(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _in_history(result: Any) -> Any:
    """The part of a response that goes into the history."""
    if isinstance(result, set):
        return sorted(result)
    return len(result) if isinstance(result, list | tuple | dict) else result
