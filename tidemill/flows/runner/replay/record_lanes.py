"""The lanes of a step: each asyncio task and each thread inside it, with what is left of its record.

`asyncio.gather` may run its parts in another order than before. Lanes are named by their parent, their coroutine and
the order in which they begin. A task gets the recorded lane of its name if that begins with the same operation, and
else the first that does and that no other task has. `ctx.gather` names its lanes by place instead.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import insort
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tidemill.flows.reducer.mailbox import Sent, send_event_of, take_spare
from tidemill.flows.reducer.record import RecordedOperation

if TYPE_CHECKING:
    from tidemill.flows.reducer.state.flow_state import Work
    from tidemill.flows.runner.replay.step_replay import StepReplay

#: The recorded operations of a lane, by kind and key, in order.
Recorded = dict[tuple[str, str], deque[RecordedOperation]]
NOTHING: Recorded = {}


class RecordLane:
    """A task or thread inside a step, with what is left of its record."""

    # Every step that uses its context has a lane, and reads these with every operation.
    __slots__ = (
        *("replay", "name", "owner", "record", "left", "question", "future"),
        *("gathers", "joined", "timed", "inside"),
    )

    def __init__(self, replay: StepReplay, name: str, owner: Any = None) -> None:
        self.replay: StepReplay | None = replay
        self.name = name
        self.owner = owner
        self.record: Recorded = NOTHING
        self.left = 0
        self.question: str | None = None
        self.future: asyncio.Future[Any] | None = None
        self.gathers = 0
        self.joined = 0
        self.timed = False
        self.inside: str | None = None
        """The name of the side effect that runs in this lane: its operations are not recorded."""

    def rest(self, question: str, future: asyncio.Future[Any]) -> None:
        """Wait for an answer."""
        self.question, self.future = question, future

    def go_on(self) -> None:
        """Wait no more."""
        self.question = self.future = None

    @property
    def waits(self) -> bool:
        return self.future is not None and not self.future.done() and not self.timed


#: The kind of the operation that begins a lane; its key is the first operation of the lane.
BEGIN = "begin"

current_lane: ContextVar[RecordLane] = ContextVar("tidemill_lane")


class RemainingRecord:
    """What is left of a record by lane, and the numbers that were given out."""

    def __init__(self, work: Work, spare: tuple[Sent, ...]) -> None:
        self.lanes: dict[str, Recorded] = {}
        self.running: dict[RecordLane, None] = {}  # the tasks and threads of the step, without its own
        self.first: dict[str, str] = {}
        self.unclaimed: dict[str, list[str]] = {}
        self.begun: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.questions: dict[str, list[str]] = {}
        self.children: dict[str, int] = {}
        self.editing: dict[str, int] = {}
        self.effects: dict[str, asyncio.Lock] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.spare: list[Sent] = list(spare)
        for operation in work.record:
            self._load(operation)

    def _load(self, operation: RecordedOperation) -> None:
        name = operation.lane
        if operation.kind == BEGIN:
            base, _, number = name.rpartition(".")
            insort(self.unclaimed.setdefault(f"{base}.", []), name, key=_number_of)
            self.first[name] = operation.key
            self.last[f"{base}."] = max(self.last.get(f"{base}.", 0), int(number))
            return
        recorded = self.lanes.setdefault(name, {})
        recorded.setdefault((operation.kind, operation.key), deque()).append(operation)
        if operation.kind in ("wait", "sleep"):
            self.questions.setdefault(operation.key, []).append(operation.result)
        elif operation.kind == "child":
            base = child_base(operation.result)
            self.children[base] = self.children.get(base, 0) + 1
        elif operation.kind == "send" and not operation.leaves:
            take_spare(self.spare, send_event_of(operation))


def child_base(key: str) -> str:
    """Return the key of a child run without its number."""
    return key.partition(" again ")[0].rpartition(" ")[0]


def current_owner() -> Any:
    """Return the task or thread of the caller."""
    loop = asyncio._get_running_loop()
    return threading.get_ident() if loop is None else asyncio.current_task(loop)


def name_of(owner: Any) -> str:
    coroutine = owner.get_coro() if isinstance(owner, asyncio.Task) else None
    return getattr(coroutine, "__name__", "thread" if isinstance(owner, int) else "task")


def _number_of(name: str) -> int:
    return int(name.rpartition(".")[2])
