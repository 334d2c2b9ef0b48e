"""The state of one run of a workflow: plain data that only the reducer changes."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

Lineage = tuple[int, ...]
Recovered = tuple[tuple[str, int], ...]


class QueuedEvent(msgspec.Struct, frozen=True):
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


class PendingWrite(msgspec.Struct, eq=False):
    """A value that an attempt has written, as long as the attempt may fail. Numbered in the order of writing."""

    number: int
    path: str
    before: Any
    made: str = ""
    """The outermost place on its path that had to be made for it, if any."""
    settled: bool = False
    """It stands; it is kept because it lies inside of what an older draft has written."""
    void: bool = False
    """There is nothing to take back: it stands, was taken back, or has been replaced for good."""


class PendingWrites(msgspec.Struct):
    """The drafts at one place of the state, in order, and those of the places inside of it, by name."""

    chain: list[PendingWrite] = []
    inside: dict[str, PendingWrites] = {}


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
    lapsed: dict[str, int] = {}
    """How often the time of a question has run out in this attempt."""
    did: dict[str, Any] = {}
    collected: list[Any] | None = None
    gathered: list[tuple[str, Any]] = []
    taken: list[tuple[str, list[Any]]] = []
    undo: list[list[PendingWrite]] = []
    """What it has written, act by act."""
    sent: int = 0
    """How many of the events that it sends have left already: a step that is run again does not send them twice."""
    wrote: int = 0
    """How many acts of writing stand when it is run again: those before its last question, first in `undo`."""
    shown: int = 0
    """How many of the events that it shows had been shown when it last asked."""


class StepProgress(msgspec.Struct):
    """A step's queue, and which of its workers are busy."""

    queue: deque[Work] = msgspec.field(default_factory=deque)
    slots: set[int] = set()


class EventBatch(msgspec.Struct):
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
    steps: dict[str, StepProgress] = {}
    works: dict[int, Work] = {}
    batches: dict[int, EventBatch] = {}
    pairs: dict[tuple[str, Lineage], dict[str, deque[Any]]] = {}
    buffers: dict[tuple[str, str], dict[type, deque[Any]]] = {}
    waits: dict[type, dict[tuple[int, str], Work]] = {}
    prompts: deque[Any] = msgspec.field(default_factory=deque)
    """Requests for input that steps have returned, the oldest first; the next answer from outside is to the first."""
    store: Any = None
    drafts: PendingWrites = msgspec.field(default_factory=PendingWrites)
    """Writes of attempts that have not ended."""
    drafted: int = 0
    idle: bool = False
    running: int = 0
    """Attempts under way that do not wait for anything."""
    away: int = 0
    """Those of them that are on a queue: they run wherever a worker is."""
    pending: int = 0
    """Retries that wait for their time."""
