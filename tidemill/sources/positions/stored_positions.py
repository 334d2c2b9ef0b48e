"""Positions of a consumer in our own database, for sources that store none and for those that must be exact.

A position is stored in the transaction that stores the results of the messages. The process that takes a partition over
owns its row; the owner before it can store nothing more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence

import msgspec

from tidemill.sources.base import FencedError, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.sources.positions.offsets import Offsets, PositionState
from tidemill.store.database import Executor
from tidemill.store.streams.streams import Span, StoredCursor, move_cursor, own_cursor


class _Partition(msgspec.Struct):
    name: str
    offsets: Offsets
    done: tuple[Span, ...]
    """What was done beyond the position when this process took the partition over."""
    note: str | None
    anchor: int | None
    """The last position that has a note, for sources whose positions have names of their own."""
    moved: bool = False

    def was_done(self, position: int) -> bool:
        at = bisect_left(self.done, position, key=lambda span: span[1])
        return at < len(self.done) and ((after := self.done[at][0]) is None or after < position)

    def finish(self, position: int) -> None:
        self.moved |= self.offsets.finish(position)


class StoredPositions:
    """The positions of one source's partitions."""

    def __init__(self, source: str, context: SourceContext, *, named: bool = False) -> None:
        """`named`: a position is stored with a note, and only `note` moves both."""
        self._source = source
        self._named = named
        self._database = context.database
        self._stream = context.name
        self._owner = context.owner
        self._partitions: dict[int, _Partition] = {}

    async def own(self, number: int, name: str) -> StoredCursor:
        """Take a partition over; returns its stored position."""
        cursor = await own_cursor(self._database, self._stream, self._source, name, self._owner)
        self.use(number, name, cursor)
        return cursor

    def use(self, number: int, name: str, cursor: StoredCursor) -> None:
        """Go on from this stored position of a partition."""
        self._partitions[number] = _Partition(name, Offsets(cursor.position), cursor.done, cursor.note, cursor.position)

    async def begin(self, number: int, position: int, note: str | None) -> None:
        """Store where a partition begins that has no position yet."""
        name = self._partitions[number].name
        self._partitions[number] = _Partition(name, Offsets(position), (), note, position, moved=True)
        await self.flush()

    def disown(self, number: int) -> None:
        self._partitions.pop(number, None)

    def take(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Register deliveries; returns those that are not done already."""
        fresh: list[Delivery] = []
        for delivery in deliveries:
            partition = self._partitions[delivery.part]
            partition.offsets.take((delivery.position,))
            if partition.was_done(delivery.position):
                partition.finish(delivery.position)
            else:
                fresh.append(delivery)
        return fresh

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            partition = self._partitions.get(delivery.part)
            if partition is not None:
                partition.finish(delivery.position)

    def note(self, number: int, position: int, note: str | None) -> None:
        """Everything up to this position is done, and the source calls this position so."""
        partition = self._partitions[number]
        partition.anchor, partition.note = position, note

    def committable(self, number: int) -> int | None:
        return self._partitions[number].offsets.committable

    def state_of(self, number: int, position: int) -> PositionState | None:
        """What has happened to a position of a partition; None if the partition is not read here."""
        partition = self._partitions.get(number)
        return None if partition is None else partition.offsets.state_of(position)

    async def flush(self) -> None:
        moved = [partition for partition in self._partitions.values() if partition.moved]
        if not moved:
            return
        async with self._database.acquire() as connection:
            for partition in moved:
                partition.moved = False
                try:
                    if not await self._move(connection, partition):
                        raise FencedError(f"source {self._source}: {partition.name} belongs to another reader now")
                except BaseException:
                    partition.moved = True
                    raise

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Store in the caller's transaction that these are done."""
        done: dict[int, set[int]] = {}
        for delivery in deliveries:
            done.setdefault(delivery.part, set()).add(delivery.position)
        for number, positions in done.items():
            partition = self._partitions.get(number)
            if partition is None or not await self._move(connection, partition, positions):
                raise FencedError(f"source {self._source}: partition {number} belongs to another reader now")

    async def _move(self, connection: Executor, partition: _Partition, more: Container[int] = ()) -> bool:
        position = partition.anchor if self._named else partition.offsets.committable
        done = partition.offsets.done_beyond(position, more)
        return await move_cursor(
            self._database,
            connection,
            self._stream,
            self._source,
            partition.name,
            self._owner,
            position,
            partition.note,
            done,
        )
