"""Runs that survive: the shell around a run whose ticks are journaled in PostgreSQL.

Nothing follows from a tick before it is committed: the commands of a turn wait until the keeper has written the
turn, for all its runs together. Timers are rows, what is published is rows, and a run that only waits for the
outside is written down and leaves memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.core.codec import encode, storable
from tidemill.core.errors import PayloadError
from tidemill.core.ticks import (
    Command,
    Completed,
    DropTimer,
    EndRun,
    Noted,
    Publish,
    RunWork,
    SetTimer,
    Tick,
)
from tidemill.engine.loop import RunLoop
from tidemill.flows.context import Context
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.events import InternalDispatchEvent
from tidemill.flows.journal import Begun, encode_tick, read_record, tick_of
from tidemill.flows.notes import Ended, Failure, Narrated, Note
from tidemill.flows.runner import FlowRun
from tidemill.flows.signature import StepSpec
from tidemill.flows.state import FlowState, Work
from tidemill.flows.store import StateCell
from tidemill.flows.validate import find_state_type
from tidemill.flows.values import pack
from tidemill.store.runs import RunTurn

if TYPE_CHECKING:
    from tidemill.flows.keeper import RunKeeper
    from tidemill.flows.workflow import Workflow

log = structlog.get_logger("tidemill.flows")

SNAPSHOT_EVERY = 500


class DurableRun(FlowRun):
    """One run, owned by this process for as long as its keeper's lease is good."""

    holds_sends = True

    def __init__(self, workflow: Workflow, number: int, keeper: RunKeeper, *, stored: int, state: Any = None) -> None:
        cell = StateCell(find_state_type(workflow.steps))
        super().__init__(workflow, str(number), cell)
        if state is not None:
            self.loop.state = state
        self.number = number
        self.stored = stored
        self.snapshot_at = stored
        self.let_go = False
        self._keeper = keeper
        self._turn: RunTurn | None = None
        self._after: list[Command] = []

    # -- journaling -------------------------------------------------------------------------------

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        if self.let_go:  # A step that would not end: what it says now is said to nobody.
            return
        begun: Begun = [(command.work, command.name) for command in commands if type(command) is RunWork]
        last = len(ticks) - 1
        encoded = [encode_tick(tick, begun if at == last else []) for at, tick in enumerate(ticks)]
        turn = self.turn()
        turn.ticks += encoded
        turn.last += len(encoded)
        for command in commands:
            if isinstance(command, Publish):
                self._show(turn, command.event)
            elif isinstance(command, SetTimer):
                turn.timers[command.timer] = command.due
                self._keeper.expect(command.due)
            elif isinstance(command, DropTimer):
                turn.timers[command.timer] = None
            else:
                if isinstance(command, EndRun):
                    self._write_end(turn, command)
                self._after.append(command)

    def turn(self) -> RunTurn:
        """What is to be written down next."""
        if self._turn is None:
            self._turn = RunTurn(self.number, self.stored, self.stored)
            self._keeper.has_news(self)
        return self._turn

    def take_turn(self) -> tuple[RunTurn, list[Command]]:
        """Hand over what is to be written, and what follows once it is."""
        turn, self._turn = self.turn(), None
        after, self._after = self._after, []
        turn.awake = not self.loop.state.idle
        if turn.release and turn.awake and not self._keeper.is_stopping:
            turn.release = False  # Something has come for it since it was to be let go.
        if turn.state is None and (turn.release or turn.last - self.snapshot_at >= SNAPSHOT_EVERY):
            self._take_snapshot(turn)
        self.stored = turn.last
        return turn, after

    def give_up(self, error: BaseException) -> None:
        """The run cannot go on through a defect: it waits, loudly, for somebody to decide."""
        if self.let_go:
            return
        log.error("run parked: it cannot go on", run=self.number, error=repr(error), exc_info=error)
        turn = self.turn()
        turn.state = turn.state or "parked"
        turn.note = turn.note or storable(
            f"{type(error).__name__}: {error}; the run cannot go on: cancel it, or deploy what can"
        )

    def checked(self, spec: StepSpec, work: Work, ended: Ended) -> Ended:
        try:
            encode_tick(Completed(0.0, work.id, ended))
        except Exception as error:  # noqa: BLE001 - a user's own serializer may raise whatever it likes
            return self._failure(spec, work, error)
        return ended

    def note(self, work: Work, note: Note) -> None:
        if self.let_go:
            raise asyncio.CancelledError
        encode_tick(Noted(0.0, work.id, note))  # What cannot be kept must not happen either.
        super().note(work, note)

    def show(self, event: Any) -> None:
        data = None if isinstance(event, InternalDispatchEvent) else encode(pack(event))
        if data is None:
            return
        if threading.get_ident() == self._thread:
            self._show_encoded(data)
        else:
            self._home.call_soon_threadsafe(self._show_encoded, data)

    def take_in(self, inbox_id: int, tick: Tick) -> None:
        """Something from the inbox; its row is used up in the turn that journals it."""
        self.turn().used.append(inbox_id)
        self.loop.post(tick)

    def pass_over(self, inbox_id: int, why: str) -> None:
        """Something from the inbox that cannot be read: the run remembers that, and goes on."""
        turn = self.turn()
        turn.used.append(inbox_id)
        turn.note = storable(why)

    def unwritten_inbox(self) -> list[int]:
        """What it has taken from the inbox and will not write down any more: it is there for the next owner."""
        return [] if self._turn is None else self._turn.used

    def drop(self) -> None:
        """The run leaves memory: over, written down and released, or lost to another owner."""
        self.let_go = True
        if not self.result.done():
            self.result.cancel()
        for task in list(self._tasks.values()):
            task.cancel()
        self._events.close()

    def _show(self, turn: RunTurn, event: Any) -> None:
        if isinstance(event, Narrated | InternalDispatchEvent):
            return
        turn.shown.append(encode(pack(event)))

    def _show_encoded(self, data: bytes) -> None:
        if not self.let_go:
            self.turn().shown.append(data)

    def _take_snapshot(self, turn: RunTurn) -> None:
        self.snapshot_at = turn.last
        try:
            turn.snapshot = self.program.snapshot(self.loop.state)
        except Exception as error:  # noqa: BLE001 - a step may have put anything into a list that it had stored before
            log.warning("no snapshot: something in the run's state has no JSON form", run=self.number, error=str(error))

    def _write_end(self, turn: RunTurn, end: EndRun) -> None:
        turn.state = end.state
        turn.timers.clear()  # All of its inbox goes with its end.
        turn.result = None if end.result is None else encode(pack(end.result))
        if end.error is not None:
            turn.error = encode({"kind": end.error.kind, "message": end.error.message, "trace": end.error.traceback})
            turn.note = storable(f"{end.error.kind.rpartition('.')[2]}: {end.error.message}")
        elif end.state == "timed_out":
            turn.note = self._timeout_message()

    # -- running steps ----------------------------------------------------------------------------

    async def _attempt(self, work: Work) -> None:
        try:
            await super()._attempt(work)
        except Exception as error:  # noqa: BLE001 - one run's defect must not become everybody's
            self.give_up(error)

    async def _call(self, spec: StepSpec, work: Work, context: Context[Any]) -> Any:
        try:
            return await super()._call(spec, work, context)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:  # A step that asks to exit fails; the process has other runs.
            raise WorkflowRuntimeError(f"step {spec.name} raised {type(error).__name__}: {error}") from error

    def _failure(self, spec: StepSpec, work: Work, error: Exception) -> Ended:
        try:
            ended = super()._failure(spec, work, error)
        except Exception as worse:  # noqa: BLE001 - a retry policy is user code as well
            worse.__context__ = error
            kind = f"{type(worse).__module__}.{type(worse).__qualname__}"
            ended = Ended(error=Failure(kind, f"the retry policy of step {spec.name} failed: {worse}", "", worse))
        failure = ended.error
        if failure is None or storable(failure.message + failure.traceback) == failure.message + failure.traceback:
            return ended
        told = Failure(failure.kind, storable(failure.message), storable(failure.traceback))
        return Ended(error=told, retry_in=ended.retry_in)


def restore(workflow: Workflow, snapshot: bytes | None, ticks: Sequence[bytes]) -> FlowState:
    """The state of a run from its snapshot and the ticks after it; a `PayloadError` if they do not fit any more."""
    from tidemill.flows.reducer import FlowProgram

    program = FlowProgram(workflow.topology)
    if snapshot is not None:
        state = program.restore(snapshot)
    else:
        state = program.begin()
        state.store = StateCell(find_state_type(workflow.steps)).store
    begun: Begun = []
    for data in ticks:
        record = read_record(data)
        try:
            commands = program.reduce(state, tick_of(record))
        except KeyError as error:
            raise PayloadError(f"the workflow has no step {error} any more, and the run has been there") from error
        begun += [(command.work, command.name) for command in commands if type(command) is RunWork]
        if record.begun:
            _compare(record.begun, begun)
            begun = []
    return state


def _compare(recorded: Begun, begun: Begun) -> None:
    """Folding must start the work that was started then: else the workflow is another one."""
    if recorded != begun:
        then, now = (
            "; ".join(f"{name} ({number})" for number, name in each) or "nothing" for each in (recorded, begun)
        )
        raise PayloadError(f"where the run began {then}, the workflow of today would begin {now}")
