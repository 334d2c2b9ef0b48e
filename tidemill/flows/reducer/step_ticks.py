"""The payloads of a flow run's ticks: what a step reports while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.flows.reducer.record import RecordedOperation


class EventSent(msgspec.Struct, frozen=True, tag="sent"):
    """The step sends events, to all steps that accept them or to one step."""

    events: tuple[tuple[Any, str | None], ...]


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """The step collects an event, and continues when one event of each expected class is there."""

    buffer: str
    event: Any
    expected: Sequence[type]


class WaitAsked(msgspec.Struct, frozen=True, tag="asked"):
    """The step waits for an event of a class that fits its requirements; `show` is published to ask for it."""

    question: str
    kind: type
    requirements: dict[str, Any]
    show: Any = None
    timeout: float | None = None
    operations: tuple[RecordedOperation, ...] | None = None
    """What the step did since its last suspension. None in ticks of older versions, which counted instead."""
    rests_on: tuple[str, ...] = ()
    """If all of the step waits now: the questions that it waits for."""
    subclasses: bool = False
    """Whether an event of a subclass is an answer."""
    shown: int = 0
    lapses: int = 0


class Suspended(msgspec.Struct, frozen=True, tag="suspended"):
    """All of the step waits now, though it has asked nothing more: a part of it has ended, or a child has started."""

    operations: tuple[RecordedOperation, ...]
    rests_on: tuple[str, ...]


class Withdrew(msgspec.Struct, frozen=True, tag="withdrew"):
    """The step has given up its wait."""

    question: str


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """The step has set a value in the run's state; an empty path means the whole state."""

    path: str
    value: Any
    edits: bool = False
    """Whether the value was made from the one that was there."""


class StateEdited(msgspec.Struct, frozen=True, tag="edited"):
    """The step has changed several values in the run's state at once; `MISSING` means removed."""

    changes: tuple[tuple[str, Any], ...]
    edits: bool = False
    """Whether the values were made from those that were there."""


class EditBasis(msgspec.Struct, frozen=True, tag="basis"):
    """What a step on a queue found where its edits write. If that has changed since, the step runs again."""

    values: tuple[tuple[str, Any], ...]


class Did(msgspec.Struct, frozen=True, tag="did"):
    """A side effect of the step has completed and is not repeated; this is its result."""

    name: str
    result: Any


Note = EventSent | Gathered | WaitAsked | Suspended | Withdrew | Wrote | StateEdited | EditBasis | Did


class Narrated(msgspec.Struct, frozen=True, gc=False):
    """A step has started or ended an attempt; it becomes a `StepStateChanged` event on request."""

    step: str
    status: str
    slot: int
    cause: type
    output: type | None


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The outcome of an attempt. For a failed attempt, `retry_in` is the decision of its retry policy."""

    events: tuple[Any, ...] = ()
    listed: bool = False
    """Whether the step returned a list, which opens a batch."""
    sent: tuple[tuple[Any, str | None], ...] = ()
    error: StepFailure | None = None
    retry_in: float | None = None


class StepFailure(msgspec.Struct, frozen=True):
    """The stored form of an exception. `exception` is the exception object, in the process where it was raised."""

    kind: str
    message: str
    traceback: str = ""
    exception: Any = None
