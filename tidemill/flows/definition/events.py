"""Events: what travels between the steps of a flow, and what a run shows to the outside.

    class Draft(Event):
        text: str

    Draft(text="...")                  declared fields are checked
    StartEvent(topic="tides").topic    everything else is a dynamic value

A step may return a `StopEvent` (the run ends), an `InputRequiredEvent` (the run asks somebody), or any event that
another step takes. Events that end in the stream only: `WorkflowFailedEvent`, `WorkflowTimedOutEvent` and
`WorkflowCancelledEvent` say how a run ended; an `InternalDispatchEvent` is shown to those who ask for it.
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
    "DictLikeModel",
    "Event",
    "EventRegistry",
    "HumanResponseEvent",
    "IdleReleasedEvent",
    "InputRequiredEvent",
    "InternalDispatchEvent",
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
    """The base of all events: subclass it and declare fields, or use it as it is with dynamic values."""

    if TYPE_CHECKING:  # else type checkers allow declared fields only

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
"""The type of a field that holds any event and keeps its class when stored."""

SerializableException = Annotated[Exception, PlainSerializer(exception_document), PlainValidator(exception_from)]
"""The type of a field that holds an exception and keeps its class and message when stored."""


class StartEvent(Event):
    """The first event of a run, made of the keywords that `run` is called with."""

    if TYPE_CHECKING:  # else type checkers allow declared fields only

        def __init__(self, **params: Any) -> None: ...


class StopEvent(Event):
    """Ends the run when a step returns it; `result` is what awaiting the run gives.

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
    """Asks for something from outside: shown in the stream when a step returns it; no step need take it."""

    if TYPE_CHECKING:  # else type checkers allow declared fields only

        def __init__(self, **params: Any) -> None: ...


class HumanResponseEvent(Event):
    """Somebody's answer, sent into the run from outside; no step need produce it."""

    if TYPE_CHECKING:  # else type checkers allow declared fields only

        def __init__(self, **params: Any) -> None: ...


class StepFailedEvent(Event):
    """What a `catch_error` handler gets when a step has failed for the last time."""

    step_name: str
    input_event: SerializableEvent
    exception: SerializableException
    attempts: int
    elapsed_seconds: float
    failed_at: datetime


class CollectionReleaseEvent(Event):
    """The batch that a collecting step was given, as the `input_event` of its failure."""

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
    """A run that waits only for the outside has left memory; it is not over."""


class InternalDispatchEvent(Event):
    """The base of the events that tell how a run goes on; in the stream only for those who ask."""


class ChildEnded(Event):
    """A run that a step of this run has started is over. `result` and `error` are as they are stored."""

    child: int
    key: str
    state: str
    result: Any = None
    error: Any = None
    note: str | None = None


class WorkflowIdleEvent(InternalDispatchEvent):
    """Nothing runs and nothing is queued: the run waits for the outside."""


class UnhandledEvent(InternalDispatchEvent):
    """An event arrived that no step takes and nobody waits for."""

    event_type: str
    qualified_name: str
    step_name: str | None = None
    idle: bool


class StepState(Enum):
    """Where a step's work stands."""

    PREPARING = "preparing"
    RUNNING = "running"
    NOT_RUNNING = "not_running"


class StepStateChanged(InternalDispatchEvent):
    """A step began or ended a piece of work."""

    name: str
    step_state: StepState
    worker_id: str
    input_event_name: str
    output_event_name: str | None = None
