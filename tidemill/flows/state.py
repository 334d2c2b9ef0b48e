"""The state of one run of a workflow: plain data that only the reducer changes."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

Lineage = tuple[int, ...]
Recovered = tuple[tuple[str, int], ...]


class Parcel(msgspec.Struct, frozen=True):
    """An event on its way: the batches it is in, and how often each error handler has rescued it."""

    event: Any
    lineage: Lineage = ()
    recovered: Recovered = ()


class Wait(msgspec.Struct):
    """A step's question to the outside, open until an event of its kind fits."""

    question: str
    kind: type
    requirements: dict[str, Any]
    due: float | None = None
    """When the waiting ends without an answer: set by the first asking, whoever asks again."""


class Work(msgspec.Struct):
    """A step at work on its input, from its first attempt to its last."""

    id: int
    step: str
    input: Any
    lineage: Lineage
    recovered: Recovered
    cause: type
    began: float
    slot: int = -1
    attempt: int = 1
    queue: str | None = None
    failed_at: float | None = None
    error: Any = None
    waiting: dict[str, Wait] = {}
    answers: dict[str, Any] = {}
    did: dict[str, Any] = {}
    collected: list[Any] | None = None
    gathered: list[tuple[str, Any]] = []
    taken: list[tuple[str, list[Any]]] = []
    undo: list[tuple[str, Any]] = []
    sent: int = 0
    """How many of the events that it sends have left already: a step that is run again does not send them twice."""
    wrote: int = 0
    """How many of its writes, those before its last question, stand when it is run again. They are first in `undo`."""
    shown: int = 0
    """How many of the events that it shows had been shown when it last asked."""


class StepState(msgspec.Struct):
    """A step's queue, and which of its workers are busy."""

    queue: deque[Work] = msgspec.field(default_factory=deque)
    slots: set[int] = set()


class Batch(msgspec.Struct):
    """The events of one list that a step has returned, until the last of what came from them has ended."""

    id: int
    step: str
    lineage: Lineage
    recovered: Recovered
    tokens: int = 0
    arrived: dict[str, list[Any]] = {}
    released: set[str] = set()


class FlowState(msgspec.Struct):
    """Everything that is known about a run."""

    status: str = "running"
    result: Any = None
    error: Any = None
    sequence: int = 0
    started: float = 0.0
    steps: dict[str, StepState] = {}
    works: dict[int, Work] = {}
    batches: dict[int, Batch] = {}
    pairs: dict[tuple[str, Lineage], dict[str, deque[Any]]] = {}
    buffers: dict[tuple[str, str], dict[type, deque[Any]]] = {}
    waits: dict[type, dict[tuple[int, str], Work]] = {}
    store: Any = None
    idle: bool = False
    running: int = 0
    """Attempts under way that do not wait for anything."""
    pending: int = 0
    """Retries that wait for their time."""
