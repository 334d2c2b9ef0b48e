"""Starts, watches, feeds and restarts the engines of a dispatcher.

An engine is a process at the other end of a socket pair (or, with `engines=0`, a part of this process). Messages go to
the ready engine with the fewest messages. When an engine dies, its messages are reported to `on_death`, and another one
is started, after a pause that grows while engines die soon after their start. These messages are suspects: they go to
the quarantine engine, an additional one that runs nothing else and ends when there are none. An engine sends a frame at
least once a second; one that has been silent for too long, because a task blocks it, is killed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from tidemill.core.errors import ConfigError
from tidemill.engine.containment.exit_status import EXIT_MISCONFIGURED
from tidemill.engine.event_wait import wait_for_event
from tidemill.engine.roles.fork_service import ENGINE, HelperProcess, start_helper
from tidemill.engine.roles.supervisor import describe_exit, pause_after
from tidemill.engine.worker.threads import lost_threads, lost_threads_text
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.engine import Engine
from tidemill.streams.engine.garbage import CollectedGarbage, add_garbage
from tidemill.streams.engine.plan_statistics import add
from tidemill.streams.runner.link import EngineLink, MessageWork, ToDispatcher, ToEngine, connect

log = structlog.get_logger("tidemill.streams")

SETTLED = 3.0
CHUNK = 128
LAST_WORDS = 1.0
MOST_SENT = 10_000  # times of sending that are remembered
LOOKS = 4  # how often the silence of an engine is checked within the time that it may be silent


class EngineHandle:
    """The dispatcher's view of one engine."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"{socket.gethostname()}:{os.getpid()} engine {number}"
        self.ready = self.has_started = False
        self.is_retiring = False
        """Whether it gets no more messages, and is stopped when it has ended those that it has."""
        self.tickets: set[int] = set()
        self.statistics: dict[str, Any] = {}
        self.garbage = CollectedGarbage()
        self.lost_threads: list[str] = []
        self.trouble = ""
        """What runs in its threads that did not come back."""
        self.silent_for = 0
        """How many checks since its last frame; counted, because this process may have been suspended itself."""
        self.send: Callable[[ToEngine], None] = lambda _: None


class AnswerListener(Protocol):
    """Receives the frames of engines."""

    def on_frame(self, handle: EngineHandle, frame: ToDispatcher) -> None: ...
    def on_ready(self) -> None: ...
    def on_death(self, handle: EngineHandle, tickets: set[int], why: str) -> None: ...


class EnginePool:
    """All engines of one stream."""

    def __init__(self, stream: Stream, target: str | None, listener: AnswerListener) -> None:
        self._stream = stream
        self._target = target
        self._listener = listener
        self._stopping = False
        self._ended: dict[str, Any] = {}
        self._garbage = CollectedGarbage()
        self.handles = [EngineHandle(number) for number in range(max(1, stream.engines))]
        self.quarantine = EngineHandle(len(self.handles))
        self._suspects = asyncio.Event()
        self.restarts = 0
        self._none_ready = asyncio.Event()
        self._sent: deque[tuple[int, float]] = deque(maxlen=MOST_SENT)
        """The last ticket of each time that messages were sent, and when that was."""

    @property
    def ready(self) -> int:
        return sum(handle.ready for handle in self.handles)

    @property
    def trouble(self) -> str | None:
        """What is wrong with the engines now, for people."""
        lost = [call for handle in self.handles for call in handle.lost_threads]
        return next((handle.trouble for handle in self.handles if handle.trouble), None) or lost_threads_text(lost)

    @property
    def lost_threads(self) -> int:
        """How many threads of engine processes have not come back."""
        return sum(len(handle.lost_threads) for handle in self.handles) if self._stream.engines else 0

    async def run(self) -> None:
        """Keep all engines running until cancelled."""
        async with asyncio.TaskGroup() as group:
            for handle in self.handles:
                run = self._supervise(handle) if self._stream.engines else self._run_in_process(handle)
                group.create_task(run, name=f"engine-{handle.number}")
            if self._stream.engines:
                group.create_task(self._supervise_quarantine(), name="quarantine")

    async def stop(self, patience: float) -> None:
        """Ask idle engines to end. Engines that do not end in time are killed when `run` is cancelled."""
        self._stopping = True
        if not self.ready:
            return
        for handle in (*self.handles, self.quarantine):
            handle.send(ToEngine(stop=True))
        if not await wait_for_event(self._none_ready, patience):
            log.warning("engines did not stop in time: killing them", engines=self.ready)

    def submit(self, work: Sequence[MessageWork]) -> None:
        """Distribute messages over the ready engines."""
        self._sent.append((work[-1].ticket, time.monotonic()))
        ready = [handle for handle in self.handles if handle.ready]
        if len(ready) == 1:
            handle = ready[0]
            handle.tickets.update([each.ticket for each in work])
            handle.send(ToEngine(list(work)))
            return
        share = max(1, min(CHUNK, -(-len(work) // len(ready))))
        for start in range(0, len(work), share):
            some = list(work[start : start + share])
            handle = min(ready, key=lambda each: len(each.tickets))
            handle.tickets.update([each.ticket for each in some])
            handle.send(ToEngine(some))

    def submit_suspects(self, work: Sequence[MessageWork]) -> None:
        """Send suspects to the quarantine engine, which must be ready."""
        self._sent.append((work[-1].ticket, time.monotonic()))
        self.quarantine.tickets.update([each.ticket for each in work])
        self.quarantine.send(ToEngine(list(work)))

    def keep_quarantine(self, wanted: bool) -> None:
        """Have a quarantine engine from now on, or have none."""
        if wanted:
            self._suspects.set()
        elif self._suspects.is_set():
            self._suspects.clear()
            self.quarantine.ready = False  # Messages sent after the stop would not be run.
            self.quarantine.send(ToEngine(stop=True))

    def submit_live(self, work: MessageWork) -> None:
        """Send a live request, ahead of all messages."""
        handle = min((each for each in self.handles if each.ready), key=lambda each: len(each.tickets))
        handle.tickets.add(work.ticket)
        handle.send(ToEngine(live=[work]))

    def where(self, ticket: int) -> tuple[str | None, float | None]:
        """Which engine has a message, and for how many seconds; None if that is no longer known."""
        name = next((each.name for each in (*self.handles, self.quarantine) if ticket in each.tickets), None)
        at = bisect_left(self._sent, ticket, key=lambda sent: sent[0])
        is_known = at < len(self._sent) and (at > 0 or len(self._sent) < MOST_SENT)
        return name, time.monotonic() - self._sent[at][1] if is_known else None

    def garbage(self) -> CollectedGarbage:
        """The full collections of garbage of all engines since the dispatcher started."""
        total = self._garbage
        for handle in (*self.handles, self.quarantine):
            total = add_garbage(total, handle.garbage)
        return total

    def statistics(self) -> dict[str, Any]:
        """The statistics of all engines since the dispatcher started."""
        total: dict[str, Any] = {}
        for statistics in (self._ended, *(handle.statistics for handle in (*self.handles, self.quarantine))):
            add(total, statistics)
        return total

    # -- an engine in a process of its own --------------------------------------------------------

    async def _supervise(self, handle: EngineHandle) -> None:
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._stopping:
            born = loop.time()
            status = await self._run_process(handle)
            if self._stopping:
                return
            if status == EXIT_MISCONFIGURED:
                raise ConfigError(f"stream {self._stream.name}: its engine cannot start; its output is above")
            deaths = 1 if loop.time() - born >= SETTLED else deaths + 1
            pause = pause_after(deaths)
            self.restarts += 1
            log.error("ENGINE DIED: another is started", engine=handle.number, why=describe_exit(status), after=pause)
            await asyncio.sleep(pause)

    async def _supervise_quarantine(self) -> None:
        """Run the quarantine engine while there are suspects."""
        deaths = 0
        while not self._stopping:
            await self._suspects.wait()
            status = await self._run_process(self.quarantine)
            # An engine that has started dies of its messages, and each death narrows down the suspects.
            deaths = 0 if status == 0 else 1 if self.quarantine.has_started else deaths + 1
            if status and not self._stopping:
                log.error("A MESSAGE ENDED ITS QUARANTINE ENGINE", why=describe_exit(status))
                await asyncio.sleep(min(1.0, pause_after(deaths)))

    async def _run_process(self, handle: EngineHandle) -> int:
        """Run one engine process until it ends; returns its exit status."""
        handle.has_started = False
        ours, theirs = socket.socketpair()
        try:
            process = await start_helper(ENGINE, (self._target or "", self._stream.name), theirs.fileno(), 1)
        finally:
            theirs.close()
        gone = asyncio.Event()
        link: EngineLink | None = None
        verdict: str | None = None
        try:
            link = await connect(ours, ToDispatcher, lambda frame: self._received(handle, frame), gone.set)
            handle.send = link.send
            verdict = await self._watch(handle, process)
            status = await process.wait()
            await wait_for_event(gone, LAST_WORDS)  # Answers that it sent before its end still count.
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        finally:
            if link is not None:
                link.close()
            exited = process.returncode if process.returncode is not None else -9
            self._engine_ended(handle, verdict or describe_exit(exited))
        return status

    async def _watch(self, handle: EngineHandle, process: HelperProcess) -> str | None:
        """Wait until the engine has ended; one that is silent for too long is killed, and the reason is returned."""
        ended = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait([ended], timeout=self._stream.silence / LOOKS))[0]:
                handle.silent_for += handle.ready or handle.is_retiring  # A task may block it while it ends the others.
                if handle.silent_for > LOOKS:
                    log.error("ENGINE SILENT: killing it", engine=handle.number, pid=process.pid)
                    process.kill()
                    return f"it was silent for {self._stream.silence:g} s, and was killed"
        finally:
            ended.cancel()
        return None

    def _received(self, handle: EngineHandle, frame: ToDispatcher) -> None:
        handle.silent_for = 0
        if frame.statistics is not None:
            handle.statistics = frame.statistics
        if frame.garbage is not None:
            handle.garbage = frame.garbage
        if frame.lost_threads is not None:
            handle.lost_threads = frame.lost_threads
        if frame.trouble is not None:
            handle.trouble = frame.trouble
        if frame.ready:
            handle.ready = handle.has_started = True
            self._none_ready.clear()
            self._listener.on_ready()
        if frame.stopped:
            self._not_ready(handle)
        if frame.exhausted:
            log.error("ENGINE REPLACED: calls in it did not end", engine=handle.number)
            if self._stream.engines:  # There is no other for one in this process.
                handle.is_retiring = True
                self._not_ready(handle)
        if frame.ok or frame.answers:
            self._listener.on_frame(handle, frame)
        if handle.is_retiring and not handle.tickets:
            handle.is_retiring = False
            handle.send(ToEngine(stop=True))

    def _not_ready(self, handle: EngineHandle) -> None:
        handle.ready = False
        if not self.ready:
            self._none_ready.set()

    def _engine_ended(self, handle: EngineHandle, why: str) -> None:
        self._not_ready(handle)
        handle.silent_for = 0
        handle.is_retiring = False
        handle.send = lambda _: None
        self._ended = add(self._ended, handle.statistics)
        self._garbage, handle.garbage = add_garbage(self._garbage, handle.garbage), CollectedGarbage()
        handle.statistics, handle.lost_threads, handle.trouble = {}, [], ""
        tickets, handle.tickets = handle.tickets, set()
        if tickets:
            self._listener.on_death(handle, tickets, why)

    # -- an engine in this process ----------------------------------------------------------------

    async def _run_in_process(self, handle: EngineHandle) -> None:
        async with self._stream.lifespan.opened_patiently(asyncio.Event()):
            await self._run_engine(handle)

    async def _run_engine(self, handle: EngineHandle) -> None:
        ended = asyncio.Event()
        engine = Engine(self._stream, lambda frame: self._received(handle, frame))
        await engine.start()

        def take(frame: ToEngine) -> None:
            if frame.stop:
                ended.set()
            else:
                engine.submit(frame.work, frame.live)

        handle.send = take
        self._received(handle, ToDispatcher(ready=True))
        try:
            while not ended.is_set():
                if not await wait_for_event(ended, 1.0):
                    handle.statistics, handle.lost_threads = engine.statistics(), lost_threads()
        finally:
            await engine.stop()
            self._not_ready(handle)
