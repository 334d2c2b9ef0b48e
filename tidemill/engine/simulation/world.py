"""A world in virtual time: processes that are event loops, messages between them, and an order that a seed decides.

    world = World(seed=7)
    owner = world.process("owner")
    owner.begin(run_worker.run)
    world.go(until=lambda: ended, limit=600.0)

Each process has an event loop of its own. One thing happens at a time: one turn of one loop, or the arrival of one
message. A process that crashes gets no more turns: none of its `finally` blocks runs, as if it had been killed. A
paused process gets its turns later. No real time passes: if nothing is due, the clock moves to the next event.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tidemill.core.clock import VirtualClock
from tidemill.core.errors import ConfigError, TidemillError

T = TypeVar("T")

_BEGINNING = 1000.0
_AFTER_THE_END = 50


class SimulationError(TidemillError):
    """An invariant was violated in a simulation; the message says how to reproduce it."""


class _NoSelector:
    """The selector of a loop without I/O."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on a virtual clock, which runs one turn at a time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._virtual = clock
        self._selector = _NoSelector()

    def time(self) -> float:
        return self._virtual.monotonic()

    def next_at(self) -> float | None:
        """When its next callback is due; None if it has none."""
        if self._ready:  # type: ignore[attr-defined]
            return self._virtual.monotonic()
        waiting: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while waiting and waiting[0].cancelled():
            heapq.heappop(waiting)._scheduled = False
        return waiting[0].when() if waiting else None

    def turn(self) -> None:
        """Run what is ready, once."""
        self.stop()
        self.run_forever()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Call the function at once: a simulation has no threads."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


class Process:
    """One process of the world."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.loop = VirtualLoop(world.clock)
        self.loop.set_exception_handler(self._broken)
        self.alive = True
        self.paused_until = 0.0
        self.main: asyncio.Task[Any] | None = None
        self._waiting: dict[asyncio.Future[Any], None] = {}

    def begin(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run this until it returns or the process dies."""
        self.main = self.loop.create_task(main())

    def next_at(self) -> float | None:
        at = self.loop.next_at()
        return None if at is None else max(at, self.paused_until)

    def crash(self) -> None:
        """Die at once, without any clean-up."""
        self.alive = False
        self.world.mark_dead(self)

    def pause(self, seconds: float) -> None:
        """Pause for a while, as a stopped process does."""
        self.paused_until = max(self.paused_until, self.world.clock.now() + seconds)
        self.world.note(self.name, "stands still", round(seconds, 3))

    def deliver(self, call: Callable[..., None], *args: Any) -> None:
        """Deliver a message; a dead process ignores it."""
        if self.alive:
            self.loop.call_soon(call, *args)

    def expect(self) -> asyncio.Future[Any]:
        """A pending response; it is lost if the connection breaks."""
        answer = self.loop.create_future()
        self._waiting[answer] = None
        answer.add_done_callback(self._waiting.pop)
        return answer

    def cut_off(self) -> None:
        """Break all connections: pending statements may or may not have been executed."""
        self.world.note(self.name, "loses its connections", len(self._waiting))
        for answer in self._waiting:
            self.deliver(_break, answer)

    def clean(self) -> None:
        """Unwind the tasks of a finished world, so that none is left."""
        self.loop.set_exception_handler(lambda loop, context: None)
        for _ in range(_AFTER_THE_END):
            left = asyncio.all_tasks(self.loop)
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.turn()
        with suppress(RuntimeError):
            self.loop.close()

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive and error is not None:
            self.world.broken.append(error)


class World:
    """Processes, messages and the clock. The same seed gives the same history."""

    def __init__(self, seed: int | str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigError("a simulation has event loops of its own: call it from plain code, not from a coroutine")
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = VirtualClock(_BEGINNING)
        self.processes: list[Process] = []
        self.history: list[tuple[Any, ...]] = []
        self.happened = 0
        self.broken: list[BaseException] = []
        self._dead: list[Process] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbered = 0
        self._faults: dict[int, list[Callable[[], None]]] = {}

    def process(self, name: str) -> Process:
        made = Process(self, name)
        self.processes.append(made)
        return made

    def mark_dead(self, process: Process) -> None:
        """A process is dead. Its tasks are kept as they are: whatever unwound them would run their clean-up."""
        self.note(process.name, "ends")
        self.processes.remove(process)
        self._dead.append(process)

    def note(self, *what: Any) -> None:
        """Add to the history, by which two runs of the same seed are compared."""
        self.history.append((round(self.clock.now(), 9), *what))

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Call a function after this many seconds."""
        self._numbered += 1
        heapq.heappush(self._agenda, (self.clock.now() + delay, self._numbered, call))

    def when(self, happened: int, fault: Callable[[], None]) -> None:
        """Inject a fault after this many events."""
        self._faults.setdefault(happened, []).append(fault)

    def go(self, until: Callable[[], bool], *, limit: float) -> None:
        """Run until this is true; raises a `SimulationError` if it is not after this many seconds."""
        end = self.clock.now() + limit
        while not until():
            if self.broken:
                raise self.broken[0]
            if not self._step():
                raise SimulationError("nothing will ever happen again, and it is not over")
            if self.clock.now() > end:
                raise SimulationError(f"it is not over after {limit:g} seconds of virtual time")

    def _step(self) -> bool:
        self.happened += 1
        for fault in self._faults.pop(self.happened, ()):
            fault()
        soonest = self._agenda[0][0] if self._agenda else math.inf
        ready: list[Process] = []
        for process in self.processes:
            at = process.next_at()
            if at is not None and at < soonest:  # Messages that arrive at the same moment come first.
                soonest, ready = at, [process]
            elif ready and at == soonest:
                ready.append(process)
        if soonest == math.inf:
            return False
        self.clock.advance(max(0.0, soonest - self.clock.now()))
        if not ready:
            heapq.heappop(self._agenda)[2]()
        else:
            (ready[0] if len(ready) == 1 else self.chance.choice(ready)).loop.turn()
        return True

    def close(self) -> None:
        """Release everything."""
        for process in self.processes:
            process.alive = False
        for process in [*self.processes, *self._dead]:
            process.clean()


def _break(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionError("the connection is gone"))


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent request until there is a response."""
    pause = 0.05
    while True:
        try:
            return await ask()
        except ConnectionError:
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
