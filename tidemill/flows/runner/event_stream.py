"""The published events of a run in memory, buffered for one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from tidemill.flows.definition.events import (
    InternalDispatchEvent,
    StepState,
    StepStateChanged,
    StopEvent,
    WorkflowCancelledEvent,
    WorkflowFailedEvent,
    WorkflowTimedOutEvent,
)
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.reducer.step_ticks import Narrated

QUEUED = "<enqueued>"
_BAD_ENDS = (WorkflowFailedEvent, WorkflowTimedOutEvent, WorkflowCancelledEvent)


class EventStream:
    """The published events of a run in memory. They can be read once."""

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._published: asyncio.Event | None = None  # for the reader, once there is one
        self._closed = False

    def put(self, event: Any) -> None:
        self._events.append(event)
        if self._published is not None:
            self._published.set()

    def close(self) -> None:
        self._closed = True
        if self._published is not None:
            self._published.set()

    async def read(self, *, expose_internal: bool) -> AsyncGenerator[Any, None]:
        """Yield every event until the run ends; internal events only with `expose_internal`."""
        if self._published is not None:
            raise WorkflowRuntimeError(
                "Event stream already consumed. Events can only be streamed once per workflow run."
            )
        published = self._published = asyncio.Event()
        while True:
            while self._events:
                event = self._events.popleft()
                if type(event) is Narrated:
                    if expose_internal:
                        yield narration(event)
                elif expose_internal or not isinstance(event, InternalDispatchEvent):
                    yield event
            if self._closed:
                return
            published.clear()
            await published.wait()


def narration(change: Narrated) -> StepStateChanged:
    """Return the event that reports the start or end of a step."""
    if change.status != "not_running":
        return StepStateChanged(
            name=change.step,
            step_state=StepState(change.status),
            worker_id=str(change.slot) if change.slot >= 0 else QUEUED,
            input_event_name=change.cause.__name__,
        )
    return StepStateChanged(
        name=change.step,
        step_state=StepState.NOT_RUNNING,
        worker_id=str(change.slot),
        input_event_name=str(change.cause),
        output_event_name=None if change.output is None else str(change.output),
    )


def verbose_line(event: Any) -> str | None:
    """Return the line that a verbose run prints for an event; None for no line."""
    if type(event) is not Narrated:
        return f"[result] {event!r}" if isinstance(event, StopEvent) and not isinstance(event, _BAD_ENDS) else None
    if event.status == "running":
        return f"[{event.step}:{event.slot}] started from {event.cause.__name__}"
    if event.status == "preparing":
        return f"[{event.step}] enqueued (waiting for capacity)"
    made = event.output.__name__ if event.output not in (None, type(None)) else "no result"
    return f"[{event.step}:{event.slot}] complete with {made}"
