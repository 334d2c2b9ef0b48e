"""The reducer of a flow run: from ticks to state and commands. Pure.

The cost of a tick depends on what it changes: an event is looked up by its class, a collected event is appended to a
queue, a batch counts its events in progress. Nothing that grows with the run is copied or iterated.
"""

from __future__ import annotations

import heapq
from datetime import UTC, datetime
from typing import Any

import msgspec

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
    TrimJournal,
)
from tidemill.flows.definition.events import (
    ChildEnded,
    CollectionReleaseEvent,
    ContinuedEvent,
    HumanResponseEvent,
    InputRequiredEvent,
    InternalDispatchEvent,
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
from tidemill.flows.encoding.record import resolve
from tidemill.flows.encoding.snapshot import decode_state, encode_state
from tidemill.flows.encoding.values import pack
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.event_buffer import gather, undo, undo_all
from tidemill.flows.reducer.joins import Joins
from tidemill.flows.reducer.mailbox import keep, meets, send_event_of, take_fitting, take_spare
from tidemill.flows.reducer.record import RecordedOperation
from tidemill.flows.reducer.state import Ending, FlowState, QueuedEvent, StepProgress, Wait, Work
from tidemill.flows.reducer.state_paths import MISSING, read_path
from tidemill.flows.reducer.state_undo import keep_writes, write
from tidemill.flows.reducer.step_ticks import (
    Did,
    EditBasis,
    Ended,
    EventSent,
    Gathered,
    Narrated,
    StateEdited,
    StepFailure,
    Suspended,
    WaitAsked,
    Withdrew,
    Wrote,
)

RUN_TIMEOUT = "run"

COMPENSATE = "compensate "
"""The prefix of the names of side effects that register a compensation."""

RULES = 2
"""The rules of this reducer. 1: no records, no mailbox, a step that continues may exceed the number of workers."""


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
        state.started, state.rules = tick.at, tick.rules
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
        if work.outdated:
            self._run_again(work, out)
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
        if state.ending is not None:
            self._compensate_next(state, out)
            return
        if ended.events and isinstance(ended.events[0], ContinuedEvent):
            self._continue_as_new(state, ended.events[0].start, tick.at, out)
        elif ended.listed:
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
        forget_attempt(state, work)
        work.failed_at, work.error = at, ended.error
        if ended.retry_in is not None:
            work.attempt += 1
            if ended.retry_in > 0:
                state.pending += 1
                work.retry_at = at + ended.retry_in
                out.append(SetTimer(f"retry:{work.id}", work.retry_at))
            else:
                step = state.steps[work.step]
                step.queue.insert(step.woken, work)
            self._start_queued(state, work.step, out)
            return
        del state.works[work.id]
        if state.ending is not None:
            message = "the step failed" if ended.error is None else ended.error.message
            state.ending.failed.append(f"{work.step}: {message}")
            self._compensate_next(state, out)
            return
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
        if work.outdated and kind is not Did:
            if kind is WaitAsked:
                self._run_again(work, out)
        elif kind is EditBasis:
            work.outdated = any(_differ(read_path(state.store, path), value) for path, value in note.values)
        elif kind is Gathered:
            gather(state, work, note)
        elif kind is Wrote:
            write(state, work, ((note.path, note.value),))
        elif kind is StateEdited:
            write(state, work, note.changes)
        elif kind is EventSent:
            work.sent += len(note.events)
            work.spare += tuple(note.events)
            for event, target in note.events:
                self._deliver(state, QueuedEvent(event), tick.at, out, target=target)
        elif kind is WaitAsked:
            self._ask(state, work, note, tick.at, out)
        elif kind is Suspended:
            self._keep_record(state, work, note.operations, tick.at, out)
            if all(question in work.waiting for question in note.rests_on):
                self._suspend(state, work, out)
        elif kind is Withdrew:
            self._withdraw(state, work, note.question, out)
        elif kind is Did:
            if note.name.startswith(COMPENSATE) and note.name not in work.did:
                state.compensations.append(tuple(note.result))
            work.did[note.name] = note.result
            out.append(Answer(work.id, once_question(note.name), note.result))

    def _run_again(self, work: Work, out: list[Command]) -> None:
        """Run a step on a queue again, with the present state: another step has changed what it has edited."""
        work.outdated = False
        out.append(self._run(work))

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
        if what == "step":  # In memory it times out by itself; otherwise it runs again, and finds that its time is up.
            work = state.works.get(int(number))
            if work is not None and work.asleep and not work.replies:
                work.asleep = False
                self._occupy(state, work)
                out.append(self._run(work))
            return
        number, _, question = number.partition(":")
        work = state.works.get(int(number))
        if work is not None and question in work.waiting:
            work.lapsed[question] = work.lapsed.get(question, 0) + 1
            self._continue(state, work, question, out)

    def _resumed(self, state: FlowState, tick: Resumed, out: list[Command]) -> None:
        """Start the work in progress again, with its record. What only waits runs again when it has its answer."""
        state.rules = tick.rules
        for work in list(state.works.values()):
            if tick.afresh:
                if work.slot >= 0 and work.record:
                    forget_attempt(state, work)
                    work.attempt, work.restarted = work.attempt + 1, True
                continue
            if tick.queued and work.queue is not None and not work.restarted:
                continue
            if work.slot >= 0 or work.waiting or work.replies:
                undo(state, work)
                work.withdrawn = NONE
                if work.suspended or work.replies:
                    work.asleep = True
                    continue
                if work.by_count and tick.rules > 1:
                    self._number_waits(state, work, out)
                if not work.record:  # It has never been suspended: its time begins anew with its new process.
                    work.since = tick.at
                # Its questions stay open: an answer that arrives before it asks again is kept.
                self._occupy(state, work)
                work.restarted = False
                out.append(self._run(work))

    def _number_waits(self, state: FlowState, work: Work, out: list[Command]) -> None:
        """Give each wait of an older version its number: one that had timed out twice before is the third."""
        for base, times in list(work.lapsed.items()):
            del work.lapsed[base]
            work.lapsed |= {numbered(base, number + 1): 1 for number in range(times)}
            question = numbered(base, times + 1)
            if base in work.answers:
                work.answers[question] = work.answers.pop(base)
            if base in work.waiting:
                wait = work.waiting[base]
                self._stop_waiting(state, work, base, out)
                self._open_wait(state, work, msgspec.structs.replace(wait, question=question), out)

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
        if state.ending is not None:  # Only compensations run now.
            return
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
            if state.rules > 1 and target is None and not isinstance(queued_event.event, _NOT_KEPT):
                keep(state, queued_event.event)

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
        if not work.replies:
            work.since = state.at
            out.append(self._run(work))
            return
        step.woken -= 1
        self._reply(work, out)

    def _reply(self, work: Work, out: list[Command]) -> None:
        """Deliver what a step has waited for. A step that is in no process any more is started again instead."""
        if not work.asleep:
            out += [Answer(work.id, question, work.answers.get(question)) for question in work.replies]
        if work.asleep or work.queue is not None:
            out.append(self._run(work))
        work.asleep, work.replies = False, ()

    def _run(self, work: Work) -> RunWork:
        known = None
        if work.answers or work.lapsed or work.given_up:
            known = (dict(work.answers), dict(work.lapsed), work.given_up)
        return RunWork(work.id, work.step, work.input, work.attempt, work.queue, known)

    def _leave(self, state: FlowState, work: Work, out: list[Command]) -> None:
        """End an attempt and free its worker."""
        if work.waiting:
            for question in list(work.waiting):
                self._stop_waiting(state, work, question, out)
        if work.slot >= 0:
            self._free_slot(state, work)
        elif work.replies:
            self._leave_queue(state, work)
        work.suspended = False
        if work.record and self._deadline(work) is not None:
            out.append(DropTimer(f"step:{work.id}"))

    def _leave_queue(self, state: FlowState, work: Work) -> None:
        """Remove a step that was to continue from the queue for a free worker."""
        step = state.steps[work.step]
        step.queue.remove(work)
        step.woken -= 1
        work.replies = ()

    def _free_slot(self, state: FlowState, work: Work) -> None:
        state.steps[work.step].slots.discard(work.slot)
        work.slot = -1
        state.running -= 1
        if work.queue is not None:
            state.on_queue -= 1

    # -- collecting and waiting -------------------------------------------------------------------

    def _keep_record(
        self, state: FlowState, work: Work, operations: tuple[RecordedOperation, ...], at: float, out: list[Command]
    ) -> None:
        """Record what a step did since its last suspension: from here on it is kept, and its events leave."""
        kept = resolve(operations, state.store)
        for operation in kept:
            if operation.kind == "send":
                sent = send_event_of(operation)
                if operation.leaves:
                    self._deliver(state, QueuedEvent(sent[0]), at, out, target=sent[1])
                else:
                    spare = list(work.spare)
                    take_spare(spare, sent)
                    work.spare = tuple(spare)
        work.record += kept
        work.wrote, work.gathered_before, work.taken_before = len(work.undo), len(work.gathered), len(work.taken)
        work.given_up |= work.withdrawn
        work.withdrawn = NONE
        work.by_count = False

    def _ask(self, state: FlowState, work: Work, note: WaitAsked, at: float, out: list[Command]) -> None:
        rests_on = note.rests_on
        if note.operations is None:  # An older version: other steps have seen its writes and events, so they are kept.
            work.by_count, work.wrote, work.shown = True, len(work.undo), max(work.shown, note.shown)
            rests_on = (note.question,)
        else:
            self._keep_record(state, work, note.operations, at, out)
        question = note.question
        if question in work.answers or note.lapses < work.lapsed.get(question, 0):
            self._answer_now(work, question, work.answers.get(question), out)
            return
        asked = work.waiting.get(question)
        if asked is None:
            fitting = take_fitting(state, note.kind, note.requirements, subclasses=note.subclasses)
            if fitting is not None:
                work.answers[question] = fitting
                self._answer_now(work, question, fitting, out)
                return
            asked = Wait(question, note.kind, note.requirements, None, note.timeout, note.subclasses)
        if asked.due is None and note.timeout is not None:
            asked.due = at + note.timeout
        work.waiting[question] = asked
        if all(each in work.waiting for each in rests_on) and rests_on:
            self._suspend(state, work, out)
        if question not in work.asked and note.show is not None:
            out.append(Publish(note.show))
        work.asked |= {question}
        self._open_wait(state, work, asked, out)

    def _open_wait(self, state: FlowState, work: Work, wait: Wait, out: list[Command]) -> None:
        work.waiting[wait.question] = wait
        state.waits.setdefault(wait.kind, {})[work.id, wait.question] = work
        if wait.due is not None:
            out.append(SetTimer(f"wait:{work.id}:{wait.question}", wait.due))

    def _suspend(self, state: FlowState, work: Work, out: list[Command]) -> None:
        """Free the worker of a step that waits with all its parts."""
        work.suspended = not work.by_count
        if (deadline := self._deadline(work)) is not None:
            out.append(SetTimer(f"step:{work.id}", deadline))
        if work.slot >= 0:
            self._narrate(out, work, "not_running", None)
            self._free_slot(state, work)
            self._start_queued(state, work.step, out)

    def _deadline(self, work: Work) -> float | None:
        """Return when the present attempt of a step in a durable run times out; a step on a queue counts per job."""
        timeout = self.topology.steps[work.step].timeout
        return work.since + timeout if self._durable and timeout is not None and work.queue is None else None

    def _answer(self, state: FlowState, event: Any, out: list[Command]) -> bool:
        """Deliver an event to every step that waits for it; returns False if none does."""
        kind = type(event)
        answered = False
        for each in kind.__mro__:
            waits = state.waits.get(each)
            for (_, question), work in list(waits.items()) if waits else ():
                wait = work.waiting[question]
                if (each is kind or wait.subclasses) and meets(event, wait.requirements):
                    work.answers[question] = event
                    self._continue(state, work, question, out)
                    answered = True
        return answered

    def _answer_now(self, work: Work, question: str, event: Any, out: list[Command]) -> None:
        """Answer a step that has only just asked. A step on a queue has ended its job, so a new job is started."""
        out.append(Answer(work.id, question, event))
        if work.queue is not None:
            out.append(self._run(work))

    def _withdraw(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        """Stop a wait that the step has given up. An answer that was on its way is the first in the mailbox."""
        if question in work.waiting:
            self._stop_waiting(state, work, question, out)
            self._occupy(state, work)
        elif state.rules > 1 and question in work.answers:
            state.mailbox.appendleft(work.answers.pop(question))
            if work.replies == (question,):
                self._leave_queue(state, work)
                self._occupy(state, work)
            elif question in work.replies:
                work.replies = tuple(each for each in work.replies if each != question)
        work.withdrawn |= {question}

    def _stop_waiting(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        wait = work.waiting.pop(question)
        waits = state.waits[wait.kind]
        waits.pop((work.id, question), None)
        if not waits:
            del state.waits[wait.kind]
        if wait.due is not None:
            out.append(DropTimer(f"wait:{work.id}:{question}"))

    def _continue(self, state: FlowState, work: Work, question: str, out: list[Command]) -> None:
        """Continue a step whose wait is over: at once, or as the next when it has no free worker."""
        self._stop_waiting(state, work, question, out)
        work.suspended = False
        work.replies += (question,)
        if work.slot >= 0:
            self._reply(work, out)
        elif len(work.replies) == 1:
            step = state.steps[work.step]
            if state.rules == 1 or len(step.slots) < self.topology.steps[work.step].num_workers:
                step.woken += 1
                self._begin(state, step, work, out)
            else:
                step.queue.insert(step.woken, work)
                step.woken += 1

    def _occupy(self, state: FlowState, work: Work) -> None:
        """Give a worker to a step that no longer waits."""
        work.suspended = False
        if work.slot < 0 and not work.replies:
            self._take_slot(state, state.steps[work.step], work)

    def _take_slot(self, state: FlowState, step: StepProgress, work: Work) -> None:
        """Take the first free worker; a step that runs again or gives up its wait may exceed their number."""
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
        if state.ending is not None:
            return
        if status != "succeeded" and state.compensations:
            self._begin_compensating(state, Ending(status, error, event, why), out)
            return
        state.status, state.result, state.error = status, result, error
        for number in heapq.nsmallest(len(state.works), state.works):
            work = state.works[number]
            if work.slot >= 0 or work.waiting or work.replies:
                out.append(StopWork(number))
        out.append(Publish(event))
        out.append(EndRun(status, result, error, why))

    def _begin_compensating(self, state: FlowState, ending: Ending, out: list[Command]) -> None:
        """Stop all work of a run that fails or is cancelled, and run its compensations before it ends."""
        self._stop_all(state, out)
        if self.timeout is not None:
            out.append(DropTimer(RUN_TIMEOUT))
        state.ending = ending
        self._compensate_next(state, out)

    def _compensate_next(self, state: FlowState, out: list[Command]) -> None:
        """Run the compensation that was registered last, or end the run if there is none left."""
        if state.compensations:
            name, event = state.compensations.pop()
            self.enqueue(state, self.topology.steps[name], event, (), (), type(event), state.at, out)
            return
        ending, state.ending = state.ending, None
        if ending is not None:
            why = "; ".join([*filter(None, [ending.why]), *(f"compensation failed: {each}" for each in ending.failed)])
            self._end(state, out, ending.status, event=ending.event, error=ending.error, why=why)

    def _continue_as_new(self, state: FlowState, start: Any, at: float, out: list[Command]) -> None:
        """Begin again with another start event. Of what was, the state, the mailbox and compensations stay."""
        self._stop_all(state, out)
        state.started = at
        if self.timeout is not None:
            out.append(SetTimer(RUN_TIMEOUT, at + self.timeout))
        out.append(TrimJournal())
        self.route(state, QueuedEvent(start), at, out)

    def _stop_all(self, state: FlowState, out: list[Command]) -> None:
        """Stop all work, and forget what waits, what is queued and what is collected."""
        for work in sorted(state.works.values(), key=lambda each: each.id):
            is_active = work.slot >= 0 or work.waiting or work.replies
            self._leave(state, work, out)
            undo_all(state, work)
            out.append(StopWork(work.id) if is_active else DropTimer(f"retry:{work.id}"))
        for step in state.steps.values():
            step.queue.clear()
            step.slots.clear()
            step.woken = 0
        for kept in (state.works, state.batches, state.pairs, state.buffers, state.waits, state.prompts):
            kept.clear()
        state.running = state.on_queue = state.pending = 0

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


NONE: frozenset[str] = frozenset()

#: Events that are not kept for a later wait.
_NOT_KEPT = (InputRequiredEvent, StopEvent, InternalDispatchEvent, ChildEnded)


def _differ(one: Any, other: Any) -> bool:
    return one is not other and (one is MISSING or other is MISSING or pack(one) != pack(other))


def once_question(name: str) -> str:
    """Return the name under which a step waits for the commit of a side effect."""
    return f"once {name}"


def numbered(base: str, number: int) -> str:
    """Return the question of the wait with this number among those that ask the same."""
    return base if number == 1 else f"{base} #{number}"


def forget_attempt(state: FlowState, work: Work) -> None:
    """Undo a failed attempt as a whole. Answers, side effects and successful children carry over to the next one."""
    undo_all(state, work)
    work.spare += tuple(send_event_of(each) for each in work.record if each.kind == "send")
    work.record, work.lapsed, work.shown, work.by_count = (), {}, 0, False
    work.asked = work.withdrawn = work.given_up = NONE
    for key, answer in list(work.answers.items()):
        if isinstance(answer, ChildEnded) and answer.state != "succeeded":
            del work.answers[key]
            base = key.partition(" again ")[0]
            reborn = work.reborn or {}
            work.reborn = {**reborn, base: reborn.get(base, 0) + 1}


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
