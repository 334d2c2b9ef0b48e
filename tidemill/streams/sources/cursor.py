"""Positions kept in our own database, for sources that remember nothing, and for those that must be exact.

A position is stored in the transaction that stores what the messages led to. Whoever takes a partition over owns its
row, and whoever owned it before can store nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence

import msgspec

from tidemill.store.database import Executor
from tidemill.store.streams.streams import Cursor, Span, move_cursor, own_cursor
from tidemill.streams.definition.message import Delivery
from tidemill.streams.reducer.offsets import Offsets
from tidemill.streams.sources.base import FencedError, Place


class _Part(msgspec.Struct):
    name: str
    offsets: Offsets
    done: tuple[Span, ...]
    """What was done beyond the position when it was taken over."""
    note: str | None
    anchor: int | None
    """Where positions must have a name of the source's: the last that has one."""
    moved: bool = False

    def was_done(self, position: int) -> bool:
        at = bisect_left(self.done, position, key=lambda span: span[1])
        return at < len(self.done) and ((after := self.done[at][0]) is None or after < position)

    def finish(self, position: int) -> None:
        self.moved |= self.offsets.finish(position)


class Cursors:
    """The positions of one source's partitions."""

    def __init__(self, source: str, place: Place, *, named: bool = False) -> None:
        """`named`: a stored position goes with a note, and only `note` moves both."""
        self._source = source
        self._named = named
        self._database = place.database
        self._stream = place.stream
        self._owner = place.dispatcher
        self._parts: dict[int, _Part] = {}

    async def own(self, number: int, name: str) -> Cursor:
        """Take a partition over; says where it stands."""
        cursor = await own_cursor(self._database, self._stream, self._source, name, self._owner)
        self._parts[number] = _Part(name, Offsets(cursor.position), cursor.done, cursor.note, cursor.position)
        return cursor

    def disown(self, number: int) -> None:
        self._parts.pop(number, None)

    def take(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Those of the deliveries that are not done already; all of them are accounted for."""
        fresh: list[Delivery] = []
        for delivery in deliveries:
            part = self._parts[delivery.part]
            part.offsets.take((delivery.position,))
            if part.was_done(delivery.position):
                part.finish(delivery.position)
            else:
                fresh.append(delivery)
        return fresh

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            part = self._parts.get(delivery.part)
            if part is not None:
                part.finish(delivery.position)

    def note(self, number: int, position: int, note: str | None) -> None:
        """All up to this position is done, and this is what the source calls it."""
        part = self._parts[number]
        part.anchor, part.note = position, note

    def committable(self, number: int) -> int | None:
        return self._parts[number].offsets.committable

    async def flush(self) -> None:
        moved = [part for part in self._parts.values() if part.moved]
        if not moved:
            return
        async with self._database.acquire() as connection:
            for part in moved:
                part.moved = False
                try:
                    if not await self._move(connection, part):
                        raise FencedError(f"source {self._source}: {part.name} belongs to another reader now")
                except BaseException:
                    part.moved = True
                    raise

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Store that these are done, in the caller's transaction."""
        done: dict[int, set[int]] = {}
        for delivery in deliveries:
            done.setdefault(delivery.part, set()).add(delivery.position)
        for number, positions in done.items():
            part = self._parts.get(number)
            if part is None or not await self._move(connection, part, positions):
                raise FencedError(f"source {self._source}: partition {number} belongs to another reader now")

    async def _move(self, connection: Executor, part: _Part, more: Container[int] = ()) -> bool:
        position = part.anchor if self._named else part.offsets.committable
        done = part.offsets.done_beyond(position, more)
        return await move_cursor(
            self._database, connection, self._stream, self._source, part.name, self._owner, position, part.note, done
        )
