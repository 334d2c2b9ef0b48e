"""What a step tells its run: while it works, and when it ends. The payloads of a flow's ticks."""

from __future__ import annotations

from typing import Any

import msgspec


class EventSent(msgspec.Struct, frozen=True, tag="sent"):
    """Events that the step sends on, to whoever accepts them or to one step."""

    events: tuple[tuple[Any, str | None], ...]


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """The step collects: it has an event, and goes on when one of each expected kind is there."""

    buffer: str
    event: Any
    expected: tuple[type, ...]


class WaitAsked(msgspec.Struct, frozen=True, tag="asked"):
    """The step waits for an event of a kind that fits its requirements; `show` is published to ask for it."""

    question: str
    kind: type
    requirements: dict[str, Any]
    show: Any = None
    timeout: float | None = None
    shown: int = 0
    """How many events the step has shown so far: they are not shown again when it is run again."""
    lapses: int = 0
    """How often it has asked this before in vain, until the time had run out."""


class Withdrew(msgspec.Struct, frozen=True, tag="withdrew"):
    """The step does not wait any longer for an answer to this question: it has given up by itself."""

    question: str


class Wrote(msgspec.Struct, frozen=True, tag="wrote"):
    """The step has set a value in the run's state; an empty path stands for all of it."""

    path: str
    value: Any


class StateEdited(msgspec.Struct, frozen=True, tag="edited"):
    """The step has changed several values in the run's state at once; a `MISSING` one is gone."""

    changes: tuple[tuple[str, Any], ...]


class Did(msgspec.Struct, frozen=True, tag="did"):
    """A side effect inside the step has happened, once and for all; this is its result."""

    name: str
    result: Any


Note = EventSent | Gathered | WaitAsked | Withdrew | Wrote | StateEdited | Did


class Narrated(msgspec.Struct, frozen=True, gc=False):
    """A step has begun or ended an attempt: what a `StepStateChanged` event is made of, if anybody asks."""

    step: str
    status: str
    slot: int
    cause: type
    output: type | None


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """How an attempt at a step ended. For a failed one, `retry_in` is what its retry policy decided then."""

    events: tuple[Any, ...] = ()
    listed: bool = False
    """Whether the step returned a list, which is a batch."""
    sent: tuple[tuple[Any, str | None], ...] = ()
    error: StepFailure | None = None
    retry_in: float | None = None


class StepFailure(msgspec.Struct, frozen=True):
    """An exception as a run remembers it. `exception` is the thing itself, as long as the process lives."""

    kind: str
    message: str
    traceback: str = ""
    exception: Any = None
