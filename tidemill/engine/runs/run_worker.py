"""The run worker: owns runs, drives them, and writes what happens to all of them together.

    store = PostgresRunStore(database)
    role = run_worker_role(RunWorker(store, {"Article": FlowKind(Article())}), store, database)
    await role.run()                        # until stop()

One lease covers all runs of the process, as it does for a worker's jobs. The turns of many runs are committed in one
statement; what happens meanwhile goes into the next one. Two such statements may run at the same time, for different
runs: the database writes while this process computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from tidemill.core.errors import StoreError
from tidemill.engine.containment.quarantine import Quarantine
from tidemill.engine.containment.watchdog import STALL_LIMIT, Watchdog
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.garbage import tune_garbage_collection
from tidemill.engine.roles.lease import ProcessStatus, describe_process
from tidemill.engine.roles.role import Life, Role
from tidemill.engine.roles.supervisor import ChildSpec
from tidemill.engine.runs.durable_run import DurableRun, RunKind
from tidemill.engine.runs.journal_writer import JournalWriter
from tidemill.engine.runs.refused_commits import RefusedCommits
from tidemill.engine.runs.run_claims import MAX_LOSSES, RunClaims
from tidemill.engine.runs.run_ids import RunIds
from tidemill.engine.runs.run_inbox import RunInbox
from tidemill.engine.runs.run_store import RunStore
from tidemill.engine.runs.run_waits import end_waits_here
from tidemill.engine.runs.step_watch import StepWatch
from tidemill.engine.telemetry.tracing import is_tracing
from tidemill.engine.worker.threads import STEP_THREADS, WorkThreads
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import CLASHES, is_full, is_transient, is_unavailable
from tidemill.store.jobs.workers import Mode, WorkerCard
from tidemill.store.runs.run_turn import RunTurn

log = structlog.get_logger("tidemill.runs")

SAFETY_POLL = 1.0
MOST_IDLE = 500
LETTING_GO = 10.0
CONTROL_POLL = 30.0
WRITERS = 2
WORTH_SHARING = 16


class RunWorker:
    """Owns and drives the runs of these kinds."""

    channels: Mapping[str, None] = {}  # The store listens, so that the simulation decides which notifications arrive.

    def __init__(
        self,
        store: RunStore,
        kinds: Mapping[str, RunKind],
        *,
        is_quarantine: bool = False,
        max_losses: int = MAX_LOSSES,
    ) -> None:
        """One that `is_quarantine` owns only suspects, and stops when there are none."""
        self.runs: dict[int, DurableRun] = {}
        self.quarantine: Quarantine | None = None
        self.grace_seconds = 0.0
        """How long steps may go on when it is asked to stop."""
        self.threads = WorkThreads(STEP_THREADS, "tidemill-step", self._replace_process)
        self.is_quarantine = is_quarantine
        self.is_tracing = is_tracing()
        self.mode: Mode = "run"
        self._read_mode_at = 0.0
        self.clock = store.clock
        self._store = store
        self.kinds = kinds
        self.life = Life()
        self._writer = JournalWriter(store)
        self._refused = RefusedCommits(store)
        self.dirty: dict[DurableRun, None] = {}
        self._writing: set[DurableRun] = set()  # those whose last turn is on its way to the database
        self._idle_since: dict[int, float] = {}
        self._numbers = RunIds(store)
        self._born: dict[int, asyncio.Future[None]] = {}
        self._inbox = RunInbox(self, store)
        self.claims = RunClaims(self, store, self._inbox, max_losses)
        self._mail = False
        self._writes = asyncio.Event()
        self._wake = asyncio.Event()
        self._unwanted = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether it loads no more runs."""
        return self.life.is_stopping

    @property
    def gives_back(self) -> bool:
        """Whether it gives its runs to others as soon as no step of them is at work here."""
        return self.mode in ("drain", "stop") or self.life.stopped.is_set()

    async def lend_connection(self) -> Connection:
        """A connection for one step's own transaction."""
        return await self._store.lend()

    def wake(self) -> None:
        """Claim and deliver now, not at the next poll."""
        self._wake.set()

    def mark_dirty(self, run: DurableRun) -> None:
        """Mark a run that has a turn to write."""
        self.dirty[run] = None
        self._writes.set()

    @property
    def safety_poll(self) -> float:
        """How long to wait for a wake-up; longer if it owns no run, because what concerns it is always announced."""
        return SAFETY_POLL if self.runs else self._store.idle_poll

    def process_status(self) -> ProcessStatus:
        """The run worker's status, reported with the lease."""
        return ProcessStatus(self.status, is_busy=bool(self.runs))

    @property
    def status(self) -> str:
        """The status that operators see: running, or their request and its progress."""
        if self.is_stopping:
            return "stopping"
        if self.mode == "run":
            return "running"
        if self.mode == "pause":
            return "paused"
        return "draining" if self.runs else {"drain": "drained", "stop": "stopped"}[self.mode]

    def note_idle(self, run: DurableRun) -> None:
        """Note whether a run is idle, and since when."""
        if not run.is_idle:
            self._idle_since.pop(run.number, None)
        elif self.runs.get(run.number) is run:
            self._idle_since.setdefault(run.number, asyncio.get_running_loop().time())
            if len(self._idle_since) == MOST_IDLE + 1:
                self._wake.set()

    def expect(self, due: float) -> None:
        """Read the inbox at this time."""
        delay = max(0.0, due - self.clock.now())
        if delay < SAFETY_POLL:
            asyncio.get_running_loop().call_later(delay + 0.002, self._wake.set)

    async def begin(self, open: Callable[[int], DurableRun]) -> DurableRun | None:
        """Start a run here. `open` creates it from its id; it is stored together with its first ticks.

        Returns None if this run worker is stopping: another one has to drive it.
        """
        number = await self._numbers.next()
        if self.is_stopping or self.mode != "run":
            return None
        if not self.runs:
            self._wake.set()  # It may be in the long wait of a worker without runs.
        run = self.runs[number] = open(number)
        stored = self._born[number] = asyncio.get_running_loop().create_future()
        try:
            await stored
        finally:
            self._born.pop(number, None)
        return run

    async def work(self, life: Life) -> None:
        """Own and drive runs until stopped."""
        self.life, self._writer.owner = life, life.worker_id
        await self._declare_versions()
        if not self.is_quarantine:
            await self._store.resume_stopped(list(self.kinds))
        hears = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [
                    group.create_task(self._store.listen(self._notified, hears)),
                    group.create_task(self._claim_and_deliver()),
                    group.create_task(self._cancel_unneeded_jobs()),
                ]
                if self.quarantine is not None:
                    group.create_task(self.quarantine.run())
                writing = [group.create_task(self._write()) for _ in range(WRITERS)]
                await hears.wait()
                tune_garbage_collection()
                life.ready()
                await life.stopped.wait()
                if self.quarantine is not None:
                    self.quarantine.stop()
                for helper in helpers:
                    helper.cancel()
                if not life.is_fenced:
                    await self._release_all()
                for each in writing:
                    each.cancel()
        finally:
            for run in self.runs.values():
                run.drop()
            for stored in self._born.values():
                if not stored.done():
                    stored.set_exception(StoreError("the run worker has stopped: the run may or may not be stored"))
            self.threads.close()
            await self._store.close()

    async def _declare_versions(self) -> None:
        """Store what later versions need in order to read the runs that this process drives."""
        versions = {
            name: (kind.version, kind.definition)
            for name, kind in self.kinds.items()
            if kind.version is not None and kind.definition is not None
        }
        if versions:
            await self._store.declare_versions(versions)

    def _replace_process(self) -> None:
        self.life.give_up(f"ended itself: {STEP_THREADS} threads of plain steps did not come back")

    def _notified(self, what: str) -> None:
        if what == "wake":  # Something has arrived for a released run.
            self.claims.wake_now()
        if what not in ("", "wake", "inbox", "claims"):
            self._read_mode_at = 0.0
        if what not in ("", "wake", "inbox", "claims") and self.quarantine is not None:
            self.quarantine.wake()  # Suspects, or anything that happened while it did not listen.
        if what == "inbox":
            self._mail = True
        else:
            self.claims.due = True
        self._wake.set()

    # -- writing ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Commit the turns of the runs, many in one transaction, as fast as the database takes them.

        Several of these run at once: while the database writes the turns of some runs, others prepare theirs.
        """
        while True:
            await self._writes.wait()
            await asyncio.sleep(0)  # Ticks of the same moment go into one turn.
            self._writes.clear()
            await self._write_turn(self._take_dirty())

    def _take_dirty(self) -> list[DurableRun]:
        """The runs whose turns are written now: never one whose last turn is not written yet."""
        runs = [run for run in self.dirty if run not in self._writing]
        if len(runs) >= WORTH_SHARING and not self._writing:
            del runs[len(runs) // 2 :]
            self._writes.set()  # The next writer takes the rest.
        for run in runs:
            del self.dirty[run]
        return runs

    async def _write_turn(self, runs: list[DurableRun]) -> None:
        if not runs:
            return
        self._writing.update(runs)
        taken = [(run, *run.take_turn()) for run in runs if not run.let_go]
        together = [turn for _, turn, _ in taken if turn.within is None]
        apart = [(run, turn) for run, turn, _ in taken if turn.within is not None]
        if apart:
            parts = await asyncio.gather(self._writer.write(together), *(self._write_within(*each) for each in apart))
            mine = set[int]().union(*parts)
        else:
            mine = await self._writer.write(together)
        self._writing.difference_update(runs)
        for run, turn, after in taken:
            self._written(run, turn, after, run.number in mine)
        for run, turn in apart:
            if run.number in mine:
                self._refused.committed(run)
                continue
            has_failed = turn.refused is not None and await self._refused.count(run, turn.refused)
            self.claims.find_own_now()
            asyncio.get_running_loop().call_later(0.0 if has_failed else SAFETY_POLL, self._notified, "wake")
        if self.dirty:
            self._writes.set()

    async def _write_within(self, run: DurableRun, turn: RunTurn) -> set[int]:
        """If it cannot be written, the run is loaded again from the store, and the step runs again."""
        try:
            return await self._writer.write_within(turn)
        finally:
            run.transaction_over()

    def _written(self, run: DurableRun, turn: RunTurn, after: list[Any], still_mine: bool) -> None:
        if turn.used or turn.postponed:
            self._inbox.wrote(turn)
        born = self._born.get(run.number) if turn.new is not None else None
        if not still_mine:
            log.warning("a run no longer belongs to this owner", run=run.number)
            self.forget(run)
            if born is not None and not born.done():
                why = "the database refused the run, or another owner has it by now: it may or may not be stored"
                born.set_exception(StoreError(why))
            return
        if born is not None and not born.done():
            born.set_result(None)
        if turn.stops or (turn.state is not None and run.queues_work):
            self._unwanted.set()
        try:
            if after:
                run.loop.execute(after)
        except Exception as error:  # noqa: BLE001 - a defect of one run must not affect the others
            run.give_up(error)
            return
        if turn.cleared or (turn.state is not None and self.claims.has_suspects):
            self._notified("claims")  # Others may have waited until the suspects were cleared.
        if turn.state is not None or turn.release:
            self.forget(run)
            if turn.state is not None:
                end_waits_here(run.number)
            if turn.state is not None and run.has_slot:
                self._notified("claims")  # A run of its kind may wait for its slot.
            if turn.release and not turn.awake:
                self._notified("wake")  # Something may have arrived during its release.
        else:
            self.note_idle(run)

    def forget(self, run: DurableRun) -> None:
        """Remove a run from memory: it has ended, was released, or belongs to another owner."""
        if self.runs.get(run.number) is run:
            del self.runs[run.number]
            self._idle_since.pop(run.number, None)
        self.dirty.pop(run, None)
        self._inbox.give_back(run.unwritten_inbox())
        run.drop()

    # -- taking up and letting go -----------------------------------------------------------------

    async def _claim_and_deliver(self) -> None:
        """Claim runs that need an owner, deliver what is due, and release idle runs."""
        while True:
            pause = SAFETY_POLL
            try:
                await self._apply_control()
                if await self._inbox.deliver() == 0 and self._mail:
                    self.claims.wake_soon()
                self._mail = False
                if self.claims.due or self.claims.next_wake() <= 0.0:  # Not only when the inbox is empty.
                    self.claims.due = False
                    await self.claims.wake_sleepers()
                    await self.claims.claim_all()
                pause = min(self.claims.next_wake(), self._release_idle())
            except CLASHES:
                self.claims.due = True
                self._wake.set()
            except Exception as error:
                if not (is_unavailable(error) or is_full(error)):
                    raise
                log.warning("the database is unavailable", error=str(error))
                self.claims.find_own_now()
            if not await wait_for_event(self._wake, pause):
                self.claims.due = True
            self._wake.clear()

    async def _apply_control(self) -> None:
        """Follow what operators have asked, soon after they did."""
        now = asyncio.get_running_loop().time()
        if now < self._read_mode_at:
            return
        self._read_mode_at = now + CONTROL_POLL
        mode = await self._store.mode()
        if mode != self.mode:
            log.info("operator control", owner=self.life.worker_id, mode=mode)
            self.mode, self.claims.due = mode, True
        if self.gives_back:
            for run in self.runs.values():
                if mode == "stop" or not run.has_steps_here:
                    run.turn().release = True

    async def _cancel_unneeded_jobs(self) -> None:
        """Cancel jobs that runs no longer need; maintenance does so too, from time to time."""
        while True:
            await self._unwanted.wait()
            self._unwanted.clear()
            try:
                await self._store.cancel_unneeded_jobs()
            except Exception as error:
                if not is_transient(error):
                    raise

    def _release_idle(self) -> float:
        """Release runs that were idle long enough; returns how long until the next one is.

        If there are very many, those that are due soon are released now: their memory is not returned to the system.
        """
        now, soonest = asyncio.get_running_loop().time(), self.safety_poll
        too_many = len(self._idle_since) - MOST_IDLE
        for number, since in list(self._idle_since.items()):
            run = self.runs.get(number)
            if run is None or run in self.dirty:
                continue
            left = since + run.patience - now
            if left <= 0 or (too_many > 0 and left < SAFETY_POLL):
                too_many -= 1
                run.turn().release = True
                del self._idle_since[number]
            else:
                soonest = min(soonest, left)
        return soonest

    async def _release_all(self) -> None:
        """Release every run for other owners: when its steps have ended, or when the grace period is over."""
        loop, hurried = asyncio.get_running_loop(), asyncio.ensure_future(self.life.hurried.wait())
        give_up = loop.time() + self.grace_seconds
        try:
            while (left := give_up - loop.time()) > 0 and not hurried.done():
                for run in self.runs.values():
                    if not run.has_steps_here:
                        run.turn().release = True
                if not self.runs:
                    return
                held = [run.result for run in self.runs.values()]
                await asyncio.wait([*held, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
        finally:
            hurried.cancel()
        try:
            async with asyncio.timeout(LETTING_GO):
                while runs := list(self.runs.values()):
                    for run in runs:
                        run.turn().release = True
                    await asyncio.wait([run.result for run in runs])
                    await asyncio.sleep(0)
        except TimeoutError:
            log.warning("runs could not be given back: they wait for the lease to lapse", runs=len(self.runs))

    def describe(self) -> WorkerCard:
        """The kinds of runs that it drives, registered with the lease."""
        kinds = {f"run {name}": kind.version for name, kind in self.kinds.items() if kind.version is not None}
        events = {event for kind in self.kinds.values() for event in kind.events}
        return describe_process(
            tasks=self.kinds, versions=kinds, events=sorted(events), is_quarantine=self.is_quarantine
        )


def run_worker_role(
    worker: RunWorker,
    store: RunStore,
    database: Database | None,
    *,
    lease_seconds: float = 15.0,
    heartbeat_seconds: float = 3.0,
    quarantine: ChildSpec | None = None,
    grace_seconds: float = 0.0,
    stall_limit: float = STALL_LIMIT,
) -> Role[RunWorker]:
    """A run worker with its lease, which its store gives, and its process for suspects, if there can be one."""
    worker.grace_seconds = grace_seconds
    if not worker.is_quarantine:
        worker.quarantine = Quarantine(
            quarantine,
            worker.claims.next_suspect,
            take=worker.claims.take_suspects,
            grace=grace_seconds,
            silence=lease_seconds,
            database=database,
        )
    watchdog: Watchdog | None = None
    if database is not None:
        watched = StepWatch(database, worker.runs)
        watchdog = Watchdog(database, watched, stall_limit=stall_limit, grace_seconds=grace_seconds)
    lease = store.lease(
        worker.describe,
        worker.process_status,
        lease_seconds=lease_seconds,
        heartbeat_seconds=heartbeat_seconds,
        watchdog=watchdog,
    )
    return Role(worker, database, lease=lease, name="run worker")
