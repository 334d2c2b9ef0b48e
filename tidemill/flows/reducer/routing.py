"""Route events to the steps that take them and to those that wait for them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.core.ticks import Command, Publish
from tidemill.flows.definition.events import (
    ChildEnded,
    InputRequiredEvent,
    InternalDispatchEvent,
    StopEvent,
    UnhandledEvent,
)
from tidemill.flows.reducer.attempts import enqueue
from tidemill.flows.reducer.joins import arrive, pair, release_token
from tidemill.flows.reducer.mailbox import keep
from tidemill.flows.reducer.run_end import end_run
from tidemill.flows.reducer.state.flow_state import EventBatch, FlowState, QueuedEvent, Work
from tidemill.flows.reducer.waits import answer_waits

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


#: Events that are not kept for a later wait.
_NOT_KEPT = (InputRequiredEvent, StopEvent, InternalDispatchEvent, ChildEnded)


def route(
    program: FlowProgram,
    state: FlowState,
    queued_event: QueuedEvent,
    at: float,
    out: list[Command],
    *,
    returned: bool = False,
) -> None:
    """Route an event that a step has returned, or that started the run."""
    event = queued_event.event
    if returned and isinstance(event, StopEvent):
        end_run(program, state, out, "succeeded", result=event, event=event)
        return
    if returned and isinstance(event, InputRequiredEvent):
        out.append(Publish(event))
        if program.topology.answers:
            state.prompts.append(event)
    deliver(program, state, queued_event, at, out)


def deliver(
    program: FlowProgram,
    state: FlowState,
    queued_event: QueuedEvent,
    at: float,
    out: list[Command],
    *,
    target: str | None = None,
) -> None:
    """Deliver an event to the steps that wait for it and to those that take it."""
    kind = type(queued_event.event)
    answered = answer_waits(program, state, queued_event.event, out) if state.waits else False
    if state.ending is not None:  # Only compensations run now.
        return
    specs = program.topology.accepting(kind)
    if target is not None:
        specs = tuple(spec for spec in specs if spec.name == target)
    for spec in specs:
        if spec.collection_param is not None:
            arrive(program, state, spec, queued_event, at, out)
        elif spec.collect_params:
            pair(program, state, spec, queued_event, at, out)
        else:
            enqueue(
                program, state, spec, queued_event.event, queued_event.lineage, queued_event.recovered, kind, at, out
            )
    if not specs and not answered:
        _unhandled(state, queued_event.event, out)
        if state.rules > 1 and target is None and not isinstance(queued_event.event, _NOT_KEPT):
            keep(state, queued_event.event)


def _unhandled(state: FlowState, event: Any, out: list[Command]) -> None:
    if isinstance(event, InputRequiredEvent):  # It is addressed to the outside: no step has to take it.
        return
    kind = type(event)
    idle = state.running == 0 and state.pending == 0
    name = f"{kind.__module__}.{kind.__qualname__}"
    out.append(Publish(UnhandledEvent(event_type=kind.__name__, qualified_name=name, step_name=None, idle=idle)))
    state.idle = False


def open_batch(
    program: FlowProgram, state: FlowState, work: Work, events: tuple[Any, ...], at: float, out: list[Command]
) -> None:
    """Open a batch for a list of events that a step has returned; a joining step collects them."""
    state.sequence += 1
    batch = EventBatch(state.sequence, work.step, work.lineage, work.recovered, tokens=1)
    state.batches[batch.id] = batch
    for outer in work.lineage:
        state.batches[outer].tokens += 1
    for event in events:
        route(program, state, QueuedEvent(event, (*work.lineage, batch.id), work.recovered), at, out, returned=True)
        if state.status != "running":
            return
    release_token(program, state, (batch.id,), at, out)
