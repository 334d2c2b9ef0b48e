"""The keeper of runs: a process that owns runs, drives them, and writes down what happens to all of them together.

    keeper = RunKeeper(database, {"shop.Article": Article()})
    await keeper.run()                      # until stop()

Ownership hangs on one lease, as a worker's jobs do. Each turn of the commit loop takes what all runs have to write
and commits it in one statement; whatever happens meanwhile goes into the next turn.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Mapping
from typing import Any

import asyncpg
import structlog

from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.core.codec import storable
from tidemill.core.errors import LeaseLostError
from tidemill.core.ticks import Elapsed, Resumed, Started
from tidemill.engine.hands import Hands
from tidemill.engine.isolation import Children
from tidemill.engine.lifeline import Lifeline
from tidemill.flows.durable import DurableRun, restore
from tidemill.flows.events import Event
from tidemill.flows.journal import decode_tick
from tidemill.flows.wire import decode_event
from tidemill.flows.workflow import Workflow
from tidemill.store.database import Connection, Database, is_away, is_full
from tidemill.store.migrate import wait_for_schema
from tidemill.store.runs import (
    CLAIM_RUNS,
    DUE_INBOX,
    FREE_RUNS,
    LOAD_SNAPSHOTS,
    LOAD_TICKS,
    OWN_RUNS,
    RUNS_CHANNEL,
    TELL_OWNERS,
    UNPARK_RUNS,
    WAKE_RUNS,
    RunTurn,
    commit_turn,
    written_runs,
)
from tidemill.store.wake import Listener
from tidemill.store.workers import END_WORKER, WorkerCard, register_worker
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.flows")

CLAIM_AT_ONCE = 200
SAFETY_POLL = 1.0
IDLE_BEFORE_RELEASE = 0.3
MOST_RUNS = 20_000
LOOK_FOR_OWN = 5.0
LETTING_GO = 10.0

#: Two statements met head-on: one of them has to be said again.
_CLASHES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class RunKeeper:
    """Owns and drives the durable runs of these workflows."""

    def __init__(
        self, database: Database, workflows: Mapping[str, Workflow], *, lease: float = 15.0, heartbeat: float = 3.0
    ) -> None:
        self.worker_id = 0
        self.runs: dict[int, DurableRun] = {}
        self._database = database
        self._workflows = workflows
        self._lease = lease
        self._heartbeat = heartbeat
        self._dirty: dict[DurableRun, None] = {}
        self._idle_since: dict[int, float] = {}
        self._taken: set[int] = set()  # inbox rows that a run has, as long as a reading may still show them
        self._settled: set[int] = set()  # those of them whose turn has been written
        self._turn_number = 0
        self._connection: Connection | None = None
        self._wake_at = 0.0
        self._look_for_own_at = 0.0
        self._writes = asyncio.Event()
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._fenced: str | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether it takes up nothing more."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Write down what there is and let go of everything."""
        self._stop.set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def has_news(self, run: DurableRun) -> None:
        """A run has something to write down."""
        self._dirty[run] = None
        self._writes.set()

    def expect(self, due: float) -> None:
        """Look into the inbox at this time."""
        delay = max(0.0, due - SYSTEM_CLOCK.now())
        if delay < SAFETY_POLL:
            asyncio.get_running_loop().call_later(delay + 0.002, self._news.set)

    def adopt(self, number: int, workflow: Workflow, event: Event) -> DurableRun | None:
        """Drive a run that this process has just stored as its own; a keeper that stops leaves it to others."""
        if self.is_stopping or number in self.runs:
            return self.runs.get(number)
        run = self.runs[number] = DurableRun(workflow, number, self, stored=0)
        run.start(event)
        return run

    async def run(self) -> None:
        """Own and drive runs until told to stop. Raises `LeaseLostError` when taken for dead."""
        await self._database.open()
        await wait_for_schema(self._database)
        self.worker_id = await register_worker(self._database, self._card(), lease=self._lease)
        # A keeper runs no jobs: its hands are empty, and the lifeline only renews.
        hands = Hands({}, 1, Children(None), SYSTEM_CLOCK, lambda: None)
        hands.worker = f"{socket.gethostname()}:{os.getpid()}#{self.worker_id}"
        lifeline = Lifeline(
            self._database,
            self.worker_id,
            hands,
            lease=self._lease,
            heartbeat=self._heartbeat,
            status=lambda: "running",
            on_fenced=self._fence,
        )
        lifeline.start()
        await self._database.fetch(UNPARK_RUNS, list(self._workflows), patience=None)
        listener = Listener(self._database)
        listener.on(RUNS_CHANNEL, lambda _: self._news.set())
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(listener.run()), group.create_task(self._take_up())]
                writing = group.create_task(self._write())
                await listener.wait_ready()
                self._ready.set()
                await self._stop.wait()
                for helper in helpers:
                    helper.cancel()
                if self._fenced is None:
                    await self._let_go_of_all()
                writing.cancel()
        finally:
            self._ready.set()
            await asyncio.to_thread(lifeline.stop)
            for run in self.runs.values():
                run.drop()
            if self._connection is not None:
                self._connection.terminate()
        if self._fenced is not None:
            raise LeaseLostError(f"the keeper of runs {self._fenced}; its runs have gone to others")
        await self._database.fetch(END_WORKER, self.worker_id, "stopped", patience=5.0)
        await self._database.fetch(FREE_RUNS, patience=5.0)  # What was started in its name as it stopped.
        await self._database.fetch(TELL_OWNERS, patience=5.0)

    # -- writing ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Commit what the runs have to write, all of them together, as fast as the database takes it."""
        while True:
            await self._writes.wait()
            self._writes.clear()
            dirty, self._dirty = self._dirty, {}
            taken = [(run, *run.take_turn()) for run in dirty if not run.let_go]
            if not taken:
                continue
            mine = await self._commit([turn for _, turn, _ in taken])
            for run, turn, after in taken:
                self._written(run, turn, after, run.number in mine)

    async def _commit(self, turns: list[RunTurn]) -> set[int]:
        """Write a turn, however often it takes; returns the runs that were still ours."""
        self._turn_number += 1
        return await self._commit_as(self._turn_number, turns)

    async def _commit_as(self, number: int, turns: list[RunTurn]) -> set[int]:
        uncertain = False
        while True:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._database.connect()
                connection = self._connection
                mine = await commit_turn(self._database, connection, self.worker_id, number, turns)
                if uncertain and len(mine) < len(turns):
                    mine |= await written_runs(self._database, connection, self.worker_id, number, turns)
                return mine
            except _CLASHES:
                continue
            except Exception as error:  # noqa: BLE001 - what is not passing is found and parked
                if is_away(error) or is_full(error):
                    log.warning("the database is away", error=str(error), runs=len(turns))
                    uncertain = True
                    if is_full(error):
                        await asyncio.sleep(SAFETY_POLL)
                    continue
                return await self._commit_without_the_bad(number, turns, error)

    async def _commit_without_the_bad(self, number: int, turns: list[RunTurn], error: Exception) -> set[int]:
        """The database refuses something in this turn: find the run that it is in, and park that one alone."""
        if len(turns) > 1:
            half = len(turns) // 2
            return await self._commit_as(number, turns[:half]) | await self._commit_as(number, turns[half:])
        (turn,) = turns
        if turn.state == "parked":
            raise error
        log.error("run parked: the database refuses what it has to write", run=turn.run_id, error=str(error))
        note = storable(f"{type(error).__name__}: {error}; what the run had to write could not be written: cancel it")
        await self._commit_as(number, [RunTurn(turn.run_id, turn.before, turn.before, state="parked", note=note)])
        return set()

    def _written(self, run: DurableRun, turn: RunTurn, after: list[Any], still_mine: bool) -> None:
        self._settled.update(turn.used)
        if not still_mine:
            log.warning("a run is not this owner's any more", run=run.number)
            self._forget(run)
            return
        try:
            run.loop.execute(after)
        except Exception as error:  # noqa: BLE001 - one run's defect must not become everybody's
            run.give_up(error)
            return
        if turn.state is not None or turn.release:
            self._forget(run)
            if turn.release and not turn.awake:
                self._wake_at = 0.0  # Something may have come for it while it was being let go.
                self._news.set()
        elif run.loop.state.idle:
            self._idle_since.setdefault(run.number, asyncio.get_running_loop().time())
        else:
            self._idle_since.pop(run.number, None)

    def _forget(self, run: DurableRun) -> None:
        if self.runs.get(run.number) is run:
            del self.runs[run.number]
            self._idle_since.pop(run.number, None)
        self._dirty.pop(run, None)
        self._taken.difference_update(run.unwritten_inbox())
        run.drop()

    # -- taking up and letting go -----------------------------------------------------------------

    async def _take_up(self) -> None:
        """Claim runs that need an owner, bring them what is due, let the idle ones go."""
        while True:
            pause = SAFETY_POLL
            try:
                pause = await self._wake_sleepers()
                while await self._claim() == CLAIM_AT_ONCE:
                    pass
                await self._bring_inbox()
                self._release_idle()
            except _CLASHES:
                self._news.set()
            except Exception as error:
                if not (is_away(error) or is_full(error)):
                    raise
                log.warning("the database is away", error=str(error))
                self._look_for_own_at = 0.0
            if self._idle_since:
                pause = min(pause, IDLE_BEFORE_RELEASE)
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    async def _wake_sleepers(self) -> float:
        """Every now and then: wake runs for which something is due. Returns how long until the next time."""
        now = asyncio.get_running_loop().time()
        if now >= self._wake_at:
            self._wake_at = now + SAFETY_POLL
            row = await self._database.fetchrow(WAKE_RUNS, patience=None)
            if row is not None and row["next"] is not None:
                # Not later than what a release may have said meanwhile.
                self._wake_at = min(self._wake_at, now + row["next"] + 0.002)
        return max(0.0, self._wake_at - now)

    async def _claim(self) -> int:
        now = asyncio.get_running_loop().time()
        room = min(CLAIM_AT_ONCE, MOST_RUNS - len(self.runs))
        if now >= self._look_for_own_at:
            self._look_for_own_at = now + LOOK_FOR_OWN
            rows = await self._database.fetch(OWN_RUNS, self.worker_id, list(self.runs), CLAIM_AT_ONCE, patience=None)
            await self._load([row for row in rows if row["workflow"] in self._workflows])
        if room <= 0:
            return 0
        rows = await self._database.fetch(CLAIM_RUNS, self.worker_id, list(self._workflows), room, patience=None)
        await self._load(rows)
        return len(rows)

    async def _load(self, rows: list[Any]) -> None:
        """Take up runs that are ours from what is stored of them."""
        numbers = [row["id"] for row in rows]
        if not numbers:
            return
        snapshots = {row["run_id"]: row for row in await self._database.fetch(LOAD_SNAPSHOTS, numbers, patience=None)}
        ticks: dict[int, list[bytes]] = {}
        for row in await self._database.fetch(LOAD_TICKS, numbers, patience=None):
            ticks.setdefault(row["run_id"], []).append(row["data"])
        for row in rows:
            number, snapshot = row["id"], snapshots.get(row["id"])
            if number not in self.runs:
                self._resume(row, None if snapshot is None else snapshot["data"], ticks.get(number, []))

    def _resume(self, row: Any, snapshot: bytes | None, ticks: list[bytes]) -> None:
        workflow, number = self._workflows[row["workflow"]], row["id"]
        now = SYSTEM_CLOCK.now()
        try:
            if row["seq"] == 0:
                first, state = Started(now, decode_event(row["input"])), None
            else:
                first, state = Resumed(now), restore(workflow, snapshot, ticks)
            run = DurableRun(workflow, number, self, stored=row["seq"], state=state)
            run.loop.post(first)
        except Exception as error:  # noqa: BLE001 - one run that does not fit must not end the others
            self._park(workflow, row, str(error) or repr(error))
            return
        self.runs[number] = run

    def _park(self, workflow: Workflow, row: Any, why: str) -> None:
        """A run that does not fit the code any more waits, loudly, for somebody to decide."""
        log.error("run parked: it does not fit the workflow any more", run=row["id"], why=why)
        for run in [run for run in self._dirty if run.number == row["id"]]:
            self._forget(run)
        turn = DurableRun(workflow, row["id"], self, stored=row["seq"]).turn()
        turn.state = "parked"
        turn.note = storable(f"{why}; the workflow has changed since: cancel the run, or deploy what fits")

    async def _bring_inbox(self) -> None:
        if not self.runs:
            return
        settled, self._settled = self._settled, set()
        rows = await self._database.fetch(DUE_INBOX, list(self.runs), patience=None)
        self._taken -= settled  # Their turn was written before this reading: it shows only what is new.
        for row in rows:
            run = self.runs.get(row["run_id"])
            if run is None or not run.is_running or row["id"] in self._taken:
                continue
            self._taken.add(row["id"])
            self._hand_over(run, row)

    def _hand_over(self, run: DurableRun, row: Any) -> None:
        try:
            tick = Elapsed(SYSTEM_CLOCK.now(), row["timer"]) if row["timer"] else decode_tick(row["data"])
        except Exception as error:  # noqa: BLE001 - whatever was sent, the run and its keeper go on
            log.error("what was sent to a run cannot be read here", run=run.number, error=str(error))
            run.pass_over(row["id"], f"something that was sent to it could not be read: {error}")
            return
        try:
            run.take_in(row["id"], tick)
        except Exception as error:  # noqa: BLE001 - one run's defect must not become everybody's
            run.give_up(error)

    def _release_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for number, since in list(self._idle_since.items()):
            run = self.runs.get(number)
            if run is not None and run not in self._dirty and now - since >= IDLE_BEFORE_RELEASE:
                run.turn().release = True
                del self._idle_since[number]

    async def _let_go_of_all(self) -> None:
        """Give every run back for others to take up, with what has happened to it so far."""
        try:
            async with asyncio.timeout(LETTING_GO):
                while runs := list(self.runs.values()):
                    for run in runs:
                        run.turn().release = True
                    await asyncio.wait([run.result for run in runs])
                    await asyncio.sleep(0)
        except TimeoutError:
            log.warning("runs could not be given back: they wait for the lease to lapse", runs=len(self.runs))

    def _fence(self, why: str) -> None:
        self._fenced = why
        self._stop.set()

    def _card(self) -> WorkerCard:
        return WorkerCard(
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=(),
            tasks=tuple(self._workflows),
            concurrency=0,
            versions={"tidemill": VERSION, "python": platform.python_version()},
        )
