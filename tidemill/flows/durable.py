"""Runs that survive: the shell around a run whose ticks are journaled in PostgreSQL.

Nothing follows from a tick before it is committed: the commands of a turn wait until the keeper has written the
turn, for all its runs together. Timers are rows, what is published is rows, and a run that only waits for the
outside is written down and leaves memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill.core.codec import encode
from tidemill.core.errors import PayloadError
from tidemill.core.program import fold
from tidemill.core.ticks import (
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Publish,
    SetTimer,
    Tick,
)
from tidemill.engine.loop import RunLoop
from tidemill.flows.events import InternalDispatchEvent
from tidemill.flows.journal import decode_tick, encode_tick
from tidemill.flows.notes import Ended, Narrated, Note
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
        self._timer_names: set[str] = set()

    # -- journaling -------------------------------------------------------------------------------

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        turn = self.turn()
        for tick in ticks:
            turn.ticks.append(encode_tick(tick))
            turn.last += 1
        for command in commands:
            if isinstance(command, Publish):
                self._show(turn, command.event)
            elif isinstance(command, SetTimer):
                turn.timers[command.timer] = command.due
                self._timer_names.add(command.timer)
                self._keeper.expect(command.due)
            elif isinstance(command, DropTimer):
                self._drop_timer(turn, command.timer)
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
        if turn.state is None and (turn.release or turn.last - self.snapshot_at >= SNAPSHOT_EVERY):
            turn.snapshot = self.program.snapshot(self.loop.state)
            self.snapshot_at = turn.last
        self.stored = turn.last
        return turn, after

    def checked(self, spec: StepSpec, work: Work, ended: Ended) -> Ended:
        try:
            encode_tick(Completed(0.0, work.id, ended))
        except PayloadError as error:
            return self._failure(spec, work, error)
        return ended

    def note(self, work: Work, note: Note) -> None:
        if self.let_go:
            raise asyncio.CancelledError
        super().note(work, note)

    def publish(self, event: Any) -> None:
        self._show(self.turn(), event)

    def take_in(self, inbox_id: int, tick: Tick) -> None:
        """Something from the inbox; its row is used up in the turn that journals it."""
        self.turn().used.append(inbox_id)
        if isinstance(tick, Elapsed):
            self._timer_names.discard(tick.timer)
        self.loop.post(tick)

    def drop(self) -> None:
        """The run leaves memory: written down and released, or lost to another owner."""
        self.let_go = True
        for task in self._tasks.values():
            task.cancel()
        if not self.result.done():
            self.result.cancel()
        self._events.close()

    def _show(self, turn: RunTurn, event: Any) -> None:
        if isinstance(event, Narrated | InternalDispatchEvent):
            return
        turn.shown.append(encode(pack(event)))
        self._events.put(event)

    def _drop_timer(self, turn: RunTurn, name: str) -> None:
        self._timer_names.discard(name)
        turn.timers[name] = None

    def _write_end(self, turn: RunTurn, end: EndRun) -> None:
        turn.state = end.state
        turn.result = None if end.result is None else encode(pack(end.result))
        if end.error is not None:
            turn.error = encode({"kind": end.error.kind, "message": end.error.message, "trace": end.error.traceback})
            turn.note = f"{end.error.kind.rpartition('.')[2]}: {end.error.message}"
        elif end.state == "timed_out":
            turn.note = self._timeout_message()
        for name in list(self._timer_names):
            self._drop_timer(turn, name)


def restore(workflow: Workflow, snapshot: bytes | None, ticks: Sequence[bytes]) -> FlowState:
    """The state of a run from its snapshot and the ticks after it; a `PayloadError` if they do not fit any more."""
    from tidemill.flows.reducer import FlowProgram

    program = FlowProgram(workflow.topology)
    if snapshot is not None:
        state = program.restore(snapshot)
    else:
        state = program.begin()
        state.store = StateCell(find_state_type(workflow.steps)).store
    try:
        state = fold(program, map(decode_tick, ticks), state)
    except KeyError as error:
        raise PayloadError(f"the workflow has no step {error} any more, and the run has been there") from error
    return state
