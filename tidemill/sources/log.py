"""A topic of the PostgreSQL log, `LogSource("posts")`: the source that needs nothing but the database.

Every group sees every message; readers of the same group share them. A reader takes a range of messages; when all of
them are done, the row of the range is deleted, and that is the acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

import msgspec
import structlog

from tidemill.sources.base import Backoff, Begin, FencedError, Source, SourceContext, headers_of
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Executor
from tidemill.store.database_errors import is_transient
from tidemill.store.streams.event_log import (
    count_behind,
    finish_ranges,
    make_group,
    note_done,
    release_ranges,
    renew_ranges,
    take_range,
)

log = structlog.get_logger("tidemill.sources")

MOST_IN_RANGE = 2000
LEASE = 15.0
SAFETY_POLL = (0.05, 1.0)


class LogSource(Source, frozen=True, tag="log"):
    """A topic of the PostgreSQL log."""

    topic: str
    group: str = ""
    """The consumer group; by default one for this stream or monitor and this source."""
    begin: Begin = "earliest"
    """Where a new group begins."""
    lease: float = LEASE
    """How many seconds a reader that has stopped answering keeps its messages."""

    @property
    def default_name(self) -> str:
        return self.topic

    def consumer(self, context: SourceContext) -> LogConsumer:
        return LogConsumer(self, context)


class _Range(msgspec.Struct, eq=False):
    """A range of messages in flight."""

    number: int
    open: int
    done: list[int]
    noted: int = 0


class LogConsumer:
    """One reader of a topic."""

    transactional = True

    def __init__(self, source: LogSource, context: SourceContext) -> None:
        self._source = source
        self._database = context.database
        self._owner = uuid4()
        self._on_lost = context.on_lost
        self._group = source.group or f"{context.name}.{source.name}"
        self._backoff = Backoff(*SAFETY_POLL)
        self._ranges: dict[int, _Range] = {}
        self._in_row = 1.0  # messages per row of the log, as observed
        self._finished: list[int] = []
        self._flushing: list[int] = []
        self._renewing: asyncio.Task[None] | None = None
        context.on_notify(source.topic, self._backoff.wake)

    async def start(self) -> None:
        from_now = self._source.begin == "latest"
        await make_group(self._database, self._group, self._source.topic, from_now=from_now)
        self._renewing = asyncio.create_task(self._renew())

    async def poll(self, most: int) -> list[Delivery]:
        most = min(most, MOST_IN_RANGE)
        found = await take_range(
            self._database,
            self._group,
            self._source.topic,
            most=most,
            rows=1 + int(most / self._in_row),
            owner=self._owner,
            lease=self._source.lease,
            known=[*self._ranges, *self._finished, *self._flushing] if self._source.ordered else None,
        )
        if found is None:
            await self._backoff.wait()
            return []
        self._backoff.reset()
        self._in_row = len(found.messages) / found.rows
        messages = found.messages
        if found.done:
            messages = [message for message in messages if message.position not in found.done]
        taken = _Range(found.number, len(messages), list(found.done))
        if not messages:
            self._finished.append(taken.number)
            return []
        self._ranges[taken.number] = taken
        return [
            Delivery(
                payload,
                position,
                0,
                at,
                None if key is None else key.encode(),
                None if headers is None else headers_of(msgspec.json.decode(headers)),
                token=taken,
                origin=origin,
            )
            for position, at, key, headers, payload, origin in messages
        ]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            taken: _Range = delivery.token
            taken.done.append(delivery.position)
            taken.open -= 1
            if not taken.open:
                self._finished.append(taken.number)
                self._ranges.pop(taken.number, None)

    async def flush(self) -> None:
        numbers, self._finished = self._finished, []
        if not numbers:
            return
        self._flushing += numbers
        try:
            async with self._database.acquire() as connection:
                await finish_ranges(self._database, connection, numbers, self._owner)
        except BaseException:
            self._finished += numbers
            raise
        finally:
            self._flushing = [each for each in self._flushing if each not in numbers]

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: the next owner of a range reads again what is not done of it."""

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        new: dict[int, list[int]] = {}
        ranges: dict[int, _Range] = {}
        for delivery in deliveries:
            taken: _Range = delivery.token
            ranges[taken.number] = taken
            new.setdefault(taken.number, []).append(delivery.position)
        done = [(number, [*ranges[number].done, *ids]) for number, ids in new.items()]
        if len(await note_done(self._database, connection, done, self._owner)) < len(done):
            raise FencedError(f"source {self._source.name}: another reader has taken over some of its messages")

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        await self.flush()
        await self._note_partial()
        await release_ranges(self._database, self._owner)

    async def lag(self) -> int | None:
        return await count_behind(self._database, self._group, self._source.topic)

    async def _renew(self) -> None:
        """Renew the lease of the ranges in flight, and store how far each of them is."""
        while True:
            await asyncio.sleep(self._source.lease / 4)
            try:
                await self._note_partial()
                before = {*self._ranges, *self._finished}
                ours = await renew_ranges(self._database, self._owner, before, self._source.lease)
            except Exception as error:
                if not is_transient(error):
                    raise
                continue
            if gone := self._ranges.keys() & (before - ours):
                log.warning("another reader has taken over ranges of the log", source=self._source.name, n=len(gone))
                for number in gone:
                    self._ranges.pop(number, None)
                self._on_lost(_of_ranges(gone))

    async def _note_partial(self) -> None:
        changed = [taken for taken in self._ranges.values() if len(taken.done) > taken.noted]
        if not changed:
            return
        seen = [(taken.number, list(taken.done)) for taken in changed]
        async with self._database.acquire() as connection:
            await note_done(self._database, connection, seen, self._owner)
        for taken, (_, done) in zip(changed, seen, strict=True):
            taken.noted = len(done)


def _of_ranges(numbers: set[int]) -> Callable[[Delivery], bool]:
    return lambda delivery: isinstance(delivery.token, _Range) and delivery.token.number in numbers
