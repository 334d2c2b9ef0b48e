"""The reducer of a flow run: from ticks to state and commands. Pure.

The cost of a tick depends on what it changes: an event is looked up by its class, a collected event is appended to a
queue, a batch counts its events in progress. Nothing that grows with the run is copied or iterated.
"""

from __future__ import annotations

from typing import Any

from tidemill.core.ticks import (
    Answer,
    CancelAsked,
    Command,
    Completed,
    Elapsed,
    Migrated,
    Noted,
    Received,
    Resumed,
    SetTimer,
    Started,
    StopWork,
    Tick,
    TrimJournal,
)
from tidemill.flows.definition.events import (
    ContinuedEvent,
    HumanResponseEvent,
    WorkflowCancelledEvent,
    WorkflowTimedOutEvent,
)
from tidemill.flows.definition.topology import Topology
from tidemill.flows.encoding.snapshot import decode_state, encode_state
from tidemill.flows.encoding.values import pack
from tidemill.flows.reducer.attempts import leave, narrate, occupy, run_again, run_work, start_queued
from tidemill.flows.reducer.event_buffer import gather, undo
from tidemill.flows.reducer.failures import attempt_failed, forget_attempt
from tidemill.flows.reducer.joins import release_token
from tidemill.flows.reducer.routing import deliver, open_batch, route
from tidemill.flows.reducer.run_end import RUN_TIMEOUT, compensate_next, end_run, stop_all, watch_idle
from tidemill.flows.reducer.state.flow_state import NONE, FlowState, QueuedEvent, StepProgress
from tidemill.flows.reducer.state.paths import MISSING, read_path
from tidemill.flows.reducer.state.undo import keep_writes, write
from tidemill.flows.reducer.step_ticks import (
    Did,
    EditBasis,
    Ended,
    EventSent,
    Gathered,
    StateEdited,
    Suspended,
    WaitAsked,
    Withdrew,
    Wrote,
)
from tidemill.flows.reducer.suspension import ask, keep_record, suspend
from tidemill.flows.reducer.waits import continue_step, number_waits, once_question, restart_copied, withdraw

COMPENSATE = "compensate "
"""The prefix of the names of side effects that register a compensation."""

RULES = 2
"""The rules of this reducer. 1: no records, no mailbox, a step that continues may exceed the number of workers."""


_LOOK_AGAIN = 1.0
"""Seconds after which the timeout of a step that waits in memory is looked at again."""


class FlowProgram:
    """A workflow as a program for the control loop."""

    def __init__(self, topology: Topology, *, narrates: bool = True, durable: bool = False) -> None:
        self.topology = topology
        self.timeout = topology.durable_timeout if durable else topology.timeout
        self.durable = durable
        self.narrates = narrates  # whether the start and end of every attempt is published

    @property
    def version(self) -> str:
        return self.topology.version

    def begin(self) -> FlowState:
        return FlowState(steps={name: StepProgress() for name in self.topology.steps})

    def reduce(self, state: FlowState, tick: Tick) -> list[Command]:
        """Apply one tick to the state and return the resulting commands."""
        out: list[Command] = []
        if state.status != "running":
            return out
        state.at = tick.at
        kind = type(tick)
        if kind is Completed:
            self._completed(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is Noted:
            self._noted(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is Received:
            self._received(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is Started:
            self._started(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is Elapsed:
            self._elapsed(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is CancelAsked:
            why = tick.reason  # pyright: ignore[reportAttributeAccessIssue]
            end_run(self, state, out, "cancelled", event=WorkflowCancelledEvent(), why=why)
        elif kind is Resumed:
            self._resumed(state, tick, out)  # pyright: ignore[reportArgumentType]
        elif kind is Migrated:
            self._migrated(state, tick, out)  # pyright: ignore[reportArgumentType]
            return out
        if state.status == "running" and (state.idle or not state.running):  # Else it goes on as before.
            watch_idle(self, state, out)
        return out

    def snapshot(self, state: FlowState) -> bytes:
        return encode_state(state)

    def restore(self, data: bytes) -> FlowState:
        return decode_state(data, self.topology)

    def _started(self, state: FlowState, tick: Started, out: list[Command]) -> None:
        state.started, state.rules, state.version = tick.at, tick.rules, tick.version
        if self.timeout is not None:
            out.append(SetTimer(RUN_TIMEOUT, tick.at + self.timeout))
        route(self, state, QueuedEvent(tick.input), tick.at, out)

    def _received(self, state: FlowState, tick: Received, out: list[Command]) -> None:
        if state.prompts and isinstance(tick.event, HumanResponseEvent):
            state.prompts.popleft()
        deliver(self, state, QueuedEvent(tick.event), tick.at, out, target=tick.target)

    def _completed(self, state: FlowState, tick: Completed, out: list[Command]) -> None:
        work = state.works.get(tick.work)
        if work is None:
            return
        if work.outdated:
            run_again(work, out)
            return
        ended: Ended = tick.outcome
        if ended.error is not None:
            narrate(self, out, work, "not_running", None)
            leave(self, state, work, out)
            attempt_failed(self, state, work, ended, tick.at, out)
            return
        if self.narrates:
            narrate(self, out, work, "not_running", type(ended.events[0]) if ended.events else type(None))
        leave(self, state, work, out)
        if work.undo or work.kept_writes:
            keep_writes(state, work)
        del state.works[work.id]
        if state.ending is not None:
            compensate_next(self, state, out)
            return
        if ended.events and type(ended.events[0]) is ContinuedEvent:
            self._continue_as_new(state, ended.events[0].start, tick.at, out)
        elif ended.listed:
            open_batch(self, state, work, ended.events, tick.at, out)
        else:
            for event in ended.events:
                route(self, state, QueuedEvent(event, work.lineage, work.recovered), tick.at, out, returned=True)
        if state.status != "running":
            return
        for event, target in ended.sent:
            deliver(self, state, QueuedEvent(event), tick.at, out, target=target)
        if work.lineage:
            release_token(self, state, work.lineage, tick.at, out)
        start_queued(self, state, work.step, out)

    def _noted(self, state: FlowState, tick: Noted, out: list[Command]) -> None:
        work = state.works.get(tick.work)
        if work is None:
            return
        note = tick.note
        kind = type(note)
        if work.outdated and kind is not Did:
            if kind is WaitAsked:
                run_again(work, out)
        elif kind is EditBasis:
            work.outdated = any(_differ(read_path(state.store, path), value) for path, value in note.values)
        elif kind is Gathered:
            gather(state, work, note)
        elif kind is Wrote:
            write(state, work, ((note.path, note.value),), edits=note.edits)
        elif kind is StateEdited:
            write(state, work, note.changes, edits=note.edits)
        elif kind is EventSent:
            work.sent += len(note.events)
            work.spare += tuple(note.events)
            for event, target in note.events:
                deliver(self, state, QueuedEvent(event), tick.at, out, target=target)
        elif kind is WaitAsked:
            ask(self, state, work, note, tick.at, out)
        elif kind is Suspended:
            keep_record(self, state, work, note.operations, tick.at, out)
            if all(question in work.waiting for question in note.rests_on):
                suspend(self, state, work, out)
        elif kind is Withdrew:
            withdraw(state, work, note.question, out)
        elif kind is Did:
            if note.name.startswith(COMPENSATE) and note.name not in work.did:
                state.compensations.append(tuple(note.result))
            work.did[note.name] = note.result
            out.append(Answer(work.id, once_question(note.name), note.result))

    def _elapsed(self, state: FlowState, tick: Elapsed, out: list[Command]) -> None:
        what, _, number = tick.timer.partition(":")
        if what == RUN_TIMEOUT:
            active = sorted({work.step for work in state.works.values() if work.slot >= 0})
            event = WorkflowTimedOutEvent(timeout=self.timeout or 0.0, active_steps=active)
            end_run(self, state, out, "timed_out", event=event)
            return
        if what == "retry":
            work = state.works.get(int(number))
            if work is not None:
                state.pending -= 1
                state.steps[work.step].queue.append(work)
                start_queued(self, state, work.step, out)
            return
        if what == "step":  # In memory it times out by itself; otherwise it runs again, and finds that its time is up.
            work = state.works.get(int(number))
            if work is not None and work.asleep and not work.replies:
                work.asleep = False
                occupy(state, work)
                out.append(run_work(work))
            elif work is not None and work.suspended:  # It may leave memory before: its process may have stood still.
                out.append(SetTimer(tick.timer, tick.at + _LOOK_AGAIN))
            return
        number, _, question = number.partition(":")
        work = state.works.get(int(number))
        if work is not None and question in work.waiting:
            work.lapsed[question] = work.lapsed.get(question, 0) + 1
            continue_step(self, state, work, question, out)

    def _resumed(self, state: FlowState, tick: Resumed, out: list[Command]) -> None:
        """Start the work in progress again, with its record. What only waits runs again when it has its answer."""
        state.rules = tick.rules
        active = [work for work in state.works.values() if work.slot >= 0 or work.waiting or work.replies]
        if tick.afresh:
            for work in active:
                if work.slot >= 0 and work.record:
                    forget_attempt(state, work)
                    work.attempt, work.restarted = work.attempt + 1, True
            return
        if tick.forked:
            for work in active:
                restart_copied(state, work, out)
            return
        again = [work for work in active if not tick.queued or work.queue is None or work.restarted]
        undo(state, *again)
        for work in again:
            work.withdrawn = NONE
            if work.suspended or work.replies:
                work.asleep = True
                continue
            if work.counted_to is not None and tick.rules > 1:
                number_waits(state, work, out)
            if not work.record:  # It has never been suspended: its time starts again with its new process.
                work.since = tick.at
            # Its questions stay open: an answer that arrives before it asks again is kept.
            occupy(state, work)
            work.restarted = False
            out.append(run_work(work))

    def _migrated(self, state: FlowState, tick: Migrated, out: list[Command]) -> None:
        """Go on from the state that a migration has made for this version of the workflow.

        Work that starts again in another place is stopped where it was."""
        moved = decode_state(tick.state, self.topology)
        for name in FlowState.__struct_fields__:
            if name not in ("at", "copies"):
                setattr(state, name, getattr(moved, name))
        out += [StopWork(work.id) for work in state.works.values() if work.restarted]

    def _continue_as_new(self, state: FlowState, start: Any, at: float, out: list[Command]) -> None:
        """Begin again with another start event. Of what was, the state, the mailbox and compensations stay."""
        stop_all(self, state, out)
        state.started = at
        if self.timeout is not None:
            out.append(SetTimer(RUN_TIMEOUT, at + self.timeout))
        out.append(TrimJournal())
        route(self, state, QueuedEvent(start), at, out)


def _differ(one: Any, other: Any) -> bool:
    return one is not other and (one is MISSING or other is MISSING or pack(one) != pack(other))
