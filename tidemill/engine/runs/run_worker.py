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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from tidemill.core.blame import group_size
from tidemill.core.codec import decode, storable
from tidemill.core.errors import PayloadError, StoreError, UnknownClassError
from tidemill.core.ticks import CancelAsked, Completed, Elapsed, Tick
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.lease import ProcessStatus, describe_process
from tidemill.engine.quarantine import Quarantine
from tidemill.engine.role import Life, Role
from tidemill.engine.runs.durable_run import DurableRun, RunKind, Unopened, WorkEnd
from tidemill.engine.runs.journal_writer import JournalWriter
from tidemill.engine.runs.run_ids import RunIds
from tidemill.engine.runs.run_store import RunStore
from tidemill.engine.runs.step_watch import StepWatch
from tidemill.engine.supervisor import ChildSpec
from tidemill.engine.watchdog import STALL_LIMIT, Watchdog
from tidemill.engine.worker.threads import STEP_THREADS, WorkThreads
from tidemill.store.database import Connection, Database
from tidemill.store.database_errors import CLASHES, is_full, is_transient, is_unavailable
from tidemill.store.jobs.workers import Mode, WorkerCard
from tidemill.store.runs.run_turn import RunTurn

log = structlog.get_logger("tidemill.runs")

CLAIM_AT_ONCE = 200
SAFETY_POLL = 1.0
MOST_RUNS = 20_000
MOST_IDLE = 500
MOST_INBOX = 5000
WAKE_AT_MOST_EVERY = 0.05
FIND_OWN_EVERY = 5.0
LETTING_GO = 10.0
CONTROL_POLL = 30.0
WRITERS = 2
WORTH_SHARING = 16
SUSPECTS_WAIT = 10.0  # suspects and other runs wait for each other so long, in a process without a quarantine process
MAX_LOSSES = 3  # how often a process may die while it runs nothing but one run, before that needs attention
LOST_WAYS_OUT = (
    "deploy a fix and start the step again as a failed attempt (`tidemill retry`), give the step a queue "
    "(`@step(queue=...)`), fork the run from an earlier tick, or cancel it"
)
URGENT = (b"cancel_asked", b"completed")  # the kinds of ticks, as they are stored
NOTHING_OPENED: Mapping[DurableRun, tuple[Any, Sequence[Tick]]] = {}


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
        self._max_losses = max_losses
        self._suspects_due_at: float | None = None  # since when suspects wait that are to run here
        self._has_suspects = False
        self._suspects_since = 0.0
        self._mode: Mode = "run"
        self._read_mode_at = 0.0
        self.clock = store.clock
        self._store = store
        self._kinds = kinds
        self._life = Life()
        self._writer = JournalWriter(store)
        self._dirty: dict[DurableRun, None] = {}
        self._writing: set[DurableRun] = set()  # those whose last turn is on its way to the database
        self._idle_since: dict[int, float] = {}
        self._taken: set[int] = set()  # inbox rows that a run has taken and that a read may still return
        self._written_inbox: set[int] = set()  # those of them whose turn has been written
        self._numbers = RunIds(store)
        self._born: dict[int, asyncio.Future[None]] = {}
        self._wake_at = 0.0
        self._woken_at = 0.0
        self._claims_due = True
        self._mail = False
        self._find_own_at = 0.0
        self._writes = asyncio.Event()
        self._wake = asyncio.Event()
        self._unwanted = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether it loads no more runs."""
        return self._life.is_stopping

    @property
    def gives_back(self) -> bool:
        """Whether it gives its runs to others as soon as no step of them is at work here."""
        return self.is_stopping or self._mode in ("drain", "stop")

    async def lend_connection(self) -> Connection:
        """A connection for one step's own transaction."""
        return await self._store.lend()

    def mark_dirty(self, run: DurableRun) -> None:
        """Mark a run that has a turn to write."""
        self._dirty[run] = None
        self._writes.set()

    @property
    def _safety_poll(self) -> float:
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
        if self._mode == "run":
            return "running"
        if self._mode == "pause":
            return "paused"
        return "draining" if self.runs else {"drain": "drained", "stop": "stopped"}[self._mode]

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
        if self.is_stopping or self._mode != "run":
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
        self._life, self._writer.owner = life, life.worker_id
        await self._declare_versions()
        if not self.is_quarantine:
            await self._store.resume_stopped(list(self._kinds))
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
            for name, kind in self._kinds.items()
            if kind.version is not None and kind.definition is not None
        }
        if versions:
            await self._store.declare_versions(versions)

    def _replace_process(self) -> None:
        self._life.give_up(f"ended itself: {STEP_THREADS} threads of plain steps did not come back")

    def _notified(self, what: str) -> None:
        if what == "wake":  # Something has arrived for a released run.
            self._wake_at = 0.0
        if what not in ("", "wake", "inbox", "claims"):
            self._read_mode_at = 0.0
        if what not in ("", "wake", "inbox", "claims") and self.quarantine is not None:
            self.quarantine.wake()  # Suspects, or anything that happened while it did not listen.
        if what == "inbox":
            self._mail = True
        else:
            self._claims_due = True
        self._wake.set()

    def _wake_soon(self) -> None:
        """The inbox has rows for none of the runs in memory: they may be for a run that was released."""
        now = asyncio.get_running_loop().time()
        if now >= self._woken_at + WAKE_AT_MOST_EVERY:
            self._wake_at, self._claims_due = now, True
        else:
            self._wake_at = min(self._wake_at, self._woken_at + WAKE_AT_MOST_EVERY)

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
        runs = [run for run in self._dirty if run not in self._writing]
        if len(runs) >= WORTH_SHARING and not self._writing:
            del runs[len(runs) // 2 :]
            self._writes.set()  # The next writer takes the rest.
        for run in runs:
            del self._dirty[run]
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
        if self._dirty:
            self._writes.set()

    async def _write_within(self, run: DurableRun, turn: RunTurn) -> set[int]:
        """If it cannot be written, the run is loaded again from the store, and the step runs again."""
        try:
            mine = await self._writer.write_within(turn)
        finally:
            run.transaction_over()
        if not mine:
            self._find_own_at = 0.0
        return mine

    def _written(self, run: DurableRun, turn: RunTurn, after: list[Any], still_mine: bool) -> None:
        if turn.used or turn.postponed:
            self._written_inbox.update(turn.used, turn.postponed)
        born = self._born.get(run.number) if turn.new is not None else None
        if not still_mine:
            log.warning("a run is not this owner's any more", run=run.number)
            self._forget(run)
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
        if turn.cleared or (turn.state is not None and self._has_suspects):
            self._notified("claims")  # Others may have waited until the suspects were cleared.
        if turn.state is not None or turn.release:
            self._forget(run)
            if turn.state is not None and run.has_slot:
                self._notified("claims")  # A run of its kind may wait for its slot.
            if turn.release and not turn.awake:
                self._notified("wake")  # Something may have arrived during its release.
        else:
            self.note_idle(run)

    def _forget(self, run: DurableRun) -> None:
        if self.runs.get(run.number) is run:
            del self.runs[run.number]
            self._idle_since.pop(run.number, None)
        self._dirty.pop(run, None)
        self._taken.difference_update(run.unwritten_inbox())
        run.drop()

    # -- taking up and letting go -----------------------------------------------------------------

    async def _claim_and_deliver(self) -> None:
        """Claim runs that need an owner, deliver what is due, and release idle runs."""
        while True:
            pause = SAFETY_POLL
            try:
                await self._apply_control()
                if await self._deliver_inbox() == 0 and self._mail:
                    self._wake_soon()
                self._mail = False
                if self._claims_due or self._next_wake() <= 0.0:  # Not only when the inbox is empty.
                    self._claims_due = False
                    await self._wake_sleepers()
                    await self._claim_all()
                pause = min(self._next_wake(), self._release_idle())
            except CLASHES:
                self._claims_due = True
                self._wake.set()
            except Exception as error:
                if not (is_unavailable(error) or is_full(error)):
                    raise
                log.warning("the database is unavailable", error=str(error))
                self._find_own_at = 0.0
            if not await wait_for_event(self._wake, pause):
                self._claims_due = True
            self._wake.clear()

    async def _apply_control(self) -> None:
        """Follow what operators have asked, soon after they did."""
        now = asyncio.get_running_loop().time()
        if now < self._read_mode_at:
            return
        self._read_mode_at = now + CONTROL_POLL
        mode = await self._store.mode()
        if mode != self._mode:
            log.info("operator control", owner=self._life.worker_id, mode=mode)
            self._mode, self._claims_due = mode, True
        if self.gives_back:
            for run in self.runs.values():
                if mode == "stop" or not run.has_steps_here:
                    run.turn().release = True

    async def _claim_all(self) -> None:
        while (count := await self._claim()) > 0:
            if count < CLAIM_AT_ONCE:
                return

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

    async def _wake_sleepers(self) -> None:
        """Wake runs for which something is due, from time to time."""
        now = asyncio.get_running_loop().time()
        if now >= self._wake_at:
            self._woken_at, self._wake_at = now, now + self._safety_poll
            due_in = await self._store.wake()
            if due_in is not None:
                # Not later than a release has asked for meanwhile.
                self._wake_at = min(self._wake_at, now + due_in + 0.002)

    def _next_wake(self) -> float:
        """How long until released runs are checked again."""
        return max(0.0, self._wake_at - asyncio.get_running_loop().time())

    async def _claim(self) -> int:
        if self._mode != "run":
            return 0
        now = asyncio.get_running_loop().time()
        room = min(CLAIM_AT_ONCE, MOST_RUNS - len(self.runs))
        if now >= self._find_own_at:
            self._find_own_at = now + FIND_OWN_EVERY
            rows = await self._store.find_own(self._life.worker_id, list(self.runs), CLAIM_AT_ONCE)
            await self._load([row for row in rows if row["kind"] in self._kinds])
        if self.is_quarantine or self._may_take_suspects(now):
            return await self._claim_suspects()
        if self._has_suspects:
            is_patient = now - self._suspects_since < SUSPECTS_WAIT
            self._has_suspects = is_patient and any(run.is_suspect for run in self.runs.values())
            if self._has_suspects:
                return 0
        return 0 if room <= 0 else await self._claim_at(0, room)

    async def _claim_at(self, suspicions: int, room: int) -> int:
        versions = [kind.version for kind in self._kinds.values()]
        limits = [kind.max_runs for kind in self._kinds.values()]
        rows = await self._store.claim(self._life.worker_id, list(self._kinds), versions, room, limits, suspicions)
        await self._load(rows, is_suspect=suspicions > 0)
        return len(rows)

    # -- suspects: see `core.blame` ---------------------------------------------------------------

    async def next_suspect(self) -> float | None:
        """Seconds until a suspect waits for an owner; None if there is none."""
        if self._mode != "run":
            return None
        return 0.0 if await self._store.least_suspected(list(self._kinds)) else None

    def take_suspects(self) -> None:
        """Without a quarantine process: claim suspects as soon as nothing else runs here."""
        if self._suspects_due_at is None:
            self._suspects_due_at = asyncio.get_running_loop().time()
        self._claims_due = True
        self._wake.set()

    def _may_take_suspects(self, now: float) -> bool:
        due = self._suspects_due_at
        return due is not None and (not self.runs or (not self._has_suspects and now - due > SUSPECTS_WAIT))

    async def _claim_suspects(self) -> int:
        """Claim suspects that may run together; nothing else is claimed while they are here."""
        self._suspects_due_at = None
        if self.is_quarantine and self.runs:
            return 0
        level = await self._store.least_suspected(list(self._kinds))
        self._has_suspects, self._suspects_since = level > 0, asyncio.get_running_loop().time()
        if level == 0:
            if self.is_quarantine:
                self._life.stop()
            return 0
        await self._claim_at(level, group_size(level))
        return 0

    async def _load(self, rows: Sequence[Any], *, is_suspect: bool = False) -> None:
        """Load our runs from the store, and let them go on."""
        numbers = [row["id"] for row in rows if row["id"] not in self.runs]
        if not numbers:
            return
        snapshots, ticks = await self._store.load(numbers)
        older = {(row["kind"], row["version"]) for row in rows if row["seq"] and self._is_older(row)}
        definitions = await self._store.read_definitions(sorted(older)) if older else {}
        opened: dict[DurableRun, tuple[Any, Sequence[Tick]]] = {}
        for row in rows:
            number = row["id"]
            if number not in self.runs:
                definition = definitions.get((row["kind"], row["version"]))
                found = self._open(row, snapshots.get(number), ticks.get(number, []), definition)
                if found is not None:
                    run, first = found
                    self.runs[number], run.is_suspect = run, is_suspect
                    opened[run] = (row, first)
        try:
            await self._deliver_inbox(opened)
        except BaseException:
            for run in opened:
                self._forget(run)
            raise

    def _is_older(self, row: Any) -> bool:
        """Whether a run was driven by another version of its workflow until now."""
        return self._kinds[row["kind"]].version not in (None, row["version"])

    def _open(
        self, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DurableRun, Sequence[Tick]] | None:
        try:
            return self._kinds[row["kind"]].open(self, row, snapshot, ticks, definition)
        except PayloadError as error:
            self._stop_for_attention(row, str(error))
        except Exception as error:  # noqa: BLE001 - one run that does not fit must not end the others
            self._stop_for_attention(row, f"{error!r}; cancel the run, or deploy code that can open it")
        return None

    def _go_on(self, run: DurableRun, row: Any, first: Sequence[Tick], mail: list[Any]) -> None:
        """Let a run go on that was loaded: a request to cancel it, or the end of its work, comes before anything is run
        again."""
        urgent: list[Any] = []
        others: list[Any] = []
        for each in mail:
            (urgent if row["seq"] > 0 and _is_urgent(run, each) else others).append(each)
        self._hand_over(run, urgent)
        if run.loop.state.status != "running":
            self._taken.difference_update(each["id"] for each in others)
        elif row["losses"] >= self._max_losses:
            self._taken.difference_update(each["id"] for each in others)
            why = f"the process that ran it died {row['losses']} times while it ran nothing but {run.in_progress}"
            run.stop_for_attention(why, ways_out=LOST_WAYS_OUT)
        else:
            try:
                for tick in first:
                    run.loop.post(tick)
                if self._is_older(row):
                    run.take_over()
            except PayloadError as error:
                self._stop_for_attention(row, str(error))
                return
            except Exception as error:  # noqa: BLE001 - a defect of one run must not affect the others
                self._stop_for_attention(row, f"{error!r}; cancel the run, or deploy code that can open it")
                return
            self._hand_over(run, others)

    def _stop_for_attention(self, row: Any, why: str) -> None:
        """Stop a run that no longer fits the code: it is logged, and waits for an operator."""
        log.error("run needs attention: it does not fit the workflow any more", run=row["id"], why=why)
        for run in [run for run in self._dirty if run.number == row["id"]]:
            self._forget(run)
        turn = Unopened(self, row["id"], row["seq"]).turn()
        turn.state = "needs_attention"
        turn.note = storable(why)

    async def _deliver_inbox(self, opened: Mapping[DurableRun, tuple[Any, Sequence[Tick]]] = NOTHING_OPENED) -> int:
        """Deliver inbox rows to the runs, and start those that were opened; returns how many rows."""
        if not self.runs:
            return 0
        written, self._written_inbox = self._written_inbox, set()
        rows = await self._store.due(self._life.worker_id, list(self._taken), MOST_INBOX)
        self._taken -= written  # Their turn was written before this read, which returns only new rows.
        brought: dict[DurableRun, list[Any]] = {}
        for row in rows:
            run = self.runs.get(row["run_id"])
            if run is None or not run.is_running or row["id"] in self._taken:
                continue
            self._taken.add(row["id"])
            brought.setdefault(run, []).append(row)
        for run, (row, first) in opened.items():
            self._go_on(run, row, first, brought.pop(run, []))
        for run, mail in brought.items():
            self._hand_over(run, mail)
        if len(rows) == MOST_INBOX:
            self._wake.set()
        return len(rows)

    def _hand_over(self, run: DurableRun, mail: list[Any]) -> None:
        """Deliver all inbox rows of a run together."""
        if not mail:
            return
        taken: list[int] = []
        ticks: list[Tick] = []
        now = self.clock.now()
        for row in mail:
            try:
                ticks += _ticks_of(run, row, now)
                taken.append(row["id"])
            except UnknownClassError as error:
                log.warning("what was sent to a run is for another version of it", run=run.number, error=str(error))
                run.postpone(row["id"], f"something that was sent to it is for another version: {error}")
            except Exception as error:  # noqa: BLE001 - the run and its run worker continue, whatever was sent
                log.error("what was sent to a run cannot be read here", run=run.number, error=str(error))
                run.skip_inbox_row(row["id"], f"something that was sent to it could not be read: {error}")
        try:
            run.take_in(taken, ticks)
        except Exception as error:  # noqa: BLE001 - a defect of one run must not affect the others
            run.give_up(error)

    def _release_idle(self) -> float:
        """Release runs that were idle long enough; returns how long until the next one is.

        If there are very many, those that are due soon are released now: their memory is not returned to the system.
        """
        now, soonest = asyncio.get_running_loop().time(), self._safety_poll
        too_many = len(self._idle_since) - MOST_IDLE
        for number, since in list(self._idle_since.items()):
            run = self.runs.get(number)
            if run is None or run in self._dirty:
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
        loop, hurried = asyncio.get_running_loop(), asyncio.ensure_future(self._life.hurried.wait())
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
        kinds = {f"run {name}": kind.version for name, kind in self._kinds.items() if kind.version is not None}
        events = {event for kind in self._kinds.values() for event in kind.events}
        return describe_process(tasks=self._kinds, versions=kinds, events=sorted(events))


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
            quarantine, worker.next_suspect, take=worker.take_suspects, grace=grace_seconds, database=database
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


def _is_urgent(run: DurableRun, row: Any) -> bool:
    """Whether an inbox row is a request to cancel the run, or the end of a piece of its work."""
    if row["timer"] is not None or row["work"] is not None or not any(kind in row["data"] for kind in URGENT):
        return False
    try:
        return isinstance(run.decode_tick(row["data"]), CancelAsked | Completed)
    except Exception:  # noqa: BLE001 - it is reported when it is delivered
        return False


def _ticks_of(run: DurableRun, row: Any, now: float) -> Sequence[Tick]:
    """Decode an inbox row."""
    if row["timer"] is not None:
        return [Elapsed(now, row["timer"])]
    if row["work"] is not None:
        return run.work_ended(row["work"], decode(row["data"], WorkEnd))
    return [run.decode_tick(row["data"])]
