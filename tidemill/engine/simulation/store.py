"""The store as a simulated process reaches it: its requests, its lease, and a step's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.errors import NotFoundError
from tidemill.engine.containment.watchdog import Watchdog
from tidemill.engine.roles.lease import ProcessStatus
from tidemill.engine.runs.run_store import Loaded, Row
from tidemill.engine.simulation.world import Process, patiently
from tidemill.store.jobs.workers import Mode, WorkerCard
from tidemill.store.runs.model_rows import StoreView
from tidemill.store.runs.run_turn import RunTurn

if TYPE_CHECKING:
    from tidemill.engine.simulation.simulation import Simulation

LEASE = 3.0
HEARTBEAT = 0.7


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
        watchdog: Watchdog | None = None,
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

    async def declare_versions(self, versions: Mapping[str, tuple[str, bytes]]) -> None:
        await self.ask("declare_versions", lambda: self._model.declare_versions(versions))

    async def read_definitions(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]:
        return await self.ask("definitions", lambda: self._model.read_definitions(wanted))

    async def claim(
        self,
        owner: int,
        kinds: Sequence[str],
        versions: Sequence[str | None],
        room: int,
        limits: Sequence[int | None],
        suspicions: int = 0,
    ) -> Sequence[Row]:
        given = (owner, kinds, versions, room, limits, suspicions)
        return await self.ask("claim", lambda: _rows(self._model.claim(*given)))

    async def least_suspected(self, kinds: Sequence[str]) -> int:
        return await self.ask("suspects", lambda: self._model.least_suspected(kinds))

    async def die(self) -> None:
        """End this process, as a step or a task does that calls `os._exit`; does not return."""
        self.simulation.process_ended(self.process)
        await asyncio.Event().wait()

    async def find_own(self, owner: int, held: Sequence[int], room: int) -> Sequence[Row]:
        return await self.ask("find own", lambda: _rows(self._model.find_own(owner, held, room)))

    async def load(self, numbers: Sequence[int]) -> Loaded:
        return await self.ask("load", lambda: self._model.load(numbers))

    async def due(self, owner: int, taken: Sequence[int], room: int) -> Sequence[Row]:
        return await self.ask("due", lambda: _rows(self._model.due(owner, taken, room)))

    async def wake(self) -> float | None:
        return await self.ask("wake", self._model.wake)

    async def mode(self) -> Mode:
        return "run"

    async def cancel_unneeded_jobs(self) -> None:
        await self.ask("clear away", self._model.cancel_unwanted)

    # -- for steps --------------------------------------------------------------------------------

    async def send(self, run: int, tick: bytes) -> None:
        if not await self.ask("send", lambda: self._model.send(run, tick)):
            raise NotFoundError(f"run {run} has ended: it takes nothing more")

    async def publish(self, run: int, shown: Sequence[bytes]) -> None:
        await self.ask("publish", lambda: self._model.publish(run, shown))

    async def read_notes(self, run: int, work: int) -> Sequence[bytes]:
        return await self.ask("noted", lambda: self._model.read_notes(run, work))

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


def _rows(rows: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(row) for row in rows]
