"""A durable run: the shell around a program whose ticks are journaled in PostgreSQL.

No command of a tick is executed before the tick is committed: the commands of a turn wait until the run worker has
written the turn, together with those of its other runs. Timers, jobs and published events are rows, and a run that only
waits for input is stored and leaves memory. The shape (flow or dag) implements the hooks that interpret the ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from tidemill.core.codec import decode, storable
from tidemill.core.encoding.sealing import loggable
from tidemill.core.jobs.job import Origin
from tidemill.core.ticks import Command, DropTimer, EndRun, Publish, RunWork, SetTimer, StopWork, Tick, TrimJournal
from tidemill.engine.runs.control_loop import RunLoop
from tidemill.engine.telemetry.run_trace import trace_in
from tidemill.store.runs.run_turn import JobRow, NewRun, RunTurn, with_job_trace

if TYPE_CHECKING:
    from tidemill.engine.runs.run_worker import RunWorker

log = structlog.get_logger("tidemill.runs")

SNAPSHOT_EVERY = 500  # ticks, or more if they are fewer bytes than the last snapshot
IDLE_BEFORE_RELEASE = 0.3

#: Pieces of work, and the name of each.
Begun = list[tuple[int, str]]
NOTHING_BEGUN: Begun = []


class WorkEnd(msgspec.Struct, omit_defaults=True):
    """The end of work that ran elsewhere: as a job, as a run of its own, or as a batch of jobs."""

    state: str
    work: int = 0
    """The piece of work, in a row with several ends."""
    job: int | None = None
    run: int | None = None
    batch: int | None = None
    key: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    note: str | None = None
    error: dict[str, Any] | None = None
    successor: int | None = None
    """The piece of work whose job was stored by the statement that ended this one."""


class StepHere(msgspec.Struct, frozen=True):
    """A step that runs on the event loop of this process."""

    work: int
    name: str
    task: asyncio.Task[Any]
    limit_at: float | None = None
    """When its timeout is over, by the monotonic clock."""
    limit: str = ""
    """Its timeout, for people."""
    owns: Callable[[asyncio.Task[Any]], bool] | None = None
    """Whether it has started another task."""

    def is_run_by(self, task: asyncio.Task[Any]) -> bool:
        return self.task is task or (self.owns is not None and self.owns(task))


class RunKind(Protocol):
    """What a run worker needs to drive runs of one kind.

    A kind of one `version` folds ticks in one way; None if runs carry their own definition.
    """

    @property
    def version(self) -> str | None: ...

    @property
    def definition(self) -> bytes | None:
        """What other versions need to know of this one in order to read its runs; None if there is only one version."""
        ...

    @property
    def events(self) -> Iterable[str]:
        """The names of the event classes that its runs may be sent."""
        ...

    @property
    def max_runs(self) -> int | None:
        """How many of its runs may be begun and not ended, over all run workers; None for no limit."""
        ...

    def open(
        self, run_worker: RunWorker, row: Any, snapshot: bytes | None, ticks: list[bytes], definition: bytes | None
    ) -> tuple[DurableRun, list[Tick]]:
        """Load a run from its rows; returns it and the ticks with which it continues. Raises if it does not fit.

        `definition` is that of the version in its row, if that is another one."""
        ...


class DurableRun:
    """One run, owned by this process for as long as its run worker's lease is good."""

    loop: RunLoop
    result: asyncio.Future[Any]
    queues_work: bool
    """Whether work of this run may be jobs."""
    has_slot: bool = False
    """Whether runs of its kind are limited."""
    works_in_place: bool = True
    """Whether work without a queue runs in this process; else everything is a job."""
    trace: str | None = None
    """The trace that the run continues."""
    priority: int | None = None
    """The priority of its jobs that have none of their own."""
    origin: bytes | None = None
    """What has started the run."""
    is_suspect: bool = False
    """Whether its process may have died of it, until it is cleared. A quarantine process gives it back then."""

    committing: Any = None
    """The piece of work whose own transaction is committed with a turn."""

    def own(self, run_worker: RunWorker, number: int, *, stored: int, new: NewRun | None = None) -> None:
        """Attach the run to a run worker, with this many ticks in the journal."""
        self.number = number
        self.stored = stored
        self.snapshot_at = stored
        self.snapshot_size = self._journaled = 0
        self.let_go = False
        self._run_worker = run_worker
        self._new = new
        if new is not None:
            self.trace, self.origin = trace_in(new.origin), new.origin
        self._turn: RunTurn | None = None
        self._after: list[Command] = []
        self._has_note = False

    @property
    def fire(self) -> Origin | None:
        """The origin of its jobs, if a schedule has started it: they know for which fire, and why."""
        if self.origin is None or b'"schedule"' not in self.origin:
            return None
        origin = decode(self.origin, Origin)
        return Origin(f"run r{self.number}", schedule=origin.schedule, fire=origin.fire, reason=origin.reason)

    @property
    def is_running(self) -> bool:
        return not self.result.done()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs in this process for the run: it only waits for input."""
        return self.loop.state.idle

    @property
    def is_cleared(self) -> bool:
        """Whether the work has ended that was in progress when the run was loaded."""
        return self.is_idle

    @property
    def has_steps_here(self) -> bool:
        """Whether steps of the run are at work in this process, other than waiting."""
        return False

    @property
    def in_progress(self) -> str:
        """What runs in this process for the run, for people."""
        return "its work"

    @property
    def patience(self) -> float:
        """How many seconds an idle run stays in memory."""
        return IDLE_BEFORE_RELEASE

    # -- what a shape fills in --------------------------------------------------------------------

    def encode_tick(self, tick: Tick, begun: Begun) -> bytes:
        """A tick as it is journaled."""
        raise NotImplementedError

    def decode_tick(self, data: bytes) -> Tick:
        """A tick that came through the inbox."""
        raise NotImplementedError

    def encode_shown(self, event: Any) -> bytes | None:
        """A published event as it is stored; None if it is not stored."""
        raise NotImplementedError

    def write_end(self, turn: RunTurn, end: EndRun) -> None:
        """Put the run's result or error into the turn."""
        raise NotImplementedError

    def job_for(self, command: RunWork) -> JobRow | None:
        """The job for a piece of work; None if there can be none, in which case the run gets a tick that says so."""
        raise NotImplementedError

    def trace_of_job(self, command: RunWork) -> str | None:
        """The trace that the job of a piece of work continues."""
        return self.trace

    def work_ended(self, work: int, end: WorkEnd) -> Sequence[Tick]:
        """The tick for work that ran elsewhere and has ended."""
        raise NotImplementedError

    def take_over(self) -> None:
        """Note with the next turn that this version of the workflow drives the run from now on."""

    def steps_here(self) -> Sequence[StepHere]:
        """The steps of the run that run on this event loop. Called in another thread, while the loop is blocked."""
        return ()

    def failure_of(self, step: StepHere, why: str) -> bytes:
        """The tick for a step that has blocked the event loop until its process was ended."""
        raise NotImplementedError

    def stop_all(self) -> None:
        """Stop everything that runs in this process for the run."""

    def failed_tick(self, work: Any, error: Exception) -> bytes:
        """The tick for a piece of work that has failed otherwise than by its own code."""
        raise NotImplementedError

    def transaction_over(self) -> None:
        """Report whether a step's own transaction was committed with a turn or rolled back."""

    # -- journaling -------------------------------------------------------------------------------

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        if self.let_go:  # A step that ignored its cancellation: its ticks are dropped.
            return
        turn = self._turn or self.turn()
        if len(ticks) == len(commands) == 1 and self.works_in_place:  # Most often a step has ended, and one follows.
            (command,) = commands
            if type(command) is RunWork and command.queue is None:
                turn.ticks.append(self.encode_tick(ticks[0], [(command.work, command.name)]))
                turn.last += 1
                self._after.append(command)
                return
        begun: Begun = [command.placed for command in commands if type(command) is RunWork]
        if len(ticks) == 1:
            turn.ticks.append(self.encode_tick(ticks[0], begun))
        else:
            encoded = [self.encode_tick(tick, NOTHING_BEGUN) for tick in ticks[:-1]]
            turn.ticks += [*encoded, self.encode_tick(ticks[-1], begun)]
        turn.last += len(ticks)
        stops = len(turn.stops)
        for command in commands:
            if type(command) is RunWork and command.queue is None and self.works_in_place:
                self._after.append(command)
            else:
                self._follow(turn, command)
        if len(turn.stops) > stops and turn.jobs:  # A job that has not been stored needs no stop.
            stopped = set(turn.stops)
            turn.jobs = [job for job in turn.jobs if job[0] not in stopped]

    def _follow(self, turn: RunTurn, command: Any) -> None:
        """Add a command to the turn, or keep it until the turn is written."""
        kind = type(command)
        if kind is RunWork:
            job = self.job_for(command)
            if job is not None:
                parent = self.trace_of_job(command)
                job = job if parent is None else with_job_trace(job, parent)
                turn.jobs.append((command.work, job))
        elif kind is Publish:
            data = self.encode_shown(command.event)
            if data is not None:
                turn.shown.append((turn.last, data))
        elif kind is SetTimer:
            turn.timers[command.timer] = command.due
            self._run_worker.expect(command.due)
        elif kind is DropTimer:
            turn.timers[command.timer] = None
        elif kind is TrimJournal:
            turn.trim = True
        else:
            self._after.append(command)
            if kind is StopWork and self.queues_work:
                turn.stops.append(command.work)
            elif kind is EndRun:
                turn.state = command.state
                turn.timers.clear()  # Its inbox is deleted when it ends.
                turn.jobs.clear()
                turn.note = None
                self.write_end(turn, command)

    def turn(self) -> RunTurn:
        """The turn that is written next."""
        if self._turn is None:
            stored = self.stored
            self._turn = RunTurn(self.number, stored, stored, new=self._new, reaches_out=self.queues_work)
            self._new = None
            self._run_worker.mark_dirty(self)
        return self._turn

    def take_turn(self) -> tuple[RunTurn, list[Command]]:
        """Return the turn to write, and the commands to execute once it is written."""
        turn, self._turn = self._turn or self.turn(), None
        after, self._after = self._after, []
        if turn.state is not None and turn.state != "needs_attention":
            turn.asks.clear()  # A run that has ended asks for no input, even if it began to in this turn.
        if self.is_suspect and turn.state is None and self.is_cleared:
            self.is_suspect, turn.cleared = False, True
            turn.release = turn.release or self._run_worker.is_quarantine
        if self._run_worker.gives_back and turn.state is None and not self.has_steps_here:
            turn.release = True  # What would be started next is started by its next owner.
        if turn.release:
            turn.awake = not self.is_idle
            if turn.awake and not ((turn.cleared and self._run_worker.is_quarantine) or self._run_worker.gives_back):
                turn.release = False  # Something has arrived since its release was planned.
        for tick in turn.ticks:
            self._journaled += len(tick)
        if turn.state is None and (turn.trim or turn.release or self._needs_snapshot(turn)):
            self._take_snapshot(turn)
        self.stored = turn.last
        return turn, after

    def stop_for_attention(self, why: str, *, ways_out: str) -> None:
        """Stop the run until an operator decides how it continues."""
        if not self.let_go:
            log.error("run needs attention", run=self.number, why=loggable(why))
            turn = self.turn()
            turn.state = turn.state or "needs_attention"
            turn.note = turn.note or storable(f"{why}; {ways_out}")

    def give_up(self, error: BaseException) -> None:
        """Stop a run that cannot continue because of a defect: it is logged, and waits for an operator."""
        if self.let_go:
            return
        what = loggable(repr(error))
        trace = error if what == repr(error) else None
        log.error("run needs attention: it cannot go on", run=self.number, error=what, exc_info=trace)
        turn = self.turn()
        turn.state = turn.state or "needs_attention"
        turn.note = turn.note or storable(
            f"{type(error).__name__}: {error}; the run cannot go on: cancel it, or deploy what can"
        )

    def take_in(self, inbox: Sequence[int], ticks: Sequence[Tick]) -> None:
        """Take a tick from the inbox; its rows are deleted in the turn that journals it."""
        turn = self.turn()
        turn.used += inbox
        if ticks and self._has_note and turn.note is None:
            turn.note, self._has_note = "", False  # The run goes on: what was wrong with an earlier one is over.
        self.loop.post(*ticks)

    def note_unread(self, error: Exception) -> None:
        """Record that something in the inbox cannot be decoded, and continue."""
        log.error("what was sent to a run cannot be read here", run=self.number, error=str(error))
        self._set_note(f"something that was sent to it could not be read: {error}")

    def postpone(self, inbox_id: int, why: str) -> None:
        """Leave an inbox row for another version of the workflow, and try it again later."""
        self.turn().postponed.append(inbox_id)
        self._set_note(why)

    def _set_note(self, why: str) -> None:
        self.turn().note, self._has_note = storable(why), True

    def unwritten_inbox(self) -> list[int]:
        """Inbox rows that were taken but not journaled: they stay for the next owner."""
        return [] if self._turn is None else [*self._turn.used, *self._turn.postponed]

    def drop(self) -> None:
        """Remove the run from memory: it has ended, was released, or belongs to another owner."""
        self.let_go = True
        if not self.result.done():
            self.result.cancel()
        self.stop_all()
        self.loop.close()

    def _needs_snapshot(self, turn: RunTurn) -> bool:
        """Whether enough ticks have followed the last one: in bytes as many as it has, so that a large state is stored
        less often."""
        return turn.last - self.snapshot_at >= SNAPSHOT_EVERY and self._journaled >= self.snapshot_size

    def _take_snapshot(self, turn: RunTurn) -> None:
        self.snapshot_at, self._journaled = turn.last, 0
        try:
            turn.snapshot = self.loop.program.snapshot(self.loop.state)
            self.snapshot_size = len(turn.snapshot)
        except Exception as error:  # noqa: BLE001 - a step may have put anything into a list that it had stored before
            log.warning("no snapshot: something in the run's state has no JSON form", run=self.number, error=str(error))


class Unopened(DurableRun):
    """A run that cannot be opened: it can only store the reason."""

    queues_work = False
    has_slot = True  # as far as is known here: a run of its kind may wait for the slot

    def __init__(self, run_worker: RunWorker, number: int, stored: int) -> None:
        self.own(run_worker, number, stored=stored)
        self.result = asyncio.get_running_loop().create_future()

    def take_turn(self) -> tuple[RunTurn, list[Command]]:
        turn, self._turn = self.turn(), None
        return turn, []

    def drop(self) -> None:
        self.let_go = True
