"""The store of runs: the interface that a run worker needs, and its implementation on PostgreSQL.

The run worker decides; a `RunStore` stores. Everything that another owner may see or prevent goes through here, one
operation at a time, so that the simulation can put a crash, a delay or a second owner between any two of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.engine.containment.watchdog import Watchdog
from tidemill.engine.roles.lease import Lease, ProcessStatus, RenewedLease
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import is_transient
from tidemill.store.jobs.workers import CONTROL_CHANNEL, Mode, WorkerCard, read_host_control
from tidemill.store.notify import Listener
from tidemill.store.runs.claims import (
    FIND_SUSPECTS,
    NOTIFY_OWNERS,
    OWN_RUNS,
    RUNS_CHANNEL,
    WAKE_RUNS,
    claim_runs,
    free_runs,
    resume_runs,
)
from tidemill.store.runs.inbox import DUE_INBOX, NOTED_FOR_WORK, send_to_run
from tidemill.store.runs.log import trim_step_logs, write_step_logs
from tidemill.store.runs.published import publish
from tidemill.store.runs.rates import begin_rated
from tidemill.store.runs.run_turn import RunTurn
from tidemill.store.runs.turns import WRITTEN_RUNS, cancel_unwanted, commit_turn, reserve_numbers
from tidemill.store.runs.versions import Definitions, declare_versions, load_journals, read_definitions

log = structlog.get_logger("tidemill.runs")

IDLE_POLL = 30.0
POLL_WITHOUT_WAKE_UPS = 1.0
SPARE_SECONDS = 10.0  # Seconds after which a connection for turns that is not needed is closed.

Row = Mapping[str, Any]

#: What is stored of runs: the newest snapshot of each, and the ticks after it.
Loaded = tuple[dict[int, bytes], dict[int, list[bytes]]]


class RunStore(Protocol):
    """What a run worker needs of the store. Only `commit` and `commit_within` are not safe to repeat."""

    @property
    def clock(self) -> Clock: ...

    # -- being an owner ---------------------------------------------------------------------------

    @property
    def idle_poll(self) -> float:
        """How many seconds a worker without runs waits for a wake-up before it polls."""
        ...

    def lease(
        self,
        describe: Callable[[], WorkerCard],
        process_status: Callable[[], ProcessStatus] = ProcessStatus,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        watchdog: Watchdog | None = None,
    ) -> RenewedLease:
        """The lease that covers the runs of one owner; when it ends, other owners take them."""
        ...

    async def listen(self, hear: Callable[[str], None], ready: asyncio.Event) -> None:
        """Call back for each notification until cancelled. `ready` is set once no notification can be missed."""
        ...

    # -- writing ----------------------------------------------------------------------------------

    async def reserve(self, count: int) -> list[int]:
        """Reserve ids for runs that an owner starts itself."""
        ...

    async def commit(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        """Write a turn by its number; returns the runs that were still the owner's."""
        ...

    async def commit_within(self, connection: Any, owner: int, number: int, turn: RunTurn) -> set[int]:
        """Write one run's turn together with an open transaction."""
        ...

    async def written(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        """The runs of a turn that an earlier attempt wrote before its response was lost."""
        ...

    async def lend(self) -> Any:
        """A connection for a step's own transaction."""
        ...

    async def send(self, run: int, tick: bytes) -> None:
        """Put a tick into the inbox of a run."""
        ...

    async def close(self) -> None: ...

    # -- taking up --------------------------------------------------------------------------------

    async def resume_stopped(self, kinds: Sequence[str]) -> None: ...

    async def declare_versions(self, versions: Mapping[str, tuple[str, bytes]]) -> None:
        """Store the version of each kind with what later versions need to know of it."""
        ...

    async def read_definitions(self, wanted: Sequence[tuple[str, str]]) -> Definitions:
        """What was stored of these kinds and versions."""
        ...

    async def claim(
        self,
        owner: int,
        kinds: Sequence[str],
        versions: Sequence[str | None],
        room: int,
        limits: Sequence[int | None],
        suspicions: int = 0,
    ) -> Sequence[Row]:
        """Claim runs that are suspected so often; of a kind with a limit, no more are begun and not ended than that."""
        ...

    async def least_suspected(self, kinds: Sequence[str]) -> int:
        """How often the least suspected run is suspected that waits for an owner; 0 if there is none."""
        ...

    async def find_own(self, owner: int, held: Sequence[int], room: int) -> Sequence[Row]:
        """Runs that this owner owns but does not have in memory."""
        ...

    async def load(self, numbers: Sequence[int]) -> Loaded: ...

    async def due(self, owner: int, taken: Sequence[int], room: int) -> Sequence[Row]:
        """Due inbox rows of this owner's runs, except those that it has already read."""
        ...

    async def wake(self) -> float | None:
        """Wake runs for which something is due; returns in how many seconds the next timer is."""
        ...

    async def cancel_unneeded_jobs(self) -> None:
        """Cancel jobs that runs no longer need and that no worker has started."""
        ...

    async def mode(self) -> Mode:
        """What operators have asked of all work on this host."""
        ...


class RunPost(Protocol):
    """What a step that runs in another process needs of its run's store."""

    @property
    def clock(self) -> Clock: ...

    async def send(self, run: int, tick: bytes) -> None: ...

    async def publish(self, run: int, shown: Sequence[bytes]) -> None: ...

    async def read_notes(self, run: int, work: int) -> Sequence[bytes]:
        """What a piece of work has noted, in the journal or still in the inbox."""
        ...


class PostgresRunStore:
    """Runs in PostgreSQL, over any number of lost connections."""

    clock: Clock = SYSTEM_CLOCK

    def __init__(self, database: Database) -> None:
        self._database = database
        #: Connections for turns and due rows, as many as were in use at the same time, and when each was used last.
        self._free: list[tuple[float, Connection]] = []

    # -- being an owner ---------------------------------------------------------------------------

    @property
    def idle_poll(self) -> float:
        return IDLE_POLL if self._database.can_listen else POLL_WITHOUT_WAKE_UPS

    def lease(
        self,
        describe: Callable[[], WorkerCard],
        process_status: Callable[[], ProcessStatus] = ProcessStatus,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        watchdog: Watchdog | None = None,
    ) -> Lease:
        return Lease(
            self._database,
            describe,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            process_status=process_status,
            watchdog=watchdog,
            after_end=self._free_runs,
        )

    async def _free_runs(self) -> None:
        """Release runs that were started for this owner while it was stopping."""
        await free_runs(self._database, patience=5.0)
        await self._database.fetch(NOTIFY_OWNERS, patience=5.0)

    async def listen(self, hear: Callable[[str], None], ready: asyncio.Event) -> None:
        listener = Listener(self._database)
        listener.on(RUNS_CHANNEL, hear)
        listener.on(CONTROL_CHANNEL, lambda _: hear("control"))
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.run())
            await listener.wait_ready()
            ready.set()

    # -- writing ----------------------------------------------------------------------------------

    async def reserve(self, count: int) -> list[int]:
        return await reserve_numbers(self._database, count)

    async def commit(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        async with self._connected() as connection:
            mine = await commit_turn(self._database, connection, owner, number, turns)
            await self._write_logs(connection, turns)
            return mine

    async def commit_within(self, connection: Any, owner: int, number: int, turn: RunTurn) -> set[int]:
        mine = await commit_turn(self._database, connection, owner, number, [turn])
        await connection.execute("COMMIT" if mine else "ROLLBACK")
        await self._write_logs(connection, [turn])
        return mine

    async def _write_logs(self, connection: Any, turns: Sequence[RunTurn]) -> None:
        """Store the log lines of steps. An error is only logged: the turn is already written."""
        logs = [each for turn in turns for each in turn.logs]
        trimmed = [turn.run_id for turn in turns if turn.trim_logs]
        if not logs and not trimmed:
            return
        try:
            if logs:
                await write_step_logs(self._database, connection, logs)
            if trimmed:
                await trim_step_logs(self._database, connection, trimmed)
        except Exception as error:  # noqa: BLE001 - only log lines are lost
            log.warning("what steps logged cannot be kept", attempts=len(logs), error=str(error))

    async def written(self, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        numbers, lasts = [turn.run_id for turn in turns], [turn.last for turn in turns]
        return {row[0] for row in await self._fetch(WRITTEN_RUNS, owner, number, numbers, lasts)}

    async def lend(self) -> Connection:
        return await self._database.connect(patience=30.0)

    async def close(self) -> None:
        for _, connection in self._free:
            connection.terminate()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        connection = self._free.pop()[1] if self._free else None
        if connection is None or connection.is_closed():
            connection = await self._database.connect_to_look_up()
        try:
            yield connection
        finally:
            now = asyncio.get_running_loop().time()
            self._free.append((now, connection))
            if now - self._free[0][0] > SPARE_SECONDS:
                self._free.pop(0)[1].terminate()

    # -- taking up --------------------------------------------------------------------------------

    async def resume_stopped(self, kinds: Sequence[str]) -> None:
        await resume_runs(self._database, kinds)

    async def declare_versions(self, versions: Mapping[str, tuple[str, bytes]]) -> None:
        await declare_versions(self._database, versions)

    async def read_definitions(self, wanted: Sequence[tuple[str, str]]) -> Definitions:
        return await read_definitions(self._database, wanted)

    async def claim(
        self,
        owner: int,
        kinds: Sequence[str],
        versions: Sequence[str | None],
        room: int,
        limits: Sequence[int | None],
        suspicions: int = 0,
    ) -> Sequence[Row]:
        return await claim_runs(self._database, owner, kinds, versions, room, limits, suspicions)

    async def least_suspected(self, kinds: Sequence[str]) -> int:
        rows = await self._fetch(FIND_SUSPECTS, list(kinds))
        return rows[0]["suspicions"] if rows else 0

    async def find_own(self, owner: int, held: Sequence[int], room: int) -> Sequence[Row]:
        return await self._fetch(OWN_RUNS, owner, list(held), room)

    async def load(self, numbers: Sequence[int]) -> Loaded:
        return await load_journals(self._fetch, numbers)

    async def due(self, owner: int, taken: Sequence[int], room: int) -> Sequence[Row]:
        while True:
            try:
                async with self._connected() as connection:
                    return await connection.fetch(self._database.sql(DUE_INBOX), owner, list(taken), room)
            except Exception as error:
                if not is_transient(error):
                    raise

    async def wake(self) -> float | None:
        (row,) = await self._fetch(WAKE_RUNS)
        rated = await begin_rated(self._database) if row["rated"] else None
        return row["next"] if rated is None else min(rated, row["next"] or rated)

    async def cancel_unneeded_jobs(self) -> None:
        await cancel_unwanted(self._database)

    async def mode(self) -> Mode:
        return await read_host_control(self._database, socket.gethostname())

    # -- for steps that run elsewhere -------------------------------------------------------------

    async def send(self, run: int, tick: bytes) -> None:
        await send_to_run(self._database, run, tick)

    async def publish(self, run: int, shown: Sequence[bytes]) -> None:
        await publish(self._database, run, shown)

    async def read_notes(self, run: int, work: int) -> Sequence[bytes]:
        return [row["data"] for row in await self._database.fetch(NOTED_FOR_WORK, run, work)]

    async def _fetch(self, statement: str, *args: Any) -> list[Any]:
        return await self._database.fetch(statement, *args, patience=None)
