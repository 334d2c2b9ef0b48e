"""What a run shows, for one reader, kept until it is read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.flows.events import InternalDispatchEvent, StepState, StepStateChanged
from tidemill.flows.notes import Narrated


class EventStream:
    """The published events of a run in memory. It can be read once."""

    def __init__(self) -> None:
        self._events: deque[Any] = deque()
        self._news = asyncio.Event()
        self._closed = False
        self._taken = False

    def put(self, event: Any) -> None:
        self._events.append(event)
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def read(self, *, expose_internal: bool) -> AsyncGenerator[Any, None]:
        """Every event, until the run is over; internal ones only if asked for."""
        if self._taken:
            raise WorkflowRuntimeError("the events of this run have been streamed already: they can be read once")
        self._taken = True
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
            self._news.clear()
            await self._news.wait()


def narration(told: Narrated) -> StepStateChanged:
    """The event that tells of a step's beginning or end."""
    if told.status == "running":
        return StepStateChanged(
            name=told.step,
            step_state=StepState.RUNNING,
            worker_id=str(told.slot),
            input_event_name=told.cause.__name__,
        )
    return StepStateChanged(
        name=told.step,
        step_state=StepState.NOT_RUNNING,
        worker_id=str(told.slot),
        input_event_name=str(told.cause),
        output_event_name=None if told.output is None else str(told.output),
    )
