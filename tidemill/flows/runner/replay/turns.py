"""Hand out what the tasks of a step wait for one at a time, each when the step has come to rest after the one before.

A step is at rest when the event loop has no callback of it left to run: each of its tasks waits for something. What a
task does next then depends only on what was handed out, and in which order. That order is in the record of the step; if
the step runs again, it is kept, and `asyncio.wait`, queues and locks between tasks give what they gave.

A callback belongs to the step whose context variables it runs with. The loops of asyncio and uvloop have all callbacks
that are to run in one queue.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import weakref
from collections import deque
from collections.abc import Iterator
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

import structlog

from tidemill.flows.runner.replay.record_order import END, RecordOrder
from tidemill.flows.runner.steps.current_step import StepKey, step_of

log = structlog.get_logger("tidemill.runs")

PATIENCE = 60.0
"""Seconds after which a step does not wait for a recorded operation any more that does not come again."""

_FEW = 64
_SPINNING = 1.0
_MOST_PASSES = 10_000
_PASSES_WITHOUT_QUEUE = 50


class Turns:
    """What the tasks of one step wait for."""

    __slots__ = ("_deliveries", "_number", "_order", "_timer", "_waiting", "busy_since", "key", "name", "passes")

    def __init__(self, loop: asyncio.AbstractEventLoop, key: StepKey, name: str, order: RecordOrder | None) -> None:
        self.key = key
        self.name = name
        self.passes = 0
        self.busy_since = 0.0
        self._order = order
        self._waiting: list[tuple[int, int, int, str, asyncio.Future[Any], Any]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._deliveries = deliveries_of(loop)

    async def take(self, lane: str, position: int = END, arrival: int = 0) -> None:
        """Wait until it is the turn of a position in the record, and the step is at rest."""
        if self.is_next(lane, position):
            return
        future: asyncio.Future[Any] = self._deliveries.loop.create_future()
        self._add(lane, position, arrival, future, None)
        await future

    def give(self, lane: str, future: asyncio.Future[Any], value: Any) -> None:
        """Set the result of a future when the step is at rest and has done all that is recorded."""
        if self.is_next(lane, END):
            future.set_result(value)
        else:
            self._add(lane, END, _LATER, future, value)

    def progress(self) -> None:
        """The step has done something that others may wait for."""
        if self._waiting:
            self._stop_timer()
            self._deliveries.add(self)

    def close(self) -> None:
        """The step has ended: its tasks receive nothing more."""
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for *_, future, _ in waiting:
            future.cancel()

    def hand_out(self) -> bool:
        """Hand out what is next; returns whether more may follow when the step has come to rest again."""
        self.passes = 0
        while self._waiting:
            position, _, _, lane, future, value = self._waiting[0]
            if not future.done():
                if self._order is not None and not self._order.is_turn(lane, position):
                    self._wait_for_record(position)
                    return False
                future.set_result(value)
                heapq.heappop(self._waiting)
                return bool(self._waiting)
            heapq.heappop(self._waiting)
        return False

    def is_next(self, lane: str, position: int) -> bool:
        """Return whether it is the turn of a position, and the step is at rest."""
        if self._waiting and (position == END or self._waiting[0][0] < position):
            return False
        return (self._order is None or self._order.is_turn(lane, position)) and self._deliveries.is_at_rest(self.key)

    def _add(self, lane: str, position: int, arrival: int, future: asyncio.Future[Any], value: Any) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (position, arrival, self._number, lane, future, value))
        self._deliveries.add(self)

    def _wait_for_record(self, position: int) -> None:
        if self._timer is None and self._order is not None:
            self._timer = self._deliveries.later(PATIENCE, self._go_on, position)

    def _go_on(self, position: int) -> None:
        """Wait no more for operations that do not come: their task is lost, or does something of its own for long."""
        self._timer = None
        if self._order is not None and self._waiting:
            missing = self._order.skip_to(position)
            log.warning(
                "a step that runs again goes on without what its record has next", step=self.name, missing=missing
            )
            self._deliveries.add(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Deliveries:
    """The steps in an event loop that have something to hand out, and whether they are at rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # It is the key under which this is known.
        self._ready = _ready_callbacks(loop)
        self._steps: dict[Turns, None] = {}
        self._is_due = False
        # Its own callbacks belong to no step.
        self._variables = Context()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        loop = self._loop()
        assert loop is not None  # noqa: S101 - it runs the caller
        return loop

    def is_at_rest(self, key: StepKey) -> bool:
        """Return whether no callback of a step is left to run; False if there are many callbacks to look through."""
        ready = self._ready
        if not ready:
            return ready is not None
        return len(ready) <= _FEW and not any(step_of(variables) == key for variables in _variables_of(ready))

    def add(self, turns: Turns) -> None:
        """Hand out what a step waits for as soon as it is at rest."""
        self._steps[turns] = None
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._hand_out, context=self._variables)

    def later(self, seconds: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        """Call a function after a while, outside of all steps."""
        return self.loop.call_later(seconds, call, *args, context=self._variables)

    def _hand_out(self) -> None:
        self._is_due = False
        busy = set[StepKey]()
        if self._ready:
            busy = {key for variables in _variables_of(self._ready) if (key := step_of(variables)) is not None}
        steps, self._steps = self._steps, {}
        for turns in steps:
            if (self._is_busy(turns, busy) or turns.hand_out()) and turns not in self._steps:
                self.add(turns)

    def _is_busy(self, turns: Turns, busy: set[StepKey]) -> bool:
        if self._ready is None:  # A loop that does not show its callbacks: they are run this many times.
            turns.passes += 1
            return turns.passes <= _PASSES_WITHOUT_QUEUE
        if turns.key not in busy:
            return False
        turns.passes += 1
        if turns.passes == 1:
            turns.busy_since = self.loop.time()
        # A task that keeps yielding without waiting for anything must not keep an answer from the others.
        is_spinning = turns.passes > 100 and self.loop.time() - turns.busy_since > _SPINNING
        return not is_spinning and turns.passes <= _MOST_PASSES


_LATER = 1 << 40
_known: WeakKeyDictionary[asyncio.AbstractEventLoop, Deliveries] = WeakKeyDictionary()


def deliveries_of(loop: asyncio.AbstractEventLoop) -> Deliveries:
    found = _known.get(loop)
    if found is None:
        found = _known[loop] = Deliveries(loop)
    return found


def _ready_callbacks(loop: asyncio.AbstractEventLoop) -> deque[Any] | None:
    """Return the queue of the callbacks that a loop has to run; None if it cannot be found."""
    found = getattr(loop, "_ready", None)
    if found is None:  # An attribute of uvloop that only the garbage collector can see.
        found = next((each for each in gc.get_referents(loop) if type(each) is deque), None)
    return found


def _variables_of(ready: deque[Any]) -> Iterator[Context]:
    """Yield the context variables of callbacks."""
    for handle in tuple(ready):
        variables = getattr(handle, "_context", None)
        if variables is None:
            variables = next((each for each in gc.get_referents(handle) if type(each) is Context), None)
        if variables is not None:
            yield variables
