"""The slots of a worker in a Ray cluster.

A Ray task costs milliseconds of processor time, and so does each report through an actor. So a slot is one Ray task
that holds the resources of a job and runs one job after the other; orders and reports go over its own connection to the
worker. A slot without a job is given back soon, and no slot is kept for long: others use the cluster, too.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Protocol, cast

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.core.limits.resources import Resources
from tidemill.engine.worker.isolation import ChildReport, MachineLost
from tidemill.integrations.ray.remote_slot import SIZE_BYTES, SlotHello, framed
from tidemill.store.connection.setup import enable_keepalives

IDLE_SECONDS = 0.5  # How long a slot without a job is kept.
SLOT_SECONDS = 10.0  # A slot of this age ends with its job, so that Ray places slots again in turn.
MAX_HELLO_BYTES = 1000
HELLO_SECONDS = 10.0  # A connection that has not said by then which slot it is from is closed.
LOST_AFTER = 5.0  # Seconds for Ray to say what became of a slot whose connection is lost.


class SlotTask(Protocol):
    """The Ray task of a slot."""

    def ended(self) -> Awaitable[None]:
        """Returns when the slot has ended; raises why it was lost."""
        ...

    def kill(self) -> None:
        """End its process, or do not start it."""
        ...


#: Starts a Ray task: what it holds, the address to connect to, and what to say there first.
StartSlot = Callable[[Resources, tuple[str, int], bytes], SlotTask]


class SlotJob:
    """A job on its way through a slot."""

    def __init__(self, order: bytes, tell: Callable[[ChildReport], None]) -> None:
        self.order = order
        self.tell = tell
        self.outcome: asyncio.Future[ChildReport] = asyncio.get_running_loop().create_future()
        self.slot: ClusterSlot | None = None

    def fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class SlotKind:
    """The slots that hold the same resources, and the jobs that wait for one of them."""

    def __init__(self, needs: Resources) -> None:
        self.needs = needs
        self.waiting: deque[SlotJob] = deque()
        self.starting: set[ClusterSlot] = set()  # At least as many as there are jobs that wait.
        self.idle: list[ClusterSlot] = []

    def drop_surplus(self) -> None:
        """Do not start more slots than jobs wait for one."""
        while len(self.starting) > len(self.waiting):
            self.starting.pop().kill()


class ClusterSlot:
    """One slot: a Ray task, and the connection that it opens when it has been placed."""

    def __init__(self, kind: SlotKind) -> None:
        self.kind = kind
        self.job: SlotJob | None = None
        self.task: SlotTask | None = None
        self.follower: asyncio.Task[None] | None = None
        self.connection: SlotConnection | None = None
        self.began = self.idle_since = time.monotonic()
        self.cutting_off: asyncio.TimerHandle | None = None
        self.is_cut_off = False

    def give(self, job: SlotJob) -> None:
        """Run a job in this slot."""
        self.job, job.slot = job, self
        if self.connection is not None:
            self.connection.send(job.order)

    def close(self) -> None:
        """Let it end."""
        if self.connection is not None:
            self.connection.close()

    def cut_off(self) -> None:
        """End it because it cannot be reached."""
        self.is_cut_off = True
        self.kill()

    def kill(self) -> None:
        """End it at once, with its job."""
        self.close()
        if self.task is not None:
            self.task.kill()


class SlotConnection(asyncio.Protocol):
    """The worker's end of a slot's connection."""

    def __init__(self, slots: ClusterSlots) -> None:
        self._slots = slots
        self._slot: ClusterSlot | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        enable_keepalives(transport.get_extra_info("socket"))
        self._greeting = asyncio.get_running_loop().call_later(HELLO_SECONDS, self.close)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= SIZE_BYTES:
            size = int.from_bytes(self._data[:SIZE_BYTES])
            end = SIZE_BYTES + size
            if self._slot is None and size > MAX_HELLO_BYTES:
                self.close()
                return
            if len(self._data) < end:
                return
            message = bytes(self._data[SIZE_BYTES:end])
            del self._data[:end]
            if self._slot is not None:
                self._slots.take_report(self._slot, decode(message, ChildReport))
            elif (slot := self._slots.greet(message, self)) is not None:
                self._slot = slot
                self._greeting.cancel()
            else:
                self.close()
                return

    def connection_lost(self, exc: Exception | None) -> None:
        self._greeting.cancel()
        if self._slot is not None:
            self._slots.lose_connection(self._slot)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(framed(data))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ClusterSlots:
    """All slots of a worker. Runs on its event loop."""

    def __init__(self, start: StartSlot, listening: socket.socket) -> None:
        """`listening` is at an address of this machine that the cluster's nodes reach."""
        self._start = start
        self._listening = listening
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._context = copy_context()  # Slots outlive the jobs in whose contexts they are started.
        self._address: tuple[str, int] = listening.getsockname()[:2]
        self._kinds: dict[bytes, SlotKind] = {}
        self._slots: dict[int, ClusterSlot] = {}
        self._last = 0
        self._sweeping: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Let slots connect."""
        async with self._opening:
            if self._server is None:
                serving = asyncio.get_running_loop().create_server(lambda: SlotConnection(self), sock=self._listening)
                self._server = await asyncio.create_task(serving, context=self._context)

    async def close(self) -> None:
        """Close all connections: idle slots end, and Ray ends the others with this driver."""
        if self._server is not None:
            self._server.close()
        self._listening.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        followers = [slot.follower for slot in self._slots.values() if slot.follower is not None]
        for slot in self._slots.values():
            slot.close()
        for follower in followers:
            follower.cancel()
        if followers:
            await asyncio.wait(followers)

    def submit(self, needs: Resources, job: SlotJob) -> None:
        """Run a job in an idle slot, or in the first that becomes free or is placed."""
        kind = self._kinds.setdefault(encode(needs), SlotKind(needs))
        if kind.idle:
            kind.idle.pop().give(job)
        else:
            kind.waiting.append(job)
            if len(kind.starting) < len(kind.waiting):
                self._start_slot(kind)

    def cancel(self, needs: Resources, job: SlotJob) -> None:
        """End a job: with its slot if it has begun."""
        if job.slot is not None:
            job.slot.job = None
            job.slot.kill()
            return
        kind = self._kinds[encode(needs)]
        if job in kind.waiting:
            kind.waiting.remove(job)
            kind.drop_surplus()

    def greet(self, message: bytes, connection: SlotConnection) -> ClusterSlot | None:
        """The slot that has connected; None if it is not one of ours or no longer wanted."""
        try:
            hello = decode(message, SlotHello)
        except PayloadError:
            return None
        slot = self._slots.get(hello.slot)
        if slot is None or slot not in slot.kind.starting:
            return None
        if not hmac.compare_digest(hello.secret.encode(), self._secret.encode()):
            return None
        slot.kind.starting.discard(slot)
        slot.connection, slot.began = connection, time.monotonic()
        self._next_job(slot)
        return slot

    def take_report(self, slot: ClusterSlot, report: ChildReport) -> None:
        """Pass on what the job of a slot reports."""
        if (job := slot.job) is None:
            return
        if not report.is_outcome:
            job.tell(report)
            return
        slot.job = job.slot = None
        if not job.outcome.done():
            job.outcome.set_result(report)
        if time.monotonic() - slot.began > SLOT_SECONDS:
            slot.close()
        else:
            self._next_job(slot)

    def lose_connection(self, slot: ClusterSlot) -> None:
        """Without a connection a slot is of no use; Ray says what has become of its job."""
        if slot in slot.kind.idle:
            slot.kind.idle.remove(slot)
        if slot.job is not None and slot.follower is not None and not slot.follower.done():
            later = asyncio.get_running_loop().call_later(LOST_AFTER, slot.cut_off, context=self._context)
            slot.cutting_off = later

    def _start_slot(self, kind: SlotKind) -> None:
        for other in self._kinds.values():
            if other is not kind:  # Their idle slots may hold what this one needs.
                self._end_idle(other, time.monotonic())
        self._last += 1
        slot = self._slots[self._last] = ClusterSlot(kind)
        kind.starting.add(slot)
        slot.task = self._start(kind.needs, self._address, encode(SlotHello(self._secret, self._last)))
        following = self._follow(self._last, slot, slot.task)
        slot.follower = asyncio.create_task(following, name="tidemill-ray-slot", context=self._context)

    async def _follow(self, number: int, slot: ClusterSlot, task: SlotTask) -> None:
        """Wait for the end of a slot. If it was lost, so is its job, or one of those that it was started for."""
        error: Exception = MachineLost("the connection to the machine of the Ray cluster that ran it was lost")
        try:
            await task.ended()
        except Exception as raised:  # noqa: BLE001 - it is the outcome of the job
            error = error if slot.is_cut_off else raised
        finally:
            if slot.cutting_off is not None:
                slot.cutting_off.cancel()
        del self._slots[number]
        kind = slot.kind
        if slot in kind.idle:
            kind.idle.remove(slot)
        if slot.job is not None:
            slot.job.fail(error)
        elif slot in kind.starting:
            kind.starting.discard(slot)
            if len(kind.waiting) > len(kind.starting):
                kind.waiting.popleft().fail(error)
        slot.close()

    def _next_job(self, slot: ClusterSlot) -> None:
        kind = slot.kind
        if kind.waiting:
            slot.give(kind.waiting.popleft())
        else:
            slot.idle_since = time.monotonic()
            kind.idle.append(slot)
            if self._sweeping is None:
                self._sweep_later()

    def _sweep(self) -> None:
        """End the slots that have been idle for too long, and do not start those that would be."""
        self._sweeping = None
        now = time.monotonic()
        for kind in self._kinds.values():
            self._end_idle(kind, now - IDLE_SECONDS)
            kind.drop_surplus()
        if any(kind.idle for kind in self._kinds.values()):
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeping = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._sweep, context=self._context)

    def _end_idle(self, kind: SlotKind, since: float) -> None:
        for slot in kind.idle:
            if slot.idle_since <= since:
                slot.close()
        kind.idle = [slot for slot in kind.idle if slot.idle_since > since]
