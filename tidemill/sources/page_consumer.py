"""Readers as consumers: a stream reads pages, and its positions are stored in our own database.

`PageConsumer` is for readers with a position of their own: a byte of a file, the cursor of an API. A position moves
when everything before it is done. `WindowConsumer` is for readers that are asked by time: each sweep begins a little
before the newest record, so that records that were committed late are found; records that were seen are skipped.

One process at a time reads; the others wait until its lease ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import (
    Backoff,
    FencedError,
    PageReader,
    RecordPage,
    Source,
    SourceContext,
    SourceEvent,
    read_event,
)
from tidemill.sources.delivery import Delivery
from tidemill.sources.positions.offsets import PositionState
from tidemill.sources.positions.reader_lease import ReaderLease
from tidemill.sources.positions.stored_positions import StoredPositions
from tidemill.store.database import Executor
from tidemill.store.streams.streams import move_cursor

POLL = (0.05, 1.0)
LEASE = 10.0


class _Sweeps:
    """Pages of a reader, sweep after sweep; waits longer and longer while there is nothing new."""

    def __init__(self, source: Source, reader: PageReader) -> None:
        self.backoff = Backoff(*getattr(source, "poll", POLL))
        self._reader = reader
        self._pages: AsyncIterator[RecordPage] | None = None

    async def next(self, since: float | None, token: str | None) -> RecordPage | None:
        """The next page of this sweep, or of a new one that begins here; None after the end of a sweep and a wait."""
        pages = self._pages or self._reader.pages(since, token, time.time())
        self._pages = None  # A reader that has failed is asked again.
        page = await anext(pages, None)
        if page is None:
            await self._wait()
        else:
            self._pages = pages
        return page

    async def _wait(self) -> None:
        """Wait until there may be more: until the reader reports more, if it can, or after growing pauses."""
        more = getattr(self._reader, "wait", None)
        waiting = None if more is None else asyncio.create_task(self._wake_with(more))
        try:
            await self.backoff.wait()
        finally:
            await end([] if waiting is None else [waiting])

    async def _wake_with(self, more: Callable[[], Awaitable[None]]) -> None:
        with suppress(Exception):  # The slow poll goes on.
            await more()
            self.backoff.wake()

    def restart(self) -> None:
        """Begin a new sweep."""
        self._pages = None


class PageConsumer:
    """Reads from a position of the source's own; the position is stored when everything before it is done."""

    transactional = True

    def __init__(
        self,
        source: Source,
        reader: PageReader,
        context: SourceContext,
        *,
        part: str,
        numbered: bool,
        lease: float,
    ) -> None:
        """`numbered`: records have no positions of their own and are counted; a position is stored page by page."""
        self._source, self._reader, self._context = source, reader, context
        self._part, self._numbered = part, numbered
        self._positions = StoredPositions(source.name, context, named=numbered)
        self._lease = ReaderLease(source.name, part, context, lease, self._lost)
        self._sweeps = _Sweeps(source, reader)
        self._waiting: deque[Delivery] = deque()
        self._page_ends: deque[tuple[int, str | None]] = deque()
        self._token: str | None = None
        self._number = 0

    async def start(self) -> None:
        await self._take_over()
        self._lease.start()

    async def _take_over(self) -> bool:
        """Become the reader, if no other process is; find out where to begin."""
        cursor = await self._lease.take()
        if cursor is None:
            return False
        self._number = cursor.position or 0
        self._token = cursor.note if self._numbered else str(self._number)
        if (check := getattr(self._reader, "check", None)) is not None:
            try:
                await check(self._token)
            except BaseException:
                await self._lease.release()
                raise
        self._positions.use(0, self._part, cursor)
        self._lease.begin()
        return True

    async def _lost(self, held: object) -> None:
        """Drop what was read ahead: another process reads now."""
        self._positions.disown(0)
        self._waiting.clear()
        self._page_ends.clear()
        self._sweeps.restart()
        self._context.on_lost(lambda delivery: delivery.token is held)

    async def poll(self, most: int) -> list[Delivery]:
        if self._lease.held is None and not await self._take_over():
            await self._lease.wait()
            return []
        held = self._lease.held
        if not self._waiting and (page := await self._sweeps.next(None, self._token)) is not None:
            if self._lease.held is not held:
                return []  # Another process has taken over the lease.
            self._token = page.token
            for record in page.records:
                record.token = held
                if self._numbered:
                    self._number += 1
                    record.position = self._number
            if page.records:
                self._sweeps.backoff.reset()
            if self._numbered:
                if self._page_ends and self._page_ends[-1][0] == self._number:
                    self._page_ends.pop()  # A page without records goes on from where the previous one ended.
                self._page_ends.append((self._number, page.token))
            self._waiting.extend(self._positions.take(page.records))
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._positions.ack([each for each in deliveries if each.token is self._lease.held])

    async def flush(self) -> None:
        """Store positions. A numbered position moves by whole pages: only their ends have a name at the source."""
        if self._lease.held is None:
            return
        done = self._positions.committable(0) or 0
        while self._page_ends and self._page_ends[0][0] <= done:
            self._positions.note(0, *self._page_ends.popleft())
        await self._positions.flush()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: they are read again from the stored position."""

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        _check_reader(self._source, self._lease, [each.token for each in deliveries])
        await self._positions.commit(connection, deliveries)

    async def stop(self) -> None:
        await self._lease.stop()
        try:
            await self.flush()
        finally:
            await self._reader.close()
            if self._lease.held is not None:
                await self._lease.release()

    async def lag(self) -> int | None:
        lag = getattr(self._reader, "lag", None)
        return None if lag is None or self._lease.held is None else await lag(self._token)

    async def state_of(self, part: int, position: int) -> PositionState | None:
        return self._positions.state_of(part, position)


def _check_reader(source: Source, lease: ReaderLease, read_in: Sequence[object]) -> None:
    """Refuse what was read before another process took over."""
    if any(each is not lease.held for each in read_in):
        raise FencedError(f"source {source.name}: another reader has taken over some of its messages")


class _Window(msgspec.Struct, omit_defaults=True):
    """A stored position by time: everything before `at` is done, and of what follows those in `done`."""

    at: float | None = None
    done: tuple[str, ...] = ()


class _Record(msgspec.Struct, eq=False):
    """What the consumer knows of a delivery: its id and time, and when this process has read it."""

    name: str
    held: object


class WindowConsumer:
    """Reads by time with an overlap; a record is known by its id and time."""

    transactional = True

    def __init__(self, source: Source, reader: PageReader, context: SourceContext, *, part: str, lease: float) -> None:
        self._source, self._reader, self._context, self._part = source, reader, context, part
        self._lease = ReaderLease(source.name, part, context, lease, self._lost)
        self._sweeps = _Sweeps(source, reader)
        self._waiting: deque[Delivery] = deque()
        self._open: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._unreadable: dict[str, float] = {}
        """When each record without an id or a time was found, by its content."""
        self._settled: float | None = None
        self._newest: float | None = None
        self._stored: float | None = None
        self._number = 0
        self._changed = False

    async def start(self) -> None:
        await self._take_over()
        self._lease.start()

    async def _take_over(self) -> bool:
        """Become the reader, if no other process is; find out where to begin."""
        cursor = await self._lease.take()
        if cursor is None:
            return False
        window = _Window() if cursor.note is None else msgspec.json.decode(cursor.note, type=_Window)
        self._number = cursor.position or 0
        self._settled = self._newest = self._stored = window.at
        self._done = {token: float(token.rpartition("@")[2]) for token in window.done}
        self._unreadable = {token.rpartition("@")[0]: at for token, at in self._done.items()}
        self._lease.begin()
        return True

    async def _lost(self, held: object) -> None:
        """Drop what was read ahead: another process reads now."""
        self._waiting.clear()
        self._open.clear()
        self._changed = False
        self._sweeps.restart()
        self._context.on_lost(lambda delivery: isinstance(delivery.token, _Record) and delivery.token.held is held)

    async def poll(self, most: int) -> list[Delivery]:
        if self._lease.held is None and not await self._take_over():
            await self._lease.wait()
            return []
        held = self._lease.held
        if not self._waiting:
            since = None if self._settled is None else self._settled - self._reader.overlap
            page = await self._sweeps.next(since, None)
            if page is not None and self._lease.held is held:  # Otherwise another process reads now.
                self._take(page)
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def _take(self, page: RecordPage) -> None:
        now = time.time()
        for record in page.records:
            event = self._read(record, now)
            if event.data is not None and event.at <= now:  # An event from a wrong clock must not hide all later ones.
                self._newest = event.at if self._newest is None else max(self._newest, event.at)
            token = f"{event.id}@{event.at!r}"
            if token in self._open or token in self._done:
                continue
            self._number += 1
            self._open[token] = event.at
            record.id, record.key, record.at = None, event.id.encode(), event.at
            record.position, record.token = self._number, _Record(token, self._lease.held)
            self._waiting.append(record)
            self._sweeps.backoff.reset()
        if page.complete:
            self._settled = self._newest
            if (anchor := self._anchor()) is not None:
                oldest = anchor - self._reader.overlap
                self._done = {token: at for token, at in self._done.items() if at >= oldest}
                self._unreadable = {digest: at for digest, at in self._unreadable.items() if at >= oldest}

    def _read(self, record: Delivery, now: float) -> SourceEvent:
        """The id and the time of a record.

        One without them, and so without data, is delivered once, as of when it was found: the plans decide what it
        means, and no other record is skipped because of it.
        """
        try:
            return read_event(record, self._source.id, self._source.time)
        except ValueError:
            digest = hashlib.sha256(record.payload).hexdigest()[:32]
            return SourceEvent(digest, self._unreadable.setdefault(digest, now), None, record.payload)

    def _anchor(self) -> float | None:
        """The time before which everything is done."""
        if self._settled is None:
            return None
        return min(self._settled, min(self._open.values(), default=self._settled))

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            record: _Record = delivery.token
            if record.held is self._lease.held and (at := self._open.pop(record.name, None)) is not None:
                self._done[record.name] = at
                self._changed = True

    async def flush(self) -> None:
        """Store the position once it has moved."""
        if self._changed and self._anchor() != self._stored:
            await self._store()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: they are read again from the stored position."""

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        _check_reader(self._source, self._lease, [each.token.held for each in deliveries])
        await self._move(connection, [each.token.name for each in deliveries])

    async def stop(self) -> None:
        await self._lease.stop()
        try:
            if self._changed:
                await self._store()
        finally:
            await self._reader.close()
            if self._lease.held is not None:
                await self._lease.release()

    async def lag(self) -> int | None:
        return None

    async def _store(self) -> None:
        self._changed, anchor = False, self._anchor()
        try:
            async with self._context.database.acquire() as connection:
                await self._move(connection)
            self._stored = anchor
        except BaseException:
            self._changed = True
            raise

    async def _move(self, connection: Executor, more: Sequence[str] = ()) -> None:
        context, anchor = self._context, self._anchor()
        oldest = float("-inf") if anchor is None else anchor - self._reader.overlap
        done = (*(token for token, at in self._done.items() if at >= oldest), *more)
        note = msgspec.json.encode(_Window(anchor, done)).decode()
        if not await move_cursor(
            context.database, connection, context.name, self._source.name, self._part, context.owner, self._number, note
        ):
            raise FencedError(f"source {self._source.name}: {self._part} belongs to another reader now")
