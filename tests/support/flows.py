"""Small things that tests of flows share."""

from __future__ import annotations

from typing import Any


async def shown(handler: Any, *, internal: bool = False) -> list[Any]:
    """Everything that a run shows, to its end."""
    return [event async for event in handler.stream_events(expose_internal=internal)]


def names(events: list[Any]) -> list[str]:
    """The classes of events, by name."""
    return [type(event).__name__ for event in events]


def told(events: list[Any]) -> list[str]:
    """A run's stream in short: `a:0 running StartEvent`, `a:0 not_running`, or the name of the event's class."""
    lines = []
    for event in events:
        if type(event).__name__ == "StepStateChanged":
            state = event.step_state.value
            cause = f" {event.input_event_name}" if state == "running" else ""
            lines.append(f"{event.name}:{event.worker_id} {state}{cause}")
        else:
            lines.append(type(event).__name__)
    return lines
