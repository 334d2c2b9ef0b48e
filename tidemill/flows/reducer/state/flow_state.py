"""The state of a flow run: plain data that only the reducer changes."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from tidemill.flows.reducer.record import RecordedOperation

Lineage = tuple[int, ...]
Recovered = tuple[tuple[str, int], ...]

NONE: frozenset[str] = frozenset()


class QueuedEvent(msgspec.Struct, frozen=True):
    """An event in transit: the batches that it is in, and how often each error handler has recovered it."""

    event: Any
    lineage: Lineage = ()
    recovered: Recovered = ()


class Wait(msgspec.Struct):
    """A wait of a step for an event, open until an event of its class fits."""

    question: str
    kind: type
    requirements: dict[str, Any]
    due: float | None = None
    """When the wait times out; set by the first attempt to wait and kept when the step waits again."""
    timeout: float | None = None
    subclasses: bool = False
    """Whether an event of a subclass is an answer."""


class PendingWrite(msgspec.Struct, eq=False):
    """A value that an attempt has written and that is undone if the attempt fails. Numbered in the order of writing."""

    number: int
    path: str
    before: Any
    made: str = ""
    """The outermost part of its path that was created for it, if any."""
    settled: bool = False
    """It is final; it is kept because it is inside a value that an older pending write has written."""
    void: bool = False
    """There is nothing to undo: it is final, was undone, or was replaced by a final write."""
    after: Any = None
    """The value that was written."""
    work: int = 0
    """The piece of work that has written it."""
    edits: bool = False
    """It was made from the value that was there, as an edit is."""
    built_on: bool = False
    """A final edit of another piece of work was made from the value that it has written."""


class PendingWrites(msgspec.Struct):
    """The pending writes at one path of the state, in order, and those of its inner paths, by name."""

    chain: list[PendingWrite] = []
    inside: dict[str, PendingWrites] = {}


class Work(msgspec.Struct):
    """A piece of work: a step with its input, from its first attempt to its last."""

    id: int
    step: str
    input: Any
    lineage: Lineage
    recovered: Recovered
    cause: type
    began: float
    since: float = 0.0
    """When its present attempt began."""
    slot: int = -1
    attempt: int = 1
    queue: str | None = None
    failed_at: float | None = None
    retry_at: float | None = None
    """When its next attempt is due, if its last one has failed."""
    error: Any = None
    waiting: dict[str, Wait] = {}
    answers: dict[str, Any] = {}
    lapsed: dict[str, int] = {}
    """The waits that have timed out in this attempt."""
    did: dict[str, Any] = {}
    record: tuple[RecordedOperation, ...] = ()
    """What this attempt did up to its last suspension; the step gets these results when it runs again."""
    spare: tuple[tuple[Any, str | None], ...] = ()
    """Events that have left but are not in the record: those of failed attempts. An equal send is the same event."""
    asked: frozenset[str] = NONE
    """The questions whose waiter event has been published."""
    withdrawn: frozenset[str] = NONE
    """The waits that were given up since the last suspension; they are asked again if the step runs again."""
    given_up: frozenset[str] = NONE
    """The waits that were given up before the last suspension; they stay unanswered if the step runs again."""
    outdated: bool = False
    """Its edits are based on values that have changed since: what its job reports is ignored, and it runs again."""
    reborn: dict[str, int] | None = None
    """How often each child run was started again because it had failed with an earlier attempt."""
    suspended: bool = False
    """All of the step waits: it holds no worker, and need not be in memory."""
    asleep: bool = False
    """It is suspended and in no process; it runs again when a wait has its answer."""
    restarted: bool = False
    """It is to start again, though its job is on a queue: the job has ended because it did not follow its record."""
    replies: tuple[str, ...] = ()
    """The answered waits of a step that has to wait for a free worker before it continues."""
    collected: list[Any] | None = None
    gathered: list[tuple[str, Any]] = []
    taken: list[tuple[str, list[Any]]] = []
    undo: list[list[PendingWrite]] = []
    """Its pending writes, grouped by operation."""
    kept_writes: list[PendingWrite] = []
    """Writes of an earlier run or attempt that others have built on, oldest first. An equal write is the same write."""
    wrote: int = 0
    """How many of its writes are kept when it runs again: those before its last suspension, first in `undo`."""
    gathered_before: int = 0
    """How many of the events in `gathered` it had collected at its last suspension."""
    taken_before: int = 0
    """How many of the sets in `taken` it had taken at its last suspension."""
    counted_to: str | None = None
    """The wait at which it was suspended without a record, "" if that is unknown: up to there, its first `sent`,
    `wrote` and `shown` operations are skipped by count."""
    sent: int = 0
    shown: int = 0


class StepProgress(msgspec.Struct):
    """The queue of a step, and its busy workers."""

    queue: deque[Work] = msgspec.field(default_factory=deque)
    slots: set[int] = set()
    woken: int = 0
    """How many at the front of the queue have been running before and continue with an answer."""


class EventBatch(msgspec.Struct):
    """The events of one list that a step has returned, until all work that follows from them has ended."""

    id: int
    step: str
    lineage: Lineage
    recovered: Recovered
    tokens: int = 0
    arrived: dict[str, list[Any]] = {}
    released: set[str] = set()


class Ending(msgspec.Struct):
    """How a run ends: its status, the error, the event that reports it, and the reason."""

    status: str
    error: Any
    event: Any
    why: str
    failed: list[str] = []
    """The compensations that have failed, with the reason."""


class FlowState(msgspec.Struct):
    """The complete state of a run."""

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
    """The requests for input that steps have returned, oldest first; the next answer from outside is for the first."""
    mailbox: deque[Any] = msgspec.field(default_factory=deque)
    """Events that no step and no wait has taken yet, oldest first."""
    dropped: int = 0
    """How many events were dropped because the mailbox was full."""
    store: Any = None
    copies: bool = False
    """Whether a write copies the containers on its path, so that values which were read do not change."""
    rules: int = 1
    """The rules by which ticks are folded; a start or a continuation of the run sets them."""
    compensations: list[tuple[str, Any]] = []
    """Steps to run, with their events, in reverse order, if the run fails or is cancelled."""
    ending: Ending | None = None
    """How the run will end when its compensations have run."""
    at: float = 0.0
    """The time of the last tick."""
    version: str = ""
    """The version of the workflow that applies the ticks; a start or a migration of the run sets it."""
    drafts: PendingWrites = msgspec.field(default_factory=PendingWrites)
    """Writes of attempts that have not ended."""
    drafted: int = 0
    idle: bool = False
    running: int = 0
    """The number of running attempts that do not wait for an event."""
    on_queue: int = 0
    """The number of these attempts that are on a queue, where any worker may run them."""
    pending: int = 0
    """The number of retries that are not due yet."""
