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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.errors import LeaseLostError, NotFoundError, StoreError
from tidemill.core.job import ClaimedJob, Finish, Requeue
from tidemill.engine.jobs.task import Task
from tidemill.engine.lease import ProcessStatus
from tidemill.engine.role import Role
from tidemill.engine.runs.durable_run import DurableRun, RunKind
from tidemill.engine.runs.run_store import Loaded, Row
from tidemill.engine.runs.run_worker import RunWorker, run_worker_role
from tidemill.engine.simulation.checks import Watched
from tidemill.engine.simulation.world import Process, World, patiently
from tidemill.engine.worker.isolation import Children
from tidemill.engine.worker.job_runner import JobRunner
from tidemill.engine.worker.outcome import after_loss, record
from tidemill.store.jobs.workers import WorkerCard
from tidemill.store.runs.model import Notification, StoreModel, StoreView
from tidemill.store.runs.turns import RunTurn

LEASE = 3.0
HEARTBEAT = 0.7
SWEEP_EVERY = 0.5
BACK_AFTER = 0.3
LOOK_EVERY = 1.0
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
        self.model = StoreModel(self.world.clock, self._tell)
        self.watched = Watched(self.model, self.world.broken.append)
        self.committed: dict[str, list[Any]] = {}
        """What steps have written in transactions of their own, by run."""
        self._kinds, self._tasks, self._run_worker = kinds, tasks, run_worker
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
        self._over(process)

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

    def _over(self, process: Process) -> None:
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
            self._over(victim)

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
            process.hear(role.stop)

    def _victim(self) -> Process | None:
        return self.world.chance.choice(self.world.processes) if self.world.processes else None

    # -- the store --------------------------------------------------------------------------------

    async def ask(self, process: Process, name: str, statement: Callable[[StoreView], Any]) -> Any:
        """Send a statement to the store and wait for the response. Raises `ConnectionError` if it is lost."""
        world, answer = self.world, process.expect()

        def arrives() -> None:
            view = self.model.look()
            world.later(self._duration(), lambda: done(view))

        def done(view: StoreView) -> None:
            if answer.done() and world.chance.random() < 0.5:
                return  # The connection broke before the statement arrived.
            try:
                result, error = statement(view), None
            except Exception as raised:  # noqa: BLE001 - it is for the one who asked
                result, error = None, raised
            world.note(process.name, name, _told(result))
            world.later(self._travel(), lambda: process.hear(_answer, answer, result, error))

        world.later(self._travel(), arrives)
        return await answer

    def _travel(self) -> float:
        return 0.0001 + 0.001 * self.world.chance.random()

    def _duration(self) -> float:
        if self.faults.slow and self.world.chance.random() < self.faults.slow:
            return SLOW * self.world.chance.random()
        return 0.0001 + 0.002 * self.world.chance.random()

    def listen(self, process: Process, channel: str, hear: Callable[[str], None]) -> None:
        self._listening[process] = (channel, hear)

    def _tell(self, notification: Notification) -> None:
        said_on, payload = notification
        for process, (channel, hear) in self._listening.items():
            if not process.alive or (channel != said_on and not (channel == "jobs" and said_on == "control")):
                continue
            times = (self.world.chance.random() >= self.faults.lost) + (
                self.world.chance.random() < self.faults.repeated
            )
            for _ in range(times):
                self.world.later(self._travel(), lambda process=process, hear=hear: process.hear(hear, payload))

    def _sweep(self) -> None:
        """One sweep of maintenance."""
        for worker in self.model.end_lapsed():
            self.world.note("sweeper", "ends", worker)
            for job in self.model.held_by(worker):
                self._settle(worker, job)
        self.model.free_runs()
        self.model.cancel_unwanted()
        self.world.later(SWEEP_EVERY * (0.5 + self.world.chance.random()), self._sweep)

    def _settle(self, worker: int, job: ClaimedJob) -> None:
        report = record(job, kind="WorkerLost", message="its worker was lost", at=self.clock.now(), worker=str(worker))
        outcome = after_loss(job, report)
        if isinstance(outcome, Finish):
            self.model.finish(worker, [outcome])
        else:
            self.model.requeue(worker, [outcome])


class SimulatedRunStore:
    """The store as one process reaches it: a `RunStore`, and a `RunPost`."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self.simulation = simulation
        self.process = process
        self.clock = simulation.clock
        self._model = simulation.model

    idle_poll = 1.0  # Wake-ups are lost here.

    def lease(
        self,
        describe: Callable[[], WorkerCard],
        process_status: Callable[[], ProcessStatus] = ProcessStatus,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
    ) -> SimulatedLease:
        return SimulatedLease(self, describe, lease_seconds, heartbeat_seconds)

    async def listen(self, hear: Callable[[str], None], ready: asyncio.Event) -> None:
        self.simulation.listen(self.process, "runs", hear)
        hear("*")
        ready.set()
        await asyncio.Event().wait()

    # -- writing ----------------------------------------------------------------------------------

    async def reserve(self, count: int) -> list[int]:
        return await self.ask("reserve", lambda: self._model.reserve(count))

    async def commit(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        name = f"turn {number} of {owner}"
        return await self.simulation.ask(
            self.process, name, lambda view: self._model.commit(owner, number, turns, view)
        )

    async def commit_within(self, connection: Any, owner: int, number: int, turn: RunTurn) -> set[int]:
        def statement(view: StoreView) -> set[int]:
            mine = self._model.commit(owner, number, [turn], view)
            if mine:
                self.simulation.committed.setdefault(str(turn.run_id), []).extend(connection.written)
            return mine

        return await self.simulation.ask(self.process, f"turn {number} of {owner}, with a step's own", statement)

    async def written(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        return await self.ask("written", lambda: self._model.written(owner, number, turns))

    async def lend(self) -> SimulatedConnection:
        await self.ask("connect", lambda: None)
        return SimulatedConnection(self)

    async def close(self) -> None: ...

    # -- taking up --------------------------------------------------------------------------------

    async def resume_stopped(self, kinds: Sequence[str]) -> None:
        await self.ask("resume_stopped", lambda: self._model.resume_stopped(kinds))

    async def claim(
        self,
        owner: int,
        kinds: Sequence[str],
        versions: Sequence[str | None],
        room: int,
        limits: Sequence[int | None],
    ) -> Sequence[Row]:
        return await self.ask("claim", lambda: _rows(self._model.claim(owner, kinds, versions, room, limits)))

    async def find_own(self, owner: int, held: Sequence[int], room: int) -> Sequence[Row]:
        return await self.ask("find own", lambda: _rows(self._model.find_own(owner, held, room)))

    async def load(self, numbers: Sequence[int]) -> Loaded:
        return await self.ask("load", lambda: self._model.load(numbers))

    async def due(self, owner: int, taken: Sequence[int], room: int) -> Sequence[Row]:
        return await self.ask("due", lambda: _rows(self._model.due(owner, taken, room)))

    async def wake(self) -> float | None:
        return await self.ask("wake", self._model.wake)

    async def clear_away(self) -> None:
        await self.ask("clear away", self._model.cancel_unwanted)

    # -- for steps --------------------------------------------------------------------------------

    async def send(self, run: int, tick: bytes) -> None:
        if not await self.ask("send", lambda: self._model.send(run, tick)):
            raise NotFoundError(f"run {run} has ended: it takes nothing more")

    async def publish(self, run: int, shown: Sequence[bytes]) -> None:
        await self.ask("publish", lambda: self._model.publish(run, shown))

    async def noted(self, run: int, work: int) -> Sequence[bytes]:
        return await self.ask("noted", lambda: self._model.noted(run, work))

    async def start(self, **row: Any) -> int:
        """Start a run from a simulated process; with a key it is started once."""
        return (await self.ask("start", lambda: self._model.start(**row)))[0]

    async def show(self, number: int) -> Row:
        return await self.ask("show", lambda: msgspec.structs.asdict(self._model.runs[number]))

    async def ask(self, name: str, statement: Callable[[], Any]) -> Any:
        return await patiently(lambda: self.simulation.ask(self.process, name, lambda view: statement()))


class SimulatedLease:
    """A lease that a simulated process renews while it can reach the store."""

    def __init__(
        self, runs: SimulatedRunStore, describe: Callable[[], WorkerCard], seconds: float, heartbeat: float
    ) -> None:
        self._runs, self._describe = runs, describe
        self._seconds, self._heartbeat = seconds, heartbeat
        self._model = runs.simulation.model
        self._owner = 0
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, on_lost: Callable[[str], None]) -> int:
        card = self._describe()
        self._owner = await self._runs.ask("join", lambda: self._model.register(self._seconds, card.versions))
        self._renewing = asyncio.create_task(self._renew(on_lost))
        return self._owner

    async def _renew(self, on_lost: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            if not await self._runs.ask("renew", lambda: self._model.renew(self._owner, self._seconds)):
                on_lost("was taken for dead")
                return

    async def stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()

    async def end(self, reason: str) -> None:
        await self._runs.ask("leave", lambda: self._model.end_worker(self._owner))
        await self._runs.ask("free runs", self._model.free_runs)


class SimulatedConnection:
    """A connection for a step's own transaction: what the step executes is kept, and committed with its turn."""

    def __init__(self, runs: SimulatedRunStore) -> None:
        self._runs = runs
        self.written: list[Any] = []

    async def execute(self, statement: str, *args: Any) -> None:
        await self._runs.simulation.ask(self._runs.process, "execute", lambda view: None)
        if statement != "BEGIN" and not statement.startswith("SET CONSTRAINTS"):
            self.written.append((statement, *args))

    def terminate(self) -> None: ...


class SimulatedWorker:
    """A worker: a real job runner with real tasks, whose jobs are claimed from the model."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process
        self._runs = SimulatedRunStore(simulation, process)
        self._model = simulation.model

    async def run(self) -> None:
        news = asyncio.Event()
        tasks = self._simulation._tasks(self._runs)
        queues = sorted({task.options.queue for task in tasks.values()} | {"default"})
        runner = JobRunner(tasks, 4, Children(None), self._simulation.clock, news.set)
        card = WorkerCard("simulated", 0, tuple(queues), tuple(tasks), 4, {})
        lease = self._runs.lease(lambda: card, lease_seconds=LEASE, heartbeat_seconds=HEARTBEAT)
        worker = await lease.take(self._fenced)
        self._simulation.listen(self._process, "jobs", lambda payload: news.set())
        while True:
            finished, requeues = runner.take_ended()
            await self._settle(worker, finished, requeues)
            if runner.slots:
                await self._cancel(runner, list(runner.slots))
            if room := 4 - runner.count:
                await self._claim(worker, runner, queues, room)
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await news.wait()
            except TimeoutError:
                held = runner.held_ids()
                await self._ask("strays", lambda held=held: self._model.release_unheld(worker, held))
            news.clear()

    async def _cancel(self, runner: JobRunner, held: list[int]) -> None:
        for job, attempt, reason in await self._ask("cancels", lambda: self._model.find_cancels(held)):
            runner.cancel(job, attempt, reason)

    async def _claim(self, worker: int, runner: JobRunner, queues: Sequence[str], room: int) -> None:
        try:
            claim = self._simulation.ask(
                self._process, "claim jobs", lambda view: self._model.claim_jobs(worker, queues, room)
            )
            runner.take_in(await claim)
        except ConnectionError:
            pass  # What was claimed in an answer that never arrived is given back on the next round.

    async def _settle(self, worker: int, finished: list[Finish], requeues: list[Requeue]) -> None:
        if finished:
            await self._ask("finish", lambda: self._model.finish(worker, finished))
        if requeues:
            await self._ask("requeue", lambda: self._model.requeue(worker, requeues))

    def _fenced(self, why: str) -> None:
        self._simulation._over(self._process)

    def _ask(self, name: str, statement: Callable[[], Any]) -> Awaitable[Any]:
        return self._runs.ask(name, statement)


def _answer(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _rows(rows: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(row) for row in rows]


def _told(result: Any) -> Any:
    """The part of a response that goes into the history."""
    if isinstance(result, set):
        return sorted(result)
    return len(result) if isinstance(result, list | tuple | dict) else result
