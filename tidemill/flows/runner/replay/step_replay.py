"""Replay one attempt of a step: recorded operations give what they gave, and the step goes on from there.

Each asyncio task and each thread inside a step is a lane with a record of its own: see `record_lanes`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.copies import SHARED, copy_data
from tidemill.flows.encoding.exceptions import exception_document
from tidemill.flows.encoding.record import UNKNOWN
from tidemill.flows.errors import StepDiverged, WorkflowRuntimeError
from tidemill.flows.reducer.mailbox import Sent, send_event_of, take_spare
from tidemill.flows.reducer.record import (
    BEGIN,
    EDITING,
    END_OF_LANE,
    GAVE_UP,
    MARKS,
    ROOT,
    RecordedOperation,
)
from tidemill.flows.reducer.state.paths import MISSING, read_path
from tidemill.flows.reducer.state.undo import before_kept_writes
from tidemill.flows.reducer.step_ticks import Suspended, WaitAsked
from tidemill.flows.reducer.waits import numbered
from tidemill.flows.runner.replay.lent_values import LentValues, place_of
from tidemill.flows.runner.replay.record_lanes import (
    NOTHING,
    RecordLane,
    RemainingRecord,
    arguments_of,
    current_lane,
    current_owner,
    name_of,
    raise_recorded,
)
from tidemill.flows.runner.replay.record_order import END, RecordOrder, in_words
from tidemill.flows.runner.replay.turns import Turns

if TYPE_CHECKING:
    from tidemill.flows.reducer.state.flow_state import Work
    from tidemill.flows.runner.in_memory import FlowRun


class StepReplay:
    """The record of one attempt: what is left of it, and what the attempt has done since."""

    __slots__ = (
        *("run", "work", "copies", "observer", "root", "spare", "diverged", "ended", "takes_turns"),
        *("sends_to_skip", "writes_to_skip", "shows_to_skip"),
        *("_fresh", "_kept", "_lent", "_holds_events", "_turns", "_order"),
    )

    def __init__(self, run: FlowRun, work: Work, owner: Any, done: list[RecordedOperation] | None = None) -> None:
        """`done` is what an attempt without a record has done so far."""
        self.run = run
        self.work = work
        self.copies = run.is_durable
        self.observer = run.observer
        self.root = RecordLane(self, ROOT, owner)
        # Those of earlier attempts: what this one sends is added to the work's.
        self.spare = work.spare if done is None else ()
        self.diverged: StepDiverged | None = None
        self.ended = False
        self.sends_to_skip = self.writes_to_skip = self.shows_to_skip = 0
        self._fresh: list[RecordedOperation] = [] if done is None else done
        self._kept: RemainingRecord | None = None
        self._lent: LentValues | None = None
        self._holds_events = False
        self._turns: Turns | None = None
        self._order: RecordOrder | None = None
        self.takes_turns = run.observer is not None
        """Whether an operation may have to wait for others: those before it in the record, or those of a simulation."""
        if work.counted_to is not None:
            self.sends_to_skip, self.writes_to_skip, self.shows_to_skip = work.sent, work.wrote, work.shown
        if work.record:
            self._give(self.root)
            self._order = self._record.order
            self.takes_turns = self.takes_turns or self._order is not None

    @property
    def _record(self) -> RemainingRecord:
        """What only steps need that wait, have tasks, or run again."""
        if self._kept is None:
            self._kept = RemainingRecord(self.work, self.spare, orders=self.copies)
        return self._kept

    @property
    def lent(self) -> LentValues:
        """The values of the state that the step holds."""
        if self._lent is None:
            self._lent = LentValues()
        return self._lent

    @property
    def is_changed_in_place(self) -> bool:
        """Whether the step has changed a value of the state that it holds."""
        return self._lent is not None and self._lent.are_changed

    def at(self, kind: str, key: str) -> tuple[RecordLane, RecordedOperation | None]:
        """Return the lane of the caller, and the recorded operation that this is; None behind the end of the record."""
        lane = self.lane(kind, key)
        return lane, self.next_of(lane, kind, key) if lane.left else None

    def next_of(self, lane: RecordLane, kind: str, key: str) -> RecordedOperation:
        """Return the next operation of this kind and key in what is left of a lane's record."""
        queue = lane.record.get((kind, key))
        if not queue:
            raise self.diverge(lane, f"the step now does {in_words(kind, key)}")
        lane.left -= 1
        lane.at, operation = queue.popleft()
        if self._order is not None and kind != "edit":  # It counts when it ends.
            self._did(lane.at)
        return operation

    # -- turns ------------------------------------------------------------------------------------

    @property
    def turns(self) -> Turns:
        """What the tasks of the step wait for."""
        if self._turns is None:
            self._turns = Turns(self.run._home, (self.run.weak, self.work.id), self.work.step, self._order)
        return self._turns

    @property
    def has_tasks(self) -> bool:
        """Whether more than the step's own task uses its context."""
        return self._kept is not None and bool(self._kept.running)

    async def take_turn(self, kind: str, key: str, *, rests: bool = False) -> None:
        """Wait until the operations before this one in the record have been done; `rests` if it had to wait before."""
        lane = self.lane(kind, key)
        if lane.inside is not None or lane.name in self._record.editing or not self._is_at_home:
            return
        if self.observer is not None:
            await self.observer.pause()
            rests = True
        position, order = self._position_of(lane, kind, key), self._order
        if kind == "edit":  # It is recorded when it ends, after what others do meanwhile.
            position = min(position, self._position_of(lane, EDITING, ""))
        if rests or (order is not None and not order.is_turn(lane.name, position)):
            await self.turns.take(lane.name, position)

    async def rest(self, lane: RecordLane) -> None:
        """Go on after a wait that is not recorded when the step is at rest."""
        if self.copies and self._is_at_home:
            await self.turns.take(lane.name)

    def after(self, lane: RecordLane, operation: RecordedOperation | None) -> int:
        """Return the position behind a recorded wait if the lane has gone on after it, else the end of the record."""
        return END if operation is None or not lane.left else lane.at + 1

    def may_pass(self, lane: RecordLane, kind: str, key: str, after: int) -> bool:
        """Pass a mark if it is its turn; returns whether it is. `after` is the position that it has without a mark."""
        if self.copies:
            if self._is_at_home and not self.turns.is_next(lane.name, self._position_of(lane, kind, key, after)):
                return False
            self.mark(lane, kind, key)
        return True

    async def pass_mark(self, lane: RecordLane, kind: str, key: str, after: int = END, arrival: int = 0) -> None:
        """Wait until it is the turn of a mark, and pass it."""
        if not self.may_pass(lane, kind, key, after):
            await self.turns.take(lane.name, self._position_of(lane, kind, key, after), arrival)
            self.mark(lane, kind, key)

    async def give_up(self, lane: RecordLane, question: str) -> None:
        """Go on without an answer. Tasks that are cancelled together go on one after the other."""
        position = self._position_of(lane, GAVE_UP, question)
        try:
            if self.copies and lane is not self.root and not self.ended and self.run.is_running and self._is_at_home:
                await self.turns.take(lane.name, 0 if position == END else position)
        finally:
            self.mark(lane, GAVE_UP, question)

    def mark(self, lane: RecordLane, kind: str, key: str = "") -> None:
        """Pass a mark in the record, or add it."""
        if marks := lane.record.get((kind, key)):
            self._did(marks.popleft()[0])
        elif self.copies and self.has_tasks and not self.ended:  # A run in memory keeps no order.
            self.add(lane, kind, key)
        else:
            lane.pass_unmarked(kind, key)

    def _mark_before_tasks(self) -> None:
        """Add the marks that the step's own task went on before it had the tasks that begin now."""
        if self.copies and not self.has_tasks:
            for kind, key in self.root.unmarked:
                self.add(self.root, kind, key)
        self.root.unmarked = ()

    def _position_of(self, lane: RecordLane, kind: str, key: str, otherwise: int = END) -> int:
        queue = lane.record.get((kind, key))
        return queue[0][0] if queue else otherwise

    @property
    def _is_at_home(self) -> bool:
        """Whether this is the event loop of the run: code in another one cannot wait for the step."""
        return asyncio._get_running_loop() is self.run._home

    def _did(self, position: int) -> None:
        """An operation of the record has been done again."""
        if self._order is not None:
            self._order.do(position)
            if self._order.is_over:
                self.takes_turns = self.observer is not None
            self._go_on()

    def _go_on(self) -> None:
        if self._turns is not None:
            if threading.get_ident() == self.run._thread:
                self._turns.progress()
            else:
                self.run.soon(self._turns.progress)

    # -- lanes ------------------------------------------------------------------------------------

    def lane(self, kind: str = "", key: str = "") -> RecordLane:
        """Return the lane of the caller; a task that has done nothing yet begins one with this operation."""
        lane, run = self.root, self.run
        if self._kept is not None and (current := current_lane.get(None)) is not None and current.replay is self:
            lane = current
        # The task of the run's own event loop is found without a system call.
        is_here = threading.get_ident() == run._thread
        owner = asyncio.current_task(run._home) if is_here else current_owner()
        if lane.owner is owner or lane.owner == owner or owner is None or lane.inside is not None:
            return lane
        return self._enter_lane(lane, owner, kind, key)

    def expect_lane(self, lane: RecordLane) -> None:
        """Add a lane whose task has not begun yet, with what is recorded of it."""
        self._mark_before_tasks()
        self._give(lane)
        self._record.running[lane] = None

    def open_lane(self, lane: RecordLane) -> None:
        """Make the calling task this lane."""
        lane.owner = current_owner()
        current_lane.set(lane)
        lane.owner.add_done_callback(partial(self._end_lane, lane))

    def _enter_lane(self, parent: RecordLane, owner: Any, kind: str, key: str) -> RecordLane:
        """Make a task or thread that the step has started a lane under its parent."""
        record = self._record
        base, first = f"{parent.name}/{name_of(owner)}.", f"{kind} {key}"
        arguments = arguments_of(owner) if self.copies else None
        name = record.claim(base, first, arguments)
        lane = RecordLane(self, name or record.new_name(base), owner)
        self._give(lane)
        if name is None:
            self._mark_before_tasks()
            self.add(lane, BEGIN, first, arguments)
        else:
            self.mark(lane, BEGIN, first)
        record.running[lane] = None
        current_lane.set(lane)
        if isinstance(owner, asyncio.Future):
            owner.add_done_callback(partial(self._end_lane, lane))
        return lane

    def _end_lane(self, lane: RecordLane, task: Any) -> None:
        lane.owner = None
        self.mark(lane, END_OF_LANE)
        self._record.running.pop(lane, None)
        if self._order is not None and any(lane.record.values()):
            self._order.end_lane(lane.name)
            self._go_on()
        self.suspend_if_all_wait()

    def _give(self, lane: RecordLane) -> None:
        """Give a lane what is recorded of it."""
        lane.record = self._record.lanes.pop(lane.name, NOTHING)
        lane.left = sum(len(queue) for (kind, _), queue in lane.record.items() if kind not in MARKS)

    # -- recording --------------------------------------------------------------------------------

    def add(
        self,
        lane: RecordLane,
        kind: str,
        key: str,
        result: Any = None,
        error: Exception | None = None,
        leaves: bool = False,
    ) -> None:
        """Add an operation behind the end of the record."""
        if lane.inside is not None:
            return
        if leaves:
            self._holds_events = True
        if error is None:
            self._fresh.append(RecordedOperation(lane.name, kind, key, result, None, leaves))
        else:
            raised = tuple(exception_document(error).values())
            self._fresh.append(RecordedOperation(lane.name, kind, key, result, raised, leaves))

    def flush(self) -> tuple[RecordedOperation, ...]:
        """Return what the step did since its last suspension, for the tick that records it."""
        fresh = self._fresh
        count = len(fresh)
        taken = fresh[:count]
        del fresh[:count]
        editing = None if self._kept is None else self._kept.editing
        if editing:  # What a lane does inside an edit is recorded with the edit or not at all.
            held = [each for n, each in enumerate(taken) if n >= editing.get(each.lane, count)]
            taken = [each for n, each in enumerate(taken) if n < editing.get(each.lane, count)]
            fresh[:0] = held
            editing.update(dict.fromkeys(editing, 0))
        return tuple(taken)

    def effect(self, name: str) -> asyncio.Lock:
        """Return the lock of a side effect, which two tasks of the step must not do at the same time."""
        return self._record.effects.setdefault(name, asyncio.Lock())

    def begin_edit(self, lane: RecordLane) -> None:
        if self.has_tasks:
            self.mark(lane, EDITING)
        self._record.editing[lane.name] = len(self._fresh)

    def end_edit(self, lane: RecordLane) -> None:
        self._record.editing.pop(lane.name, None)

    @contextmanager
    def recorded_edit(self, lane: RecordLane, operation: RecordedOperation) -> Iterator[Any]:
        """Give the state of an edit that is in the record; it counts as done when it ends."""
        if lane.record.get((EDITING, "")):
            self.mark(lane, EDITING)
        position = lane.at
        try:
            yield copy_data(operation.result)
        finally:
            self._did(position)
        raise_recorded(operation)

    def unsent(self) -> tuple[Sent, ...]:
        """Return the events that leave when the step ends."""
        return tuple([send_event_of(each) for each in self._fresh if each.leaves]) if self._holds_events else ()

    def is_spare(self, sent: Sent) -> bool:
        """Return whether an equal event has left with an earlier attempt."""
        return bool(self.spare) and take_spare(self._record.spare, sent)

    def refuse_inside_effect(self, lane: RecordLane, what: str) -> None:
        """Raise if a side effect uses what is not available to it."""
        if lane.inside is not None:
            raise WorkflowRuntimeError(
                f"{what} is not available inside ctx.once({lane.inside!r}), which is not repeated when the step runs "
                "again: return a value from the side effect and use it after"
            )

    # -- reads ------------------------------------------------------------------------------------

    def read(self, kind: str, path: str, store: Any, live: dict[str, Any]) -> Any:
        """Return the value at a path of the state, as it was when the step read it first. Live objects are as now."""
        lane = self.lane(kind, path)
        operation = self.next_of(lane, kind, path) if lane.left else None
        if self.work.kept_writes:
            store = self.view(store)
        if operation is not None and operation.result is not UNKNOWN:
            found = operation.result
        elif live:
            holder, rest = place_of(path, store, live)
            found = read_path(holder, rest) if path else self.whole(store)
            if operation is None and lane.inside is None:
                self._fresh.append(RecordedOperation(lane.name, kind, path, found if holder is store else UNKNOWN))
            if holder is not store:
                return found
        else:
            found = read_path(store, path) if path else self.whole(store)
            if operation is None and lane.inside is None:
                self._fresh.append(RecordedOperation(lane.name, kind, path, found))
        if not self.copies or found is MISSING or type(found) in SHARED:
            return found
        return self.lent.lend(path, found)

    def view(self, store: Any) -> Any:
        """Return the state as this attempt sees it: what it has to write again is not there yet."""
        kept = self.work.kept_writes
        return before_kept_writes(store, kept) if kept else store

    def whole(self, store: Any) -> Any:
        """Return the whole state for the record: the values of its names change in place, so it is copied."""
        return copy(store) if self.copies else store

    def value(self, kind: str, make: Callable[[], Any]) -> Any:
        """Return a value that is made once and then recorded."""
        lane, operation = self.at(kind, "")
        if operation is not None:
            return operation.result
        made = make()
        self.add(lane, kind, "", made)
        return made

    # -- waits ------------------------------------------------------------------------------------

    def question(self, base: str, *, named: bool) -> str:
        """Return the question of a wait that is not in the record: the next number, or the same again if it is named.

        A named wait that has timed out, or was given up, is asked again.
        """
        asked = self._record.questions.setdefault(base, [])
        if named and asked and not self.run.is_closed(self.work, asked[-1]):
            return asked[-1]
        asked.append(numbered(base, len(asked) + 1))
        return asked[-1]

    def child_key(self, base: str) -> str:
        """Return the key of a child run that is not in the record."""
        children = self._record.children
        number = children[base] = children.get(base, 0) + 1
        key = f"{base} {number}"
        again = (self.work.reborn or {}).get(key, 0)
        return f"{key} again {again}" if again else key

    def ask(self, note: WaitAsked) -> None:
        """Post a wait, with what the step did since its last suspension."""
        operations = self.flush()
        self.stop_skipping()
        try:
            self.run.note(self.work, msgspec.structs.replace(note, operations=operations, rests_on=self.rests_on()))
        except PayloadError:
            self._fresh[:0] = operations
            raise

    def stop_skipping(self) -> None:
        """Skip no more operations: they were counted up to a wait, and what follows it has not been done."""
        self.sends_to_skip = self.writes_to_skip = self.shows_to_skip = 0

    def fail_wait(self, lane: RecordLane, kind: str, key: str, question: str, error: Exception) -> None:
        """Record that a wait could not be asked."""
        self._fresh = [each for each in self._fresh if each.kind != kind or each.result != question]
        self.add(lane, kind, key, question, error)

    def rests_on(self) -> tuple[str, ...]:
        """Return the questions that the step waits for if all of it waits; nothing if a part of it goes on."""
        if self.ended or not (self.root.waits or self.root.joined):
            return ()
        questions: list[str] = []
        for lane in (self.root, *self._record.running):
            if lane.waits and lane.question is not None:
                questions.append(lane.question)
            elif not lane.joined:
                return ()
        return tuple(questions)

    def suspend_if_all_wait(self) -> None:
        """Post that all of the step waits, if it does."""
        if (rests_on := self.rests_on()) and self.run.is_running:
            self.run.note(self.work, Suspended(self.flush(), rests_on))

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """The attempt has ended: what its tasks have left behind keeps nothing of it in memory."""
        self.ended = True
        if self._turns is not None:
            self._turns.close()
        for lane in (self.root,) if self._kept is None else (self.root, *self._kept.running):
            lane.replay = lane.owner = None

    def check_end(self) -> None:
        """Raise if the step returns though its record goes on."""
        if self.diverged is not None:
            raise self.diverged
        if self.root.left:
            raise self.diverge(self.root, "the step now returns")

    def diverge(self, lane: RecordLane, came: str) -> StepDiverged:
        """Return the exception of a step that does not follow its record; the run is stopped."""
        if self.diverged is None:
            left = [each for queue in lane.record.values() for _, each in queue if each.kind not in MARKS]
            names = ", ".join(in_words(each.kind, each.key) for each in left[:3]) or "the end of the task"
            part = f" (in its task {lane.name})" if lane.name else ""
            self.diverged = StepDiverged(
                f"step {self.work.step}{part} does not follow the record of its earlier run: the record continues with "
                f"{names}, but {came}"
            )
            self.run.diverge(self.work, self.diverged)
        return self.diverged

    def observe(self, lane: RecordLane, operation: RecordedOperation | None, kind: str, key: str, value: Any) -> None:
        """Tell a simulation the value of a write or a send, replayed or not."""
        if self.observer is not None:
            part = (lane.name, kind, key)
            counts = self._record.counts
            number = counts[part] = counts.get(part, 0) + 1
            place = (self.run.run_id, self.work.id, self.work.attempt, *part, number)
            (self.observer.did if operation is None else self.observer.replayed)(place, value)
