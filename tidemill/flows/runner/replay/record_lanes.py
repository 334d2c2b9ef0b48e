"""The lanes of a step: each asyncio task and each thread inside it, with what is left of its record.

`asyncio.as_completed` may start its parts in another order than before. Lanes are named by their parent, their
coroutine and the order in which they begin. A task gets a recorded lane that begins with the same operation, if there
is one that no other task has: first one whose coroutine had the same plain arguments, then the one of its name.
`ctx.gather` names its lanes by place instead.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import insort
from collections import deque
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from tidemill.flows.encoding.events import present_name
from tidemill.flows.encoding.exceptions import exception_of
from tidemill.flows.reducer.mailbox import Sent, send_event_of, take_spare
from tidemill.flows.reducer.record import ANSWERED, BEGIN, RESULTS, RecordedOperation, key_with_names
from tidemill.flows.runner.replay.record_order import RecordOrder

if TYPE_CHECKING:
    from tidemill.flows.reducer.state.flow_state import Work
    from tidemill.flows.runner.replay.step_replay import StepReplay

#: The recorded operations of a lane, by kind and key, in order, each with its position in the record.
Recorded = dict[tuple[str, str], deque[tuple[int, RecordedOperation]]]
NOTHING: Recorded = {}


class RecordLane:
    """A task or thread inside a step, with what is left of its record."""

    # Every step that uses its context has a lane, and reads these with every operation.
    __slots__ = (
        *("replay", "name", "owner", "record", "left", "question", "future"),
        *("gathers", "joined", "timed", "inside", "at", "unmarked"),
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
        self.at = 0
        """The position of its last operation that was in the record."""
        self.unmarked: tuple[tuple[str, str], ...] = ()
        """The marks of what it has received last, behind the end of its record, while the step had no other task."""
        self.inside: str | None = None
        """The name of the side effect that runs in this lane: its operations are not recorded."""

    def rest(self, question: str, future: asyncio.Future[Any]) -> None:
        """Wait for an answer."""
        self.question, self.future = question, future

    def go_on(self) -> None:
        """Wait no more."""
        self.question = self.future = None

    def pass_unmarked(self, kind: str, key: str) -> None:
        """Pass a mark that the record needs only if the step has other tasks next."""
        if not self.left and kind == ANSWERED:
            self.unmarked = ((kind, key),)
        elif not self.left and kind == RESULTS:
            self.unmarked += ((kind, key),)

    @property
    def waits(self) -> bool:
        return self.future is not None and not self.future.done() and not self.timed


current_lane: ContextVar[RecordLane] = ContextVar("tidemill_lane")


class RemainingRecord:
    """What is left of a record by lane, and the numbers that were given out."""

    def __init__(self, work: Work, spare: tuple[Sent, ...], *, orders: bool) -> None:
        """`orders` if its lanes have to keep the order of the record."""
        self.lanes: dict[str, Recorded] = {}
        self.running: dict[RecordLane, None] = {}  # the tasks and threads of the step, without its own
        self.first: dict[str, str] = {}
        self.arguments: dict[str, Any] = {}
        self.unclaimed: dict[str, list[str]] = {}
        self.begun: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.questions: dict[str, list[str]] = {}
        self.children: dict[str, int] = {}
        self.editing: dict[str, int] = {}
        self.effects: dict[str, asyncio.Lock] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.spare: list[Sent] = list(spare)
        names: dict[str, str] = {}
        for position, operation in enumerate(work.record):
            key = key_with_names(operation.kind, operation.key, partial(_present_name, names), str)
            self._load(position, operation, key)
        is_shared = orders and any(each.lane for each in work.record)
        self.order = RecordOrder(work.record) if is_shared else None

    def claim(self, base: str, first: str, arguments: str | None) -> str | None:
        """Return the recorded lane of a task that begins with this operation, if there is one."""
        begun = self.begun[base] = self.begun.get(base, 0) + 1
        unclaimed = self.unclaimed.get(base, [])
        fitting = [name for name in unclaimed if self.first[name] == first]
        if not fitting:
            return None
        fitting = [name for name in fitting if self.arguments[name] == arguments] or fitting
        name = f"{base}{begun}"
        name = name if name in fitting else fitting[0]
        unclaimed.remove(name)
        return name

    def new_name(self, base: str) -> str:
        """Return the name of a task that is not in the record."""
        name = f"{base}{self.begun[base]}"
        if name in self.first:
            self.last[base] += 1
            name = f"{base}{self.last[base]}"
        return name

    def _load(self, position: int, operation: RecordedOperation, key: str) -> None:
        name = operation.lane
        recorded = self.lanes.setdefault(name, {})
        recorded.setdefault((operation.kind, key), deque()).append((position, operation))
        if operation.kind == BEGIN:
            base, _, number = name.rpartition(".")
            insort(self.unclaimed.setdefault(f"{base}.", []), name, key=_number_of)
            self.first[name], self.arguments[name] = key, operation.result
            self.last[f"{base}."] = max(self.last.get(f"{base}.", 0), int(number))
        elif operation.kind in ("wait", "sleep"):
            self.questions.setdefault(key, []).append(operation.result)
        elif operation.kind == "child":
            base = child_base(operation.result)
            self.children[base] = self.children.get(base, 0) + 1
        elif operation.kind == "send" and not operation.leaves:
            take_spare(self.spare, send_event_of(operation))


def _present_name(names: dict[str, str], name: str) -> str:
    """Return the present name of a class that may have been moved or renamed since the step has recorded it."""
    if name not in names:
        names[name] = present_name(name)
    return names[name]


def child_base(key: str) -> str:
    """Return the key of a child run without its number."""
    return key.partition(" again ")[0].rpartition(" ")[0]


def raise_recorded(operation: RecordedOperation) -> None:
    """Raise again what a recorded operation has raised."""
    if operation.error is not None:
        raise exception_of(*operation.error)


def current_owner() -> Any:
    """Return the task or thread of the caller."""
    loop = asyncio._get_running_loop()
    return threading.get_ident() if loop is None else asyncio.current_task(loop)


def name_of(owner: Any) -> str:
    coroutine = owner.get_coro() if isinstance(owner, asyncio.Task) else None
    return getattr(coroutine, "__name__", "thread" if isinstance(owner, int) else "task")


def arguments_of(owner: Any) -> str:
    """Return a digest of the plain arguments of a task's coroutine, which tells it from others of the same function."""
    coroutine = owner.get_coro() if isinstance(owner, asyncio.Task) else None
    frame, code = getattr(coroutine, "cr_frame", None), getattr(coroutine, "cr_code", None)
    if frame is None or code is None:
        return ""
    values, names = frame.f_locals, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    plain = [(name, values[name]) for name in names if type(values.get(name, owner)) in _PLAIN]
    return blake2b(repr(plain).encode(errors="replace"), digest_size=4).hexdigest() if plain else ""


_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))


def _number_of(name: str) -> int:
    return int(name.rpartition(".")[2])
