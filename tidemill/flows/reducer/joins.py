"""Join events: batches that a step has opened, and sets of events that a step takes together. Pure.

A batch counts its events in progress. When none is left, the joining steps receive the events that have arrived.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tidemill.core.ticks import Command
from tidemill.flows.definition.events import CollectionReleaseEvent
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.topology import taken_of_batch
from tidemill.flows.reducer.attempts import enqueue
from tidemill.flows.reducer.state.flow_state import EventBatch, FlowState, QueuedEvent

if TYPE_CHECKING:
    from tidemill.flows.reducer.reducer import FlowProgram


def arrive(
    program: FlowProgram, state: FlowState, spec: StepSpec, queued_event: QueuedEvent, at: float, out: list[Command]
) -> None:
    """Record an event of a batch that has arrived at a joining step."""
    if not queued_event.lineage:
        return
    batch = state.batches[queued_event.lineage[-1]]
    arrived = batch.arrived.setdefault(spec.name, [])
    arrived.append(queued_event.event)
    if len(arrived) == taken_of_batch(spec):
        _release_join(program, state, batch, spec, at, out)


def _release_join(
    program: FlowProgram, state: FlowState, batch: EventBatch, spec: StepSpec, at: float, out: list[Command]
) -> None:
    if spec.name not in batch.released:
        batch.released.add(spec.name)
        events = list(batch.arrived.get(spec.name, ()))
        enqueue(program, state, spec, events, batch.lineage, batch.recovered, CollectionReleaseEvent, at, out)


def release_token(
    program: FlowProgram, state: FlowState, lineage: tuple[int, ...], at: float, out: list[Command]
) -> None:
    """Count one event of these batches as ended; release a batch to its joining steps when none is left."""
    for number in reversed(lineage):
        batch = state.batches.get(number)
        if batch is None:
            continue
        batch.tokens -= 1
        if batch.tokens == 0:
            del state.batches[number]
            for name in program.topology.joins_of_batch.get(batch.step, ()):
                _release_join(program, state, batch, program.topology.steps[name], at, out)
            release_token(program, state, batch.lineage, at, out)


def pair(
    program: FlowProgram, state: FlowState, spec: StepSpec, queued_event: QueuedEvent, at: float, out: list[Command]
) -> None:
    """Record one of the several events that a step takes together."""
    waiting = state.pairs.setdefault(
        (spec.name, queued_event.lineage), {name: deque() for name, _ in spec.collect_params}
    )
    fitting = [name for name, kind in spec.collect_params if _fits(spec, queued_event.event, kind)]
    place = min(fitting, key=lambda name: len(waiting[name]))
    waiting[place].append(queued_event.event)
    if all(waiting.values()):
        events = {name: queue.popleft() for name, queue in waiting.items()}
        events[place] = events.pop(place)  # The last to arrive is the last: it is the one that started the step.
        kind = type(queued_event.event)
        enqueue(program, state, spec, events, queued_event.lineage, queued_event.recovered, kind, at, out)


def _fits(spec: StepSpec, event: Any, kind: type) -> bool:
    return isinstance(event, kind) if spec.accept_event_subclasses else type(event) is kind
