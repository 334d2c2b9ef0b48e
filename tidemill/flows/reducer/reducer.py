"""The reducer of a flow run: from ticks to state and commands. Pure.

The cost of a tick depends on what it changes: an event is looked up by its class, a collected event is appended to a
queue, a batch counts its events in progress. Nothing that grows with the run is copied or iterated.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime
from typing import Any

from tidemill.core.ticks import (
    Answer,
    CancelAsked,
    Command,
    Completed,
    DropTimer,
    Elapsed,
    EndRun,
    Noted,
    Publish,
    Received,
    Resumed,
    RunWork,
    SetTimer,
    Started,
    StopWork,
    Tick,
)
from tidemill.flows.definition.events import (
    CollectionReleaseEvent,
    HumanResponseEvent,
    InputRequiredEvent,
    StepFailedEvent,
    StopEvent,
    UnhandledEvent,
    WorkflowCancelledEvent,
    WorkflowFailedEvent,
    WorkflowIdleEvent,
    WorkflowTimedOutEvent,
)
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.topology import Topology
from tidemill.flows.encoding.exceptions import exception_from
from tidemill.flows.encoding.snapshot import decode_state, encode_state
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.event_buffer import gather, undo
from tidemill.flows.reducer.joins import Joins
from tidemill.flows.reducer.state import FlowState, QueuedEvent, StepProgress, Wait, Work
from tidemill.flows.reducer.state_undo import keep_writes, write
from tidemill.flows.reducer.step_ticks import (
    Did,
    Ended,
    EventSent,
    Gathered,
    Narrated,
    StateEdited,
    StepFailure,
    WaitAsked,
    Withdrew,
    Wrote,
)

RUN_TIMEOUT = "run"


class FlowProgram:
    """A workflow as a program for the control loop."""

    def __init__(self, topology: Topology, *, narrates: bool = True, durable: bool = False) -> None:
        self.topology = topology
        self.timeout = topology.durable_timeout if durable else topology.timeout
        self._durable = durable
        self._joins = Joins(self)
        self._narrates = narrates  # whether the start and end of every attempt is published

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
            self._end(state, out, "cancelled", event=WorkflowCancelledEvent(), why=why)
        elif kind is Resumed:
            self._resumed(state, tick, out)  # pyright: ignore[reportArgumentType]
        if state.status == "running":
            self._watch_idle(state, out)
        return out

    def snapshot(self, state: FlowState) -> bytes:
        return encode_state(state)

    def restore(self, data: bytes) -> FlowState:
        return decode_state(data, self.topology)

    # -- ticks ------------------------------------------------------------------------------------

    def _started(self, state: FlowState, tick: Started, out: list[Command]) -> None:
        state.started = tick.at
        if self.timeout is not None:
            out.append(SetTimer(RUN_TIMEOUT, tick.at + self.timeout))
        self.route(state, QueuedEvent(tick.input), tick.at, out)

    def _received(self, state: FlowState, tick: Received, out: list[Command]) -> None:
        if state.prompts and isinstance(tick.event, HumanResponseEvent):
            state.prompts.popleft()
        self._deliver(state, QueuedEvent(tick.event), tick.at, out, target=tick.target)

    def _completed(self, state: FlowState, tick: Completed, out: list[Command]) -> None:
        work = state.works.get(tick.work)
        if work is None:
            return
        ended: Ended = tick.outcome
        if ended.error is not None:
            self._narrate(out, work, "not_running", None)
            self._leave(state, work, out)
            self._failed(state, work, ended, tick.at, out)
            return
        self._narrate(out, work, "not_running", type(ended.events[0]) if ended.events else type(None))
        self._leave(state, work, out)
        if work.undo:
            keep_writes(state, work)
        del state.works[work.id]
        if ended.listed:
            self._joins.open_batch(state, work, ended.events, tick.at, out)
        else:
            for event in ended.events:
                self.route(state, QueuedEvent(event, work.lineage, work.recovered), tick.at, out, returned=True)
        if state.status != "running":
            return
        for event, target in ended.sent:
            self._deliver(state, QueuedEvent(event), tick.at, out, target=target)
        if work.lineage:
            self._joins.release_token(state, work.lineage, tick.at, out)
        self._start_queued(state, work.step, out)

    def _failed(self, state: FlowState, work: Work, ended: Ended, at: float, out: list[Command]) -> None:
        """Undo the changes of a failed attempt, then retry it, call its error handler, or end the run."""
        undo(state, work)
        work.shown, work.lapsed = 0, {}
        work.failed_at, work.error = at, ended.error
        if ended.retry_in is not None:
            work.attempt += 1
            if ended.retry_in > 0:
                state.pending += 1
                work.retry_at = at + ended.retry_in
                out.append(SetTimer(f"retry:{work.id}", work.retry_at))
            else:
                state.steps[work.step].queue.appendleft(work)
            self._start_queued(state, work.step, out)
            return
        del state.works[work.id]
        handler = self.topology.handler_of.get(work.step)
        rescued = dict(work.recovered).get(handler.name, 0) if handler is not None else 0
        if handler is None or rescued >= handler.catch_error_max_recoveries:
            event = WorkflowFailedEvent(
                step_name=work.step,
                exception=_exception(ended.error),
                attempts=work.attempt,
                elapsed_seconds=at - work.began,
            )
            self._end(state, out, "failed", error=ended.error, event=event)
            return
        failed = StepFailedEvent(
            step_name=work.step,
            input_event=_as_event(work.input),
            exception=_exception(ended.error),
            attempts=work.attempt,
            elapsed_seconds=at - work.began,
            failed_at=datetime.fromtimestamp(at, UTC),
        )
        recovered = (*((n, c) for n, c in work.recovered if n != handler.name), (handler.name, rescued + 1))
        self.enqueue(state, handler, failed, work.lineage, recovered, StepFailedEvent, at, out)
        self._joins.release_token(state, work.lineage, at, out)
        self._start_queued(state, work.step, out)

    def _noted(self, state: FlowState, tick: Noted, out: list[Command]) -> None:
        work = state.works.get(tick.work)
        if work is None:
            return
        note = tick.note
        kind = type(note)
        if kind is Gathered:
            gather(state, work, note)
        elif kind is Wrote:
            write(state, work, ((note.path, note.value),))
        elif kind is StateEdited:
            write(state, work, note.changes)
        elif kind is EventSent:
            work.sent += len(note.events)
            for event, target in note.events:
                self._deliver(state, QueuedEvent(event), tick.at, out, target=target)
        elif kind is WaitAsked:
            self._ask(state, work, note, tick.at, out)
        elif kind is Withdrew:
            self._withdraw(state, work, note.question, out)
        elif kind is Did:
            work.did[note.name] = note.result

    def _elapsed(self, state: FlowState, tick: Elapsed, out: list[Command]) -> None:
        what, _, number = tick.timer.partition(":")
        if what == RUN_TIMEOUT:
            active = sorted({work.step for work in state.works.values() if work.slot >= 0})
            event = WorkflowTimedOutEvent(timeout=self.timeout or 0.0, active_steps=active)
            self._end(state, out, "timed_out", event=event)
            return
        if what == "retry":
            work = state.works.get(int(number))
            if work is not None:
                state.pending -= 1
                state.steps[work.step].queue.append(work)
                self._start_queued(state, work.step, out)
            return
        number, _, question = number.partition(":")
        work = state.works.get(int(number))
        if work is not None and question in work.waiting:
            self._continue(state, work, question, out)
            work.lapsed[question] = work.lapsed.get(question, 0) + 1
            self._deliver_answer(work, question, None, out)

    def _resumed(self, state: FlowState, tick: Resumed, out: list[Command]) -> None:
        """Start the work in progress again, with the answers that it received before."""
        for work in state.works.values():
            if tick.queued and work.queue is not None:
                continue
            if work.slot >= 0 or work.waiting:
                # Its questions stay open: an answer that arrives before it asks again is kept.
                self._occupy(state, work)
                undo(state, work, since=work.wrote)
                out.append(self._run(work))

    # -- routing ----------------------------------------------------------------------------------

    def route(
        self, state: FlowState, queued_event: QueuedEvent, at: float, out: list[Command], *, returned: bool = False
    ) -> None:
        """Route an event that a step has returned, or that started the run."""
        event = queued_event.event
        if returned and isinstance(event, StopEvent):
            self._end(state, out, "succeeded", result=event, event=event)
            return
        if returned and isinstance(event, InputRequiredEvent):
            out.append(Publish(event))
            if self.topology.answers:
                state.prompts.append(event)
        self._deliver(state, queued_event, at, out)

    def _deliver(
        self, state: FlowState, queued_event: QueuedEvent, at: float, out: list[Command], *, target: str | None = None
    ) -> None:
        """Deliver an event to the steps that wait for it and to those that take it."""
        kind = type(queued_event.event)
        answered = self._answer(state, queued_event.event, out) if state.waits else False
        specs = self.topology.accepting(kind)
        if target is not None:
            specs = tuple(spec for spec in specs if spec.name == target)
        for spec in specs:
            if spec.collection_param is not None:
                self._joins.arrive(state, spec, queued_event, at, out)
            elif spec.collect_params:
                self._joins.pair(state, spec, queued_event, at, out)
            else:
                self.enqueue(
                    state, spec, queued_event.event, queued_event.lineage, queued_event.recovered, kind, at, out
                )
        if not specs and not answered:
            self._unhandled(state, queued_event.event, out)

    def enqueue(
        self,
        state: FlowState,
        spec: StepSpec,
        given: Any,
        lineage: tuple[int, ...],
        recovered: tuple[tuple[str, int], ...],
        cause: type,
        at: float,
        out: list[Command],
    ) -> None:
        state.sequence += 1
        work = Work(state.sequence, spec.name, given, lineage, recovered, cause, at, queue=spec.queue)
        state.works[work.id] = work
        for batch in lineage:
            state.batches[batch].tokens += 1
        step = state.steps[spec.name]
        if not step.queue and len(step.slots) < spec.num_workers:
            self._begin(state, step, work, out)
            return
        step.queue.append(work)
        self._start_queued(state, spec.name, out)
        if work.slot < 0:
            self._narrate(out, work, "preparing", None)

    def _start_queued(self, state: FlowState, name: str, out: list[Command]) -> None:
        """Start the queued work of a step while it has free workers."""
        step = state.steps[name]
        if step.queue:
            most = self.topology.steps[name].num_workers
            while step.queue and len(step.slots) < most:
                self._begin(state, step, step.queue.popleft(), out)

    def _begin(self, state: FlowState, step: StepProgress, work: Work, out: list[Command]) -> None:
        self._take_slot(state, step, work)
        self._narrate(out, work, "running", None)
        out.append(self._run(work))

    def _run(self, work: Work) -> RunWork:
        known = (dict(work.answers), dict(work.lapsed)) if work.answers or work.lapsed else None
        return RunWork(work.id, work.step, work.input, work.attempt, work.queue, known)

    def _leave(self, state: FlowState, work: Work, out: list[Command]) -> None:
        """End an attempt and free its worker."""
        if work.waiting:
            for question in list(work.waiting):
                self._stop_waiting(state, work, question, out)
        if work.slot >= 0:
            self._free_slot(state, work)

    def _free_slot(self, state: FlowState, work: Work) -> None:
        state.steps[work.step].slots.discard(work.slot)
        work.slot = -1
        state.running -= 1
        if work.queue is not None:
            state.on_queue -= 1

    # -- collecting and waiting -------------------------------------------------------------------

    def _ask(self, state: FlowState, work: Work, note: WaitAsked, at: float, out: list[Command]) -> None:
        # Other steps have seen its writes and events, so they are kept and not repeated when it runs again.
        work.wrote, work.shown = len(work.undo), max(work.shown, note.shown)
        if note.lapses < work.lapsed.get(note.question, 0):
            out.append(Answer(work.id, note.question, None))
            return
        if note.question in work.answers:
            out.append(Answer(work.id, note.question, work.answers[note.question]))
            return
        asked = work.waiting.get(note.question)
        first = asked is None
        if asked is None:
            asked = work.waiting[note.question] = Wait(note.question, note.kind, note.requirements)
        if asked.due is None and note.timeout is not None:
            asked.due = at + note.timeout
        state.waits.setdefault(note.kind, {})[work.id, note.question] = work
        if work.slot >= 0:  # A waiting step holds no worker.
            self._narrate(out, work, "not_running", None)
            self._free_slot(state, work)
            self._start_queued(state, work.step, out)
        if first and note.show is not None:
            out.append(Publish(note.show))
        if asked.due is not None:
            out.append(SetTimer(f"wait:{work.id}:{note.question}", asked.due))

    def _answer(self, state: FlowState, event: Any, out: list[Command]) -> bool:
        """Deliver an event to every step that waits for it; returns False if none does."""
        waits = state.waits.get(type(event))
        if not waits:
            return False
        answered = False
        for (_, question), work in list(waits.items()):
            if _meets(event, work.waiting[question].requirements):
                self._continue(state, work, question, out)
                work.answers[question] = event
                self._deliver_answer(work, question, event, out)
                answered = True
        return answered

    def _deliver_answer(self, work: Work, question: str, event: Any, out: list[Command]) -> None:
        """Deliver the awaited event to a step. A step on a queue has ended its job, so a new job is started."""
        out.append(Answer(work.id, question, event))
        if work.queue is not None:
            out.append(self._run(work))

    def _withdraw(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        """Stop a wait that the step has given up. An answer that was already sent is kept for its next wait."""
        if question in work.waiting:
            self._continue(state, work, question, out)

    def _stop_waiting(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        wait = work.waiting.pop(question)
        waits = state.waits[wait.kind]
        waits.pop((work.id, question), None)
        if not waits:
            del state.waits[wait.kind]
        if wait.due is not None:
            out.append(DropTimer(f"wait:{work.id}:{question}"))

    def _continue(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        """Continue a step that has received what it waited for."""
        self._stop_waiting(state, work, question, out)
        if work.slot < 0:
            self._occupy(state, work)
            self._narrate(out, work, "running", None)

    def _occupy(self, state: FlowState, work: Work) -> None:
        """Give a worker to a step that no longer waits."""
        if work.slot < 0:
            self._take_slot(state, state.steps[work.step], work)

    def _take_slot(self, state: FlowState, step: StepProgress, work: Work) -> None:
        """Take the first free worker; a step that continues after a wait may exceed the number of workers."""
        slot = 0
        while slot in step.slots:
            slot += 1
        work.slot = slot
        step.slots.add(slot)
        state.running += 1
        if work.queue is not None:
            state.on_queue += 1

    # -- ends -------------------------------------------------------------------------------------

    def _end(
        self,
        state: FlowState,
        out: list[Command],
        status: str,
        *,
        event: Any,
        result: Any = None,
        error: StepFailure | None = None,
        why: str = "",
    ) -> None:
        state.status, state.result, state.error = status, result, error
        for number in heapq.nsmallest(len(state.works), state.works):
            if state.works[number].slot >= 0 or state.works[number].waiting:
                out.append(StopWork(number))
        out.append(Publish(event))
        out.append(EndRun(status, result, error, why))

    def _unhandled(self, state: FlowState, event: Any, out: list[Command]) -> None:
        if isinstance(event, InputRequiredEvent):  # It is addressed to the outside: no step has to take it.
            return
        kind = type(event)
        idle = state.running == 0 and state.pending == 0
        name = f"{kind.__module__}.{kind.__qualname__}"
        out.append(Publish(UnhandledEvent(event_type=kind.__name__, qualified_name=name, step_name=None, idle=idle)))
        state.idle = False

    def _watch_idle(self, state: FlowState, out: list[Command]) -> None:
        """Publish a `WorkflowIdleEvent`, once, when no work is in progress."""
        idle = state.running == 0 and state.pending == 0 and not any(step.queue for step in state.steps.values())
        if idle and not state.idle:
            out.append(Publish(WorkflowIdleEvent()))
            if self._durable and not (state.works or state.prompts or self.topology.takes_from_outside):
                self._dead_end(state, out)
        state.idle = idle

    def _dead_end(self, state: FlowState, out: list[Command]) -> None:
        """Fail a run that nothing can continue: no step runs or waits, and none takes an event from outside."""
        lost = [c.event.event_type for c in out if isinstance(c, Publish) and isinstance(c.event, UnhandledEvent)]
        why = f"no step takes the {lost[-1]} that it has received" if lost else "its last step has returned no event"
        message = f"the run cannot go on: {why}, no step runs or waits, and none takes an event from outside"
        error = WorkflowRuntimeError(message)
        failure = StepFailure("tidemill.flows.errors.WorkflowRuntimeError", message, "", error)
        self._end(state, out, "failed", error=failure, event=WorkflowFailedEvent(step_name="", exception=error))

    def _narrate(self, out: list[Command], work: Work, status: str, output: type | None) -> None:
        if not self._narrates or (work.slot < 0 and status == "not_running"):
            return  # For a waiting step it was published when the wait started.
        out.append(Publish(Narrated(work.step, status, work.slot, work.cause, output)))


def _meets(event: Any, requirements: dict[str, Any]) -> bool:
    return all(getattr(event, name, None) == value for name, value in requirements.items())


def _as_event(given: Any) -> Any:
    if isinstance(given, list):
        return CollectionReleaseEvent(events=given)
    return next(reversed(given.values())) if isinstance(given, dict) else given


def _exception(failure: StepFailure | None) -> Exception:
    if failure is None:
        return WorkflowRuntimeError("the step failed")
    if failure.exception is not None:
        return failure.exception
    return exception_from({"exception_type": failure.kind, "exception_message": failure.message})
