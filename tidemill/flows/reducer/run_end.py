"""The end of a run: its compensations, its last event, and runs that nothing can continue. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.core.ticks import Command, DropTimer, EndRun, Publish, StopWork
from tidemill.flows.definition.events import UnhandledEvent, WorkflowFailedEvent, WorkflowIdleEvent
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.attempts import enqueue, leave
from tidemill.flows.reducer.event_buffer import undo_all
from tidemill.flows.reducer.state.flow_state import Ending, FlowState
from tidemill.flows.reducer.state.undo import drop_kept_writes
from tidemill.flows.reducer.step_ticks import StepFailure

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


RUN_TIMEOUT = "run"


def end_run(
    program: FlowProgram,
    state: FlowState,
    out: list[Command],
    status: str,
    *,
    event: Any,
    result: Any = None,
    error: StepFailure | None = None,
    why: str = "",
) -> None:
    """End the run, or begin its compensations if it has not succeeded."""
    if state.ending is not None:
        return
    if status != "succeeded" and state.compensations:
        _begin_compensating(program, state, Ending(status, error, event, why), out)
        return
    state.status, state.result, state.error = status, result, error
    for number in sorted(state.works):
        work = state.works[number]
        if work.slot >= 0 or work.waiting or work.replies:
            out.append(StopWork(number))
    out.append(Publish(event))
    out.append(EndRun(status, result, error, why))


def _begin_compensating(program: FlowProgram, state: FlowState, ending: Ending, out: list[Command]) -> None:
    """Stop all work of a run that fails or is cancelled, and run its compensations before it ends."""
    stop_all(program, state, out)
    if program.timeout is not None:
        out.append(DropTimer(RUN_TIMEOUT))
    state.ending = ending
    compensate_next(program, state, out)


def compensate_next(program: FlowProgram, state: FlowState, out: list[Command]) -> None:
    """Run the compensation that was registered last, or end the run if there is none left."""
    if state.compensations:
        name, event = state.compensations.pop()
        enqueue(program, state, program.topology.steps[name], event, (), (), type(event), state.at, out)
        return
    ending, state.ending = state.ending, None
    if ending is not None:
        why = "; ".join([*filter(None, [ending.why]), *(f"compensation failed: {each}" for each in ending.failed)])
        end_run(program, state, out, ending.status, event=ending.event, error=ending.error, why=why)


def stop_all(program: FlowProgram, state: FlowState, out: list[Command]) -> None:
    """Stop all work, and forget what waits, what is queued and what is collected."""
    for work in sorted(state.works.values(), key=lambda each: each.id):
        is_active = bool(work.slot >= 0 or work.waiting or work.replies)  # It waits for nothing once it has left.
        leave(program, state, work, out)
        undo_all(state, work)
        drop_kept_writes(state, work)
        out.append(StopWork(work.id) if is_active else DropTimer(f"retry:{work.id}"))
    for step in state.steps.values():
        step.queue.clear()
        step.slots.clear()
        step.woken = 0
    for kept in (state.works, state.batches, state.pairs, state.buffers, state.waits, state.prompts):
        kept.clear()
    state.running = state.on_queue = state.pending = 0


def watch_idle(program: FlowProgram, state: FlowState, out: list[Command]) -> None:
    """Publish a `WorkflowIdleEvent`, once, when no work is in progress."""
    idle = state.running == 0 and state.pending == 0 and not any(step.queue for step in state.steps.values())
    if idle and not state.idle:
        out.append(Publish(WorkflowIdleEvent()))
        if program.durable and not (state.works or state.prompts or program.topology.takes_from_outside):
            _dead_end(program, state, out)
    state.idle = idle


def _dead_end(program: FlowProgram, state: FlowState, out: list[Command]) -> None:
    """Fail a run that nothing can continue: no step runs or waits, and none takes an event from outside."""
    lost = [c.event.event_type for c in out if isinstance(c, Publish) and isinstance(c.event, UnhandledEvent)]
    why = f"no step takes the {lost[-1]} that it has received" if lost else "its last step has returned no event"
    message = f"the run cannot go on: {why}, no step runs or waits, and none takes an event from outside"
    error = WorkflowRuntimeError(message)
    failure = StepFailure("tidemill.flows.errors.WorkflowRuntimeError", message, "", error)
    end_run(program, state, out, "failed", error=failure, event=WorkflowFailedEvent(step_name="", exception=error))
