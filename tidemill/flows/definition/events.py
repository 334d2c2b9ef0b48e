"""Events: the messages between the steps of a workflow, and the events that a run publishes.

    class Draft(Event):
        text: str

    Draft(text="...")                  declared fields are validated
    StartEvent(topic="tides").topic    every other keyword is a dynamic value

A step may return a `StopEvent` (the run ends), an `InputRequiredEvent` (the run asks for human input), or any event
that another step takes. Some events appear only in the stream: `WorkflowFailedEvent`, `WorkflowTimedOutEvent` and
`WorkflowCancelledEvent` say how a run ended; an `InternalDispatchEvent` is published only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator

from tidemill.flows.encoding.dict_like import DictLikeModel, _set_private
from tidemill.flows.encoding.events import (
    EventRegistry,
    decode_event,
    encode_event,
    event_document,
    qualified_name,
    remember,
)
from tidemill.flows.encoding.exceptions import UnreconstructedException, exception_document, exception_from

__all__ = [
    "CollectionReleaseEvent",
    "CompensationEvent",
    "ContinuedEvent",
    "DictLikeModel",
    "Event",
    "EventRegistry",
    "HumanResponseEvent",
    "IdleReleasedEvent",
    "InputRequiredEvent",
    "InternalDispatchEvent",
    "ReplyEvent",
    "SerializableEvent",
    "SerializableException",
    "StartEvent",
    "StepFailedEvent",
    "StepState",
    "StepStateChanged",
    "StopEvent",
    "UnhandledEvent",
    "UnreconstructedException",
    "WorkflowCancelledEvent",
    "WorkflowFailedEvent",
    "WorkflowIdleEvent",
    "WorkflowTimedOutEvent",
    "decode_event",
    "encode_event",
    "qualified_name",
]


class Event(DictLikeModel):
    """The base class of all events: subclass it and declare fields, or use it directly with dynamic values."""

    if TYPE_CHECKING:  # otherwise type checkers accept only declared fields

        def __init__(self, **params: Any) -> None: ...

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        remember(cls)


remember(Event)


def _event_from(value: Any) -> Event:
    event = decode_event(value) if isinstance(value, dict) else value
    if not isinstance(event, Event):
        raise ValueError(f"{value!r} is not an event")
    return event


SerializableEvent = Annotated[Event, PlainSerializer(event_document), PlainValidator(_event_from)]
"""The type of a field that holds any event; the class of the event is stored with it."""

SerializableException = Annotated[Exception, PlainSerializer(exception_document), PlainValidator(exception_from)]
"""The type of a field that holds an exception; its class and message are stored."""


class StartEvent(Event):
    """The first event of a run, created from the keyword arguments of `run`."""

    if TYPE_CHECKING:  # otherwise type checkers accept only declared fields

        def __init__(self, **params: Any) -> None: ...


class StopEvent(Event):
    """Ends the run when a step returns it; `result` is the result of the run.

    Awaiting a run that ends with a subclass gives the event itself.
    """

    def __init__(self, result: Any = None, **params: Any) -> None:
        if "result" in type(self).__pydantic_fields__:
            if result is not None:
                params["result"] = result
            super().__init__(**params)
            return
        super().__init__(**params)
        if result is not None:
            private = self.__pydantic_private__
            if private is None:
                _set_private(self, {"_result": result})
            else:
                private["_result"] = result

    @property
    def result(self) -> Any:
        if "result" in self.__dict__:  # a subclass declares it as a field
            return self.__dict__["result"]
        private = self.__pydantic_private__
        return private.get("_result") if private else None

    def _hidden(self) -> dict[str, Any]:
        private = self.__pydantic_private__
        return {"result": private["_result"]} if private and "_result" in private else {}

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return super().model_dump(**options) | self._hidden()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from super().__repr_args__()
        yield from self._data.items()
        yield from self._hidden().items()

    def __str__(self) -> str:
        return str(self.result)


class InputRequiredEvent(Event):
    """Asks for input: published in the stream when a step returns it; no step has to take it."""

    if TYPE_CHECKING:  # otherwise type checkers accept only declared fields

        def __init__(self, **params: Any) -> None: ...


class HumanResponseEvent(Event):
    """A person's answer, sent to the run from outside; no step has to produce it."""

    if TYPE_CHECKING:  # otherwise type checkers accept only declared fields

        def __init__(self, **params: Any) -> None: ...


class ReplyEvent(Event):
    """The reply of a step to an event that was sent with `ask`; it is shown in the stream."""

    to: str
    value: Any = None


class CompensationEvent(Event):
    """The base class of events for steps that undo something when the run fails; no step has to return them."""

    if TYPE_CHECKING:  # otherwise type checkers accept only declared fields

        def __init__(self, **params: Any) -> None: ...


class ContinuedEvent(Event):
    """The run continues as if it had just started with this event; created by `ctx.continue_as_new`."""

    start: SerializableEvent


class StepFailedEvent(Event):
    """The event that a `catch_error` handler receives when a step has failed its last attempt."""

    step_name: str
    input_event: SerializableEvent
    exception: SerializableException
    attempts: int
    elapsed_seconds: float
    failed_at: datetime


class CollectionReleaseEvent(Event):
    """The batch that a collecting step received, as the `input_event` of its failure."""

    events: list[SerializableEvent] = Field(default_factory=list)
    stream_id: str = ""
    binding_id: str = ""


class WorkflowFailedEvent(StopEvent):
    """The last event of a run that failed."""

    step_name: str
    exception: SerializableException
    attempts: int | None = None
    elapsed_seconds: float | None = None


class WorkflowTimedOutEvent(StopEvent):
    """The last event of a run that took longer than its timeout."""

    timeout: float
    active_steps: list[str]


class WorkflowCancelledEvent(StopEvent):
    """The last event of a run that was cancelled."""


class IdleReleasedEvent(StopEvent):
    """A run that waits only for outside events was released from memory; it has not ended."""


class InternalDispatchEvent(Event):
    """The base class of the events that report a run's progress; published only on request."""


class ChildEnded(Event):
    """A child run, started by a step of this run, has ended. `result` and `error` are in their stored form."""

    child: int
    key: str
    state: str
    result: Any = None
    error: Any = None
    note: str | None = None


class SleepEnded(Event):
    """What a sleeping step waits for; it never arrives: the wait ends when it times out."""


class WorkflowIdleEvent(InternalDispatchEvent):
    """No step runs and no event is queued: the run waits for an event from outside."""


class UnhandledEvent(InternalDispatchEvent):
    """An event arrived that no step takes and no step waits for."""

    event_type: str
    qualified_name: str
    step_name: str | None = None
    idle: bool


class StepState(Enum):
    """The state of a step's work."""

    PREPARING = "preparing"
    RUNNING = "running"
    NOT_RUNNING = "not_running"


class StepStateChanged(InternalDispatchEvent):
    """A step started or ended a piece of work."""

    name: str
    step_state: StepState
    worker_id: str
    input_event_name: str
    output_event_name: str | None = None
