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

import structlog

from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.core.errors import LeaseLostError, PayloadError
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
    LOAD_SNAPSHOTS,
    LOAD_TICKS,
    RUNS_CHANNEL,
    WAKE_RUNS,
    RunTurn,
    commit_turn,
)
from tidemill.store.wake import Listener
from tidemill.store.workers import END_WORKER, WorkerCard, register_worker
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.flows")

CLAIM_AT_ONCE = 200
SAFETY_POLL = 1.0
IDLE_BEFORE_RELEASE = 0.3


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
        self._dirty: dict[int, DurableRun] = {}
        self._idle_since: dict[int, float] = {}
        self._writes = asyncio.Event()
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._fenced: str | None = None

    def stop(self) -> None:
        """Write down what there is and let go of everything."""
        self._stop.set()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def has_news(self, run: DurableRun) -> None:
        """A run has something to write down."""
        self._dirty[run.number] = run
        self._writes.set()

    def expect(self, due: float) -> None:
        """Look into the inbox at this time."""
        delay = max(0.0, due - SYSTEM_CLOCK.now())
        if delay < SAFETY_POLL:
            asyncio.get_running_loop().call_later(delay + 0.002, self._news.set)

    def adopt(self, number: int, workflow: Workflow, event: Event) -> DurableRun:
        """Drive a run that this process has just stored as its own."""
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
        if self._fenced is not None:
            raise LeaseLostError(f"the keeper of runs {self._fenced}; its runs have gone to others")
        await self._database.fetch(END_WORKER, self.worker_id, "stopped", patience=5.0)

    # -- writing ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Commit what the runs have to write, all of them together, as fast as the database takes it."""
        connection: Connection | None = None
        while True:
            await self._writes.wait()
            self._writes.clear()
            if not self._dirty:
                continue
            dirty, self._dirty = self._dirty, {}
            taken = [(run, *run.take_turn()) for run in dirty.values()]
            turns = [turn for _, turn, _ in taken]
            while True:
                try:
                    if connection is None or connection.is_closed():
                        connection = await self._database.connect()
                    mine = await commit_turn(self._database, connection, self.worker_id, turns)
                    break
                except Exception as error:
                    if not (is_away(error) or is_full(error)):
                        raise
                    log.warning("the database is away", error=str(error), runs=len(turns))
                    mine = await self._already_written(turns)
                    if mine is not None:
                        break
            for run, turn, after in taken:
                self._written(run, turn, after, run.number in mine)

    async def _already_written(self, turns: list[RunTurn]) -> set[int] | None:
        """After a lost answer: whether the turn had been committed all the same."""
        numbers = [turn.run_id for turn in turns]
        rows = await self._database.fetch(
            "SELECT id, seq FROM tidemill.run WHERE id = ANY ($1)", numbers, patience=None
        )
        stored = {row["id"]: row["seq"] for row in rows}
        written = {turn.run_id for turn in turns if turn.ticks and stored.get(turn.run_id) == turn.last}
        return written if len(written) == len([turn for turn in turns if turn.ticks]) and written else None

    def _written(self, run: DurableRun, turn: RunTurn, after: list[Any], still_mine: bool) -> None:
        if not still_mine:
            log.warning("a run belongs to another owner now", run=run.number)
            self._forget(run)
            return
        run.loop.execute(after)
        if turn.state is not None or turn.release:
            self._forget(run)
        elif run.loop.state.idle:
            self._idle_since[run.number] = asyncio.get_running_loop().time()
        else:
            self._idle_since.pop(run.number, None)

    def _forget(self, run: DurableRun) -> None:
        self.runs.pop(run.number, None)
        self._idle_since.pop(run.number, None)
        self._dirty.pop(run.number, None)
        if run.is_running:
            run.drop()

    # -- taking up and letting go -----------------------------------------------------------------

    async def _take_up(self) -> None:
        """Claim runs that need an owner, bring them what is due, let the idle ones go."""
        while True:
            try:
                while await self._claim() == CLAIM_AT_ONCE:
                    pass
                await self._bring_inbox()
                self._release_idle()
            except Exception as error:
                if not (is_away(error) or is_full(error)):
                    raise
                log.warning("the database is away", error=str(error))
            try:
                async with asyncio.timeout(IDLE_BEFORE_RELEASE if self._idle_since else SAFETY_POLL):
                    await self._news.wait()
            except TimeoutError:
                await self._database.fetch(WAKE_RUNS, patience=None)
            self._news.clear()

    async def _claim(self) -> int:
        rows = await self._database.fetch(
            CLAIM_RUNS, self.worker_id, list(self._workflows), CLAIM_AT_ONCE, patience=None
        )
        numbers = [row["id"] for row in rows]
        if not numbers:
            return 0
        snapshots = {row["run_id"]: row for row in await self._database.fetch(LOAD_SNAPSHOTS, numbers, patience=None)}
        ticks: dict[int, list[bytes]] = {}
        for row in await self._database.fetch(LOAD_TICKS, numbers, patience=None):
            ticks.setdefault(row["run_id"], []).append(row["data"])
        for row in rows:
            number, snapshot = row["id"], snapshots.get(row["id"])
            self._resume(row, None if snapshot is None else snapshot["data"], ticks.get(number, []))
        return len(rows)

    def _resume(self, row: Any, snapshot: bytes | None, ticks: list[bytes]) -> None:
        workflow, number = self._workflows[row["workflow"]], row["id"]
        now = SYSTEM_CLOCK.now()
        if row["seq"] == 0:
            self.runs[number] = run = DurableRun(workflow, number, self, stored=0)
            run.loop.post(Started(now, decode_event(row["input"])))
            return
        try:
            state = restore(workflow, snapshot, ticks)
        except PayloadError as error:
            self._park(workflow, row, str(error))
            return
        self.runs[number] = run = DurableRun(workflow, number, self, stored=row["seq"], state=state)
        run.loop.post(Resumed(now))

    def _park(self, workflow: Workflow, row: Any, why: str) -> None:
        """A run that does not fit the code any more waits, loudly, for somebody to decide."""
        log.error("run parked: it does not fit the workflow any more", run=row["id"], why=why)
        run = DurableRun(workflow, row["id"], self, stored=row["seq"])
        turn = run.turn()
        turn.state, turn.note = "parked", f"{why}; the workflow has changed since: cancel the run, or deploy what fits"

    async def _bring_inbox(self) -> None:
        if not self.runs:
            return
        for row in await self._database.fetch(DUE_INBOX, list(self.runs), patience=None):
            run = self.runs.get(row["run_id"])
            if run is None or not run.is_running or row["id"] in run.turn().used:
                continue
            tick = Elapsed(SYSTEM_CLOCK.now(), row["timer"]) if row["timer"] else decode_tick(row["data"])
            run.take_in(row["id"], tick)

    def _release_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        for number, since in list(self._idle_since.items()):
            run = self.runs.get(number)
            if run is not None and number not in self._dirty and now - since >= IDLE_BEFORE_RELEASE:
                run.turn().release = True
                del self._idle_since[number]

    async def _let_go_of_all(self) -> None:
        """Give every run back for others to take up, with what has happened to it so far."""
        for run in list(self.runs.values()):
            run.turn().release = True
        while self.runs:
            await asyncio.wait([run.result for run in self.runs.values()])

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
