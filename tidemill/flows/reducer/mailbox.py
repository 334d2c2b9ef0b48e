"""The mailbox of a run: events that no step and no wait has taken yet, kept for a later wait. Pure."""

from __future__ import annotations

from typing import Any

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.reducer.record import RecordedOperation
from tidemill.flows.reducer.state.flow_state import FlowState

MAILBOX_SIZE = 1000

#: An event that a step has sent, and the step that it is for.
Sent = tuple[Any, str | None]


def keep(state: FlowState, event: Any) -> None:
    """Keep an event; the oldest is dropped if there are too many."""
    if len(state.mailbox) >= MAILBOX_SIZE:
        state.mailbox.popleft()
        state.dropped += 1
    state.mailbox.append(event)


def take_fitting(state: FlowState, kind: type, requirements: dict[str, Any], *, subclasses: bool) -> Any:
    """Take the oldest event of a class that meets the requirements; None if there is none."""
    for index, event in enumerate(state.mailbox):
        if (isinstance(event, kind) if subclasses else type(event) is kind) and meets(event, requirements):
            del state.mailbox[index]
            return event
    return None


def meets(event: Any, requirements: dict[str, Any]) -> bool:
    """Return whether an event has these values."""
    return all(getattr(event, name, None) == value for name, value in requirements.items())


def send_event_of(operation: RecordedOperation) -> Sent:
    """Return the event and the target of a recorded send."""
    return operation.result, operation.key.partition(" ")[2] or None


def take_spare(spare: list[Sent], sent: Sent) -> bool:
    """Remove an equal event from those that have left already; returns whether there was one."""
    for index, (event, target) in enumerate(spare):
        if target == sent[1] and _same_content(event, sent[0]):
            del spare[index]
            return True
    return False


def _same_content(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    try:
        return one == other or encode_event(one) == encode_event(other)
    except (PayloadError, TypeError, ValueError):
        return False
