"""The live stream of changes: one listener and one reader of the change log per server, however many pages are open.

The log in the database has every change of the last minutes (`store.change_log`). This process reads it when it is
notified, and again soon while it finds changes. The changes of one read become one event, which is encoded once and
sent to all subscribers. The id of an event is the snapshot of the log that was read: a page that reconnects with it, to
this server or to the next one after a restart, gets exactly what it has missed, from memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import NamedTuple

import msgspec
import structlog

from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.authentication import Authenticator
from tidemill.engine.event_wait import wait_for_event
from tidemill.server.problems import Refused
from tidemill.store.access.idempotency import forget_answers
from tidemill.store.access.tokens import ACCOUNTS_CHANNEL
from tidemill.store.change_log import (
    CHANGES_CHANNEL,
    Change,
    LogRead,
    LogSnapshot,
    follow_changes,
    forget_changes,
    read_changes,
)
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.notify import Callback, Listener
from tidemill.store.telemetry.throughput import EVERY, note_pace

log = structlog.get_logger("tidemill.server")

PAUSE = 0.06  # between two reads while there are changes
PAUSE_RATIO = 1.4  # longer if sending takes longer than that: to the processor time since the read, times this
PAUSE_EACH = 0.0002  # never longer than this for each subscriber
SAFETY = 1.0  # the safety poll while there are subscribers
KEEP_EVERY = 60.0
HEARTBEAT = 15.0
LONGEST = 300.0  # seconds until a page must reconnect and authenticate again
MOST_KEPT = 20_000
MOST_RUNS = 500
MOST_BEHIND = 256
MOST_STREAMS = 2000
MOST_EACH = 100  # streams of one token, whatever opened them

RESET = "reset"


class ChangeSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has changed since the event before: read these again. `kinds` are whole lists, such as `workers`."""

    queues: list[str] = []
    runs: list[int] = []
    kinds: list[str] = []
    all_runs: bool = False
    """So many runs have changed that they are not named."""


class Frame(NamedTuple):
    """One event of the stream, also encoded, for subscribers of everything."""

    changes: ChangeSet | None
    """None means: anything may have changed."""
    id: str
    data: bytes
    kind: str = "change"
    """hello, change, reset, or quiet: nothing has happened for a while."""


class Topics(msgspec.Struct, frozen=True):
    """The changes that a subscriber wants; empty means all."""

    queues: frozenset[str] = frozenset()
    runs: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()

    @classmethod
    def read(cls, texts: Iterable[str]) -> Topics:
        """From `queue:mail`, `run:12`, `runs`, `queues`, `workers` and so on."""
        queues, runs, kinds = set(), set(), set()
        for text in texts:
            what, colon, key = text.partition(":")
            if what == "queue" and key:
                queues.add(key)
            elif what == "run" and key.isascii() and key.isdigit() and len(key) < 20:
                runs.add(int(key))
            elif not colon and what:
                kinds.add(what)
            else:
                raise ConfigError(f"{text!r} is not a topic: use queue:NAME, run:ID, queues, runs, workers, ...")
        return cls(frozenset(queues), frozenset(runs), frozenset(kinds))

    def of(self, changes: ChangeSet) -> ChangeSet | None:
        """The part of the changes that is wanted; None if there is none."""
        if not (self.queues or self.runs or self.kinds):
            return changes
        queues = changes.queues if "queues" in self.kinds else [each for each in changes.queues if each in self.queues]
        runs = changes.runs if "runs" in self.kinds else [each for each in changes.runs if each in self.runs]
        kinds = [each for each in changes.kinds if each in self.kinds]
        many = changes.all_runs and bool(self.runs or "runs" in self.kinds)
        return ChangeSet(queues, runs, kinds, many) if queues or runs or kinds or many else None


class Subscriber:
    """A stream that is open; `ended` once its caller may no longer have it."""

    __slots__ = ("caller", "ended")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.ended = False


class Hub:
    """All subscribers, and the events to send them."""

    def __init__(self, database: Database, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._subscribers: set[Subscriber] = set()
        self._accounts = asyncio.Event()
        self.callbacks: dict[str, Callback] = {}
        """More callbacks by channel; to be added before `run`."""
        self._database = database
        self._notifier = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._seen: LogSnapshot | None = None
        self._epoch = ""
        self._gone = 0
        self._reset_after: int | None = None
        self._kept: deque[Change] = deque()
        self._frames: deque[Frame] = deque(maxlen=MOST_BEHIND)
        self._sent_since: dict[str, ChangeSet | None] = {}
        """What reconnected subscribers were sent since the last read: after a restart many have the same last id."""
        self._count = 0
        self._turn: asyncio.Future[None] | None = None
        self._ready = asyncio.Event()
        self._closed = False

    # -- its life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the changes until cancelled."""
        listener = Listener(self._database)
        listener.on(CHANGES_CHANNEL, lambda _: self._notifier.set())
        listener.on(ACCOUNTS_CHANNEL, lambda _: self._accounts.set())
        for channel, callback in self.callbacks.items():
            listener.on(channel, callback)
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.run(), name="tidemill-changes-listener")
            group.create_task(self._keep(), name="tidemill-changes-keep")
            group.create_task(self._follow(), name="tidemill-changes-follow")
            group.create_task(self._end_revoked(), name="tidemill-changes-accounts")
            group.create_task(self._note_pace(), name="tidemill-pace")
            group.create_task(self._beat(), name="tidemill-changes-beat")

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._wake()

    async def _follow(self) -> None:
        while True:
            self._notifier.clear()
            began = time.process_time()
            if await self._read_once():
                await asyncio.sleep(PAUSE)
                wanted = min((time.process_time() - began) * PAUSE_RATIO, self.watching * PAUSE_EACH)
                await asyncio.sleep(max(0.0, wanted - PAUSE))
                continue
            # Without subscribers nothing is read: the log in the database keeps the changes.
            waking, most = (self._notifier, SAFETY) if self.watching else (self._subscribed, KEEP_EVERY)
            await wait_for_event(waking, most)

    async def _end_revoked(self) -> None:
        """End the streams of callers whose token was revoked or whose session has ended, once notified."""
        while True:
            await self._accounts.wait()
            self._accounts.clear()
            self._authenticator.forget()
            try:
                ended = await self._authenticator.find_ended({each.caller for each in self._subscribers})
            except Exception as error:
                if not (is_transient(error) or isinstance(error, StoreError)):
                    raise
                self._accounts.set()
                await asyncio.sleep(SAFETY)
                continue
            for each in self._subscribers:
                each.ended = each.ended or each.caller in ended
            if ended:
                self._wake()

    async def _read_once(self) -> bool:
        """Read new changes; returns whether there were any."""
        async with self._reading:
            try:
                read = await read_changes(self._database, self._seen)
                if read.epoch is None or read.epoch != self._epoch:
                    read = await self._begin()
                self._take(read)
            except Exception as error:
                if not (is_transient(error) or isinstance(error, StoreError)):
                    raise
                log.warning("changes cannot be followed now", error=str(error))
                return False
        self._ready.set()
        return bool(read.changes)

    async def _begin(self) -> LogRead:
        """Follow the log as it is now. Another one than before means that changes were missed."""
        epoch, gone = await follow_changes(self._database)
        read = await read_changes(self._database, None)
        missed = self._epoch not in ("", epoch)
        self._epoch, self._gone, self._seen = epoch, gone, None
        self._kept.clear()
        # Transactions that began before the log may still change something unlogged: reset all once they have ended.
        self._reset_after = gone if missed or read.seen.low <= gone else None
        return read

    def _take(self, read: LogRead) -> None:
        fresh, first = list(read.changes), self._seen is None
        self._seen, self._gone = read.seen, max(self._gone, read.gone)
        self._kept.extend(fresh)
        self._sent_since.clear()
        while len(self._kept) > MOST_KEPT:
            self._gone = max(self._gone, self._kept.popleft().xid)
        if fresh and not first:
            self._send(merge_changes(fresh), self._id())
        if self._reset_after is not None and read.seen.low > self._reset_after:
            self._reset_after = None
            self._send(None, self._id())

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY)
            try:
                await follow_changes(self._database)
                await forget_changes(self._database)
                await forget_answers(self._database)
            except Exception as error:
                if not (is_transient(error) or isinstance(error, StoreError)):
                    raise
                log.warning("changes cannot be kept now", error=str(error))

    async def _note_pace(self) -> None:
        while True:
            try:
                await note_pace(self._database)
            except Exception as error:
                if not (is_transient(error) or isinstance(error, StoreError)):
                    raise
            await asyncio.sleep(EVERY)

    # -- telling ----------------------------------------------------------------------------------

    def _id(self) -> str:
        return f"{self._epoch}.{self._seen.text}" if self._seen is not None else ""

    def _send(self, changes: ChangeSet | None, id: str) -> None:
        self._add(_frame(changes, id))

    def _add(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._count += 1
        self._wake()

    async def _beat(self) -> None:
        """Send a heartbeat to all subscribers: one timer for all of them."""
        while True:
            await asyncio.sleep(HEARTBEAT)
            if self._ready.is_set() and self.watching:
                self._add(self._quiet())

    def _wake(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and not turn.done():
            turn.set_result(None)

    def _next_turn(self) -> asyncio.Future[None]:
        if self._turn is None or self._turn.done():
            self._turn = asyncio.get_running_loop().create_future()
        return self._turn

    def check_room(self, caller: Caller) -> None:
        """Raise if the caller has too many streams open, or all callers together do."""
        own = sum(each.caller.name == caller.name for each in self._subscribers)
        if (caller.token_id or caller.session_id) is not None and own >= MOST_EACH:
            raise Refused(429, f"{caller.name} has {MOST_EACH} streams open: close one of them", Retry_After="10")
        if self.watching >= MOST_STREAMS:
            raise Refused(503, f"{MOST_STREAMS:,} streams are open, and no more fit", Retry_After="10")

    @contextlib.contextmanager
    def subscribing(self, caller: Caller) -> Iterator[Subscriber]:
        """Keep a subscriber for as long as the block lasts; its stream ends when `ended` is set."""
        subscriber = Subscriber(caller)
        self._subscribers.add(subscriber)
        self._subscribed.set()
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._subscribed.clear()

    @property
    def watching(self) -> int:
        """How many streams are open."""
        return len(self._subscribers)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_live(self) -> bool:
        """Whether the changes are being followed."""
        return self._ready.is_set()

    @property
    def place(self) -> int:
        """How many events there have been."""
        return self._count

    async def watch(self, caller: Caller, topics: Topics, last: str | None = None) -> AsyncIterator[bytes]:
        """The stream for one page, as server-sent events."""
        async for frame in self.frames(caller, topics, last):
            yield frame.data

    async def frames(self, caller: Caller, topics: Topics, last: str | None = None) -> AsyncIterator[Frame]:
        """The events for a subscriber from `last` on, for some minutes; it then reconnects."""
        with self.subscribing(caller) as subscriber:
            await self._ready.wait()
            if last is not None and self._is_ahead(last):
                await self._read_once()
            place = self._count
            yield self._catch_up(topics, last)
            until = asyncio.get_running_loop().time() + LONGEST
            while not (self._closed or subscriber.ended) and asyncio.get_running_loop().time() < until:
                if place == self._count:
                    await asyncio.shield(self._next_turn())
                    continue
                frames, place = self._since(place), self._count
                if frames is None:
                    yield _frame(None, self._id())
                    continue
                for frame in frames:
                    if (wanted := _for(topics, frame)) is not None:
                        yield wanted

    async def changed(self, subscriber: Subscriber, run_id: int, since: int, *, timeout: float) -> None:
        """Return when a run may have changed since a place in the stream, the subscriber has ended or time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (self._closed or subscriber.ended):
                    frames, since = self._since(since), self._count
                    if frames is None or any(_concerns_run(frame, run_id) for frame in frames):
                        return
                    await self._changes_within(timeout)

    async def _changes_within(self, seconds: float) -> bool:
        turn = self._next_turn()
        await asyncio.wait([turn], timeout=seconds)
        return turn.done()

    def _since(self, place: int) -> list[Frame] | None:
        """The events after a place; None if some of them are gone."""
        behind = self._count - place
        if behind > len(self._frames):
            return None
        if behind == 1:
            return [self._frames[-1]]
        return list(self._frames)[len(self._frames) - behind :]

    def _is_ahead(self, last: str) -> bool:
        """Whether another server has sent a subscriber more than this one has read."""
        try:
            then = LogSnapshot.read(last.partition(".")[2])
        except ConfigError:
            return False
        return self._seen is not None and then.high > self._seen.high

    def _quiet(self) -> Frame:
        return Frame(ChangeSet(), self._id(), f"id: {self._id()}\n\n".encode(), "quiet")

    def _catch_up(self, topics: Topics, last: str | None) -> Frame:
        if last is None:
            hello = f"id: {self._id()}\nevent: hello\ndata: {{}}\n\n".encode()
            return Frame(ChangeSet(), self._id(), hello, "hello")
        if last not in self._sent_since:
            missed = self.missed_since(last)
            self._sent_since[last] = None if missed is None else merge_changes(missed)
        changes = self._sent_since[last]
        if changes is None:
            return _frame(None, self._id())
        wanted = topics.of(changes) if changes != ChangeSet() else None
        return self._quiet() if wanted is None else _frame(wanted, self._id())

    def missed_since(self, last: str) -> list[Change] | None:
        """The changes since this point; None if the log no longer has all of them."""
        epoch, _, rest = last.partition(".")
        try:
            then = LogSnapshot.read(rest)
        except ConfigError:
            return None
        if epoch != self._epoch or self._seen is None or then.high > self._seen.high or then.low <= self._gone:
            return None
        return [change for change in self._kept if not then.has(change.xid)]


def merge_changes(changes: Iterable[Change]) -> ChangeSet:
    """Merge many changes into one set."""
    queues: set[str] = set()
    runs: set[int] = set()
    kinds: set[str] = set()
    for change in changes:
        if change.what == "queue":
            queues.update(change.keys)
        elif change.what == "run":
            runs.update(map(int, change.keys))
        else:
            kinds.add(change.what)
    many = len(runs) > MOST_RUNS
    return ChangeSet(sorted(queues), [] if many else sorted(runs), sorted(kinds), many)


def write_event(changes: ChangeSet | None, id: str) -> bytes:
    """An event as the stream has it."""
    head = f"id: {id}\n" if id else ""
    if changes is None:
        return f"{head}event: {RESET}\ndata: {{}}\n\n".encode()
    return head.encode() + b"event: change\ndata: " + msgspec.json.encode(changes) + b"\n\n"


def _frame(changes: ChangeSet | None, id: str) -> Frame:
    return Frame(changes, id, write_event(changes, id), RESET if changes is None else "change")


def _for(topics: Topics, frame: Frame) -> Frame | None:
    if frame.changes is None or frame.kind == "quiet":
        return frame
    wanted = topics.of(frame.changes)
    if wanted is None:
        return None
    return frame if wanted is frame.changes else _frame(wanted, frame.id)


def _concerns_run(frame: Frame, run_id: int) -> bool:
    return frame.changes is None or frame.changes.all_runs or run_id in frame.changes.runs
