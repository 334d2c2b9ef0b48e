"""The calls of user code that a process has not ended when it dies: in memory that its supervisor keeps.

Jobs, runs and messages are known to the database or to another process while they run. The callbacks of monitors and
the builds of a pipeline's own process are not: here each call is noted while it runs. The supervisor hands the same
memory to the next process, which finds the calls that its predecessor died in and counts them as `core.blame` says.
A call that has ended its process `max_losses` times, or has blocked it, is refused for ten minutes, then for
twenty, and so on up to a day: what refuses it treats it as a call that has raised.

Without a supervisor the memory ends with the process, and so does all that depends on it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import structlog

from tidemill.core.blame import Blame, after_death
from tidemill.engine.containment.watchdog import CancelWatch, Culprit, EndedFor
from tidemill.store.database import Connection

log = structlog.get_logger("tidemill.crash_record")

SLOTS, SLOT_BYTES = 256, 512
COUNTED_BYTES = 256 * 1024
SIZE = SLOTS * SLOT_BYTES + COUNTED_BYTES
LONGEST_KEY = SLOT_BYTES - 4
MAX_LOSSES = 3
FIRST_REFUSAL, LONGEST_REFUSAL = 600.0, 86_400.0
UNWINDING = 5.0
"""Seconds within which a process has ended that ends by an exception."""

_LENGTH = struct.Struct("<I")


class CallBlame(msgspec.Struct, frozen=True):
    """What is known of a call that was not ended by a process that died."""

    blame: Blame = Blame()
    refusals: int = 0
    refused_until: float = 0.0
    why: str = ""


class RefusedCallError(Exception):
    """A call is not made, because it has ended or blocked its process before."""


def make_crash_memory() -> int:
    """A descriptor of memory that a supervisor keeps for its child."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tidemill-crash-record")
    else:
        descriptor, path = tempfile.mkstemp(prefix="tidemill-crash-record-")
        os.unlink(path)
    os.ftruncate(descriptor, SIZE)
    return descriptor


def died_in_call(descriptor: int) -> bool:
    """Whether the process that had this memory has died in a call that it had noted."""
    return any(any(os.pread(descriptor, 4, slot * SLOT_BYTES)) for slot in range(SLOTS))


class CrashRecord:
    """The calls that run now, and those that earlier processes died in. Calls may begin and end in any thread."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.max_losses = MAX_LOSSES
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, SIZE)
        self._free = deque(range(SLOTS))
        self._lock = threading.Lock()
        self._calls: dict[str, CallBlame] = self._read_counted()
        self._left = [key for slot in range(SLOTS) if (key := self._read(slot))]
        self.forget_running()

    # -- calls ------------------------------------------------------------------------------------

    def hold(self) -> int:
        """A slot for calls that follow each other; -1, which notes nothing, where the most are held already."""
        try:
            return self._free.popleft()
        except IndexError:
            return -1

    def begin(self, key: str) -> int:
        """Note that a call begins; returns its slot. Raises `RefusedCallError`."""
        slot = self.hold()
        try:
            self.next(slot, key)
        except RefusedCallError:
            self.end(slot)
            raise
        return slot

    def next(self, slot: int, key: str) -> None:
        """Note that a call begins; the previous one in its slot has ended. Raises `RefusedCallError`."""
        if self._calls and (call := self._calls.get(key)) is not None and call.refused_until > time.time():
            self.erase(slot)
            raise RefusedCallError(call.why)
        self._write(slot, key)

    def end(self, slot: int) -> None:
        """Note that a call has ended, and free its slot."""
        if slot >= 0:
            self.erase(slot)
            self._free.append(slot)

    def end_by(self, slot: int, error: BaseException) -> None:
        """Note that a call on the event loop has ended by an exception.

        When the user's code ends the event loop (`sys.exit` in a task), what runs there is cancelled before the process
        ends. So a call that did not end by an `Exception` stays noted until the process has outlived it.
        """
        if isinstance(error, Exception):
            self.end(slot)
        else:
            asyncio.get_running_loop().call_later(UNWINDING, self.end, slot)

    def clear(self, key: str) -> None:
        """A call has ended without ending its process: it is no longer suspected."""
        if key in self._calls:
            with self._lock:
                self._calls.pop(key, None)
                self._write_counted()

    def is_counted(self, key: str) -> bool:
        """Whether an earlier process died in this call."""
        return key in self._calls

    def suspicions(self, key: str) -> int:
        """How often a call was one of several that a process died in."""
        call = self._calls.get(key)
        return 0 if call is None or call.refused_until > time.time() else call.blame.suspicions

    @property
    def has_suspects(self) -> bool:
        return any(self.suspicions(key) for key in self._calls)

    # -- deaths -----------------------------------------------------------------------------------

    def count_death(self, kind: str, choose: Callable[[list[str]], Sequence[str]] = lambda held: held) -> list[str]:
        """Count the calls of a kind that the last process died in; returns them. `choose` picks who may be guilty."""
        held = [key for key in self._left if key.startswith(f"{kind}\0")]
        self._left = [key for key in self._left if key not in held]
        found = list(choose(held))
        known = {key: call.blame for key, call in self._calls.items()}
        for key, blame in after_death(found, known).items():
            call = msgspec.structs.replace(self._calls.get(key, CallBlame()), blame=blame)
            self._calls.pop(key, None)  # The newest are last.
            self._calls[key] = call
            if blame.losses >= self.max_losses:
                self.refuse(key, f"its process died {blame.losses} times while it ran nothing else")
        if found:
            self._write_counted()
        return found

    def refuse(self, key: str, why: str) -> None:
        """Make this call no more for a while."""
        with self._lock:
            call = self._calls.pop(key, CallBlame())
            seconds = min(LONGEST_REFUSAL, FIRST_REFUSAL * 2**call.refusals)
            # After that, one more death is enough.
            blame = Blame(call.blame.suspicions, max(call.blame.losses, self.max_losses - 1))
            self._calls[key] = CallBlame(blame, call.refusals + 1, time.time() + seconds, why)
            self._write_counted()

    def forget_running(self) -> None:
        """The process is about to end for another reason: no call is to blame."""
        for slot in range(SLOTS):
            self.erase(slot)

    # -- memory -----------------------------------------------------------------------------------

    def _write(self, slot: int, key: str) -> None:
        if slot < 0:
            return
        data, at, memory = key.encode()[:LONGEST_KEY], slot * SLOT_BYTES, self._memory
        memory[at : at + 4] = b"\0\0\0\0"
        memory[at + 4 : at + 4 + len(data)] = data
        memory[at : at + 4] = _LENGTH.pack(len(data))  # Last: a death in between blames nothing.

    def erase(self, slot: int) -> None:
        """Note that no call runs in a slot."""
        if slot >= 0:
            self._memory[slot * SLOT_BYTES : slot * SLOT_BYTES + 4] = b"\0\0\0\0"

    def _read(self, slot: int) -> str:
        at = slot * SLOT_BYTES
        (length,) = _LENGTH.unpack(self._memory[at : at + 4])
        return self._memory[at + 4 : at + 4 + min(length, LONGEST_KEY)].decode(errors="replace")

    def _read_counted(self) -> dict[str, CallBlame]:
        at = SLOTS * SLOT_BYTES
        (length,) = _LENGTH.unpack(self._memory[at : at + 4])
        if not length:
            return {}
        try:
            return msgspec.msgpack.decode(self._memory[at + 4 : at + 4 + length], type=dict[str, CallBlame])
        except msgspec.DecodeError:  # The process died while it wrote.
            return {}

    def _write_counted(self) -> None:
        at = SLOTS * SLOT_BYTES
        while len(data := msgspec.msgpack.encode(self._calls)) > COUNTED_BYTES - 4:
            self._calls.pop(next(iter(self._calls)))
        self._memory[at : at + 4] = b"\0\0\0\0"
        self._memory[at + 4 : at + 4 + len(data)] = data
        self._memory[at : at + 4] = _LENGTH.pack(len(data))


def call_key(kind: str, *parts: str) -> str:
    """What identifies a call: its kind and parts, or their hash where they are too long to be noted."""
    key = "\0".join((kind, *parts))
    if len(key) * 4 <= LONGEST_KEY or len(key.encode()) <= LONGEST_KEY:
        return key
    return f"{kind}\0{blake2b(key.encode(), digest_size=16).hexdigest()}"


class CallWatch:
    """What a watchdog knows of noted calls. The `work` of a culprit is its key."""

    def __init__(
        self,
        record: CrashRecord,
        find: Callable[[asyncio.Task[Any] | None], Culprit | None],
        running: Callable[[], Sequence[Culprit]] = tuple,
    ) -> None:
        """`running` are the calls that are cancelled at their limit."""
        self._record = record
        self._find = find
        self._running = running
        self._cancels = CancelWatch()

    def find(self, task: asyncio.Task[Any] | None) -> Culprit | None:
        return self._find(task)

    def overdue(
        self, now: float, loop: asyncio.AbstractEventLoop, *, is_blocked: bool
    ) -> tuple[Culprit, EndedFor] | None:
        return None if is_blocked else self._cancels.find(self._running(), now)

    async def is_cancelled(self, connection: Connection, culprit: Culprit) -> bool:
        return False

    async def write_end(self, connection: Connection, worker_id: int, culprit: Culprit, ended: EndedFor) -> None:
        """Refuse the culprit in the next process; nothing else is to blame."""
        self._record.refuse(culprit.work, ended.why)
        self._record.forget_running()

    async def report(self, connection: Connection, ended: EndedFor) -> None: ...


_record: CrashRecord | None = None


def inherit_crash_record(descriptor: int) -> None:
    """In a supervisor's child, at its start: continue the record of the process before."""
    global _record
    _record = CrashRecord(descriptor)


def crash_record(*, max_losses: int | None = None) -> CrashRecord:
    """The record of this process; `max_losses` changes how many deaths a call may have."""
    global _record
    if _record is None:
        _record = CrashRecord()
    if max_losses is not None:
        _record.max_losses = max_losses
    return _record
