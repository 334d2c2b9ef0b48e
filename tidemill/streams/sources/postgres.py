"""The PostgreSQL log as a source: the default, for it needs nothing else.

`PostgresSource("posts", group="spam")`: every group sees every message; readers of one group share them. Readers take
ranges; a range whose messages are all done is one row less, and that is the acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal
from uuid import uuid4

import msgspec
import structlog

from tidemill.store.database import Executor, is_passing
from tidemill.store.streams.event_log import (
    count_behind,
    finish_ranges,
    make_group,
    note_done,
    release_ranges,
    renew_ranges,
    take_range,
)
from tidemill.streams.definition.message import Delivery
from tidemill.streams.sources.base import FencedError, Pause, Place, Source, headers_of

log = structlog.get_logger("tidemill.streams")

MOST_IN_RANGE = 2000
LEASE = 15.0
SAFETY_POLL = (0.05, 1.0)


class PostgresSource(Source, frozen=True, tag="postgres"):
    """A topic of the PostgreSQL log."""

    topic: str
    group: str = ""
    """Who reads together; those of this stream and source, if not given."""
    begin: Literal["earliest", "latest"] = "earliest"
    """Where a new group begins."""
    lease: float = LEASE
    """How long a silent reader keeps what it has taken."""

    @property
    def default_name(self) -> str:
        return self.topic

    def tap(self, place: Place) -> PostgresTap:
        return PostgresTap(self, place)


class _Range(msgspec.Struct, eq=False):
    """A range that is being worked on."""

    number: int
    open: int
    done: list[int]
    noted: int = 0


class PostgresTap:
    """One reader of a topic."""

    transactional = True

    def __init__(self, source: PostgresSource, place: Place) -> None:
        self._source = source
        self._database = place.database
        self._owner = uuid4()
        self._lost = place.lost
        self._group = source.group or f"{place.stream}.{source.name}"
        self._pause = Pause(*SAFETY_POLL)
        self._ranges: dict[int, _Range] = {}
        self._in_row = 1.0  # how many messages lie in a row of the log, as far as we have seen
        self._finished: list[int] = []
        self._renewing: asyncio.Task[None] | None = None
        place.on_news(source.topic, self._pause.wake)

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
        )
        if found is None:
            await self._pause.wait()
            return []
        self._pause.reset()
        self._in_row = len(found.messages) / found.rows
        messages = found.messages
        if found.done:
            messages = [message for message in messages if message.position not in found.done]
        part = _Range(found.number, len(messages), list(found.done))
        if not messages:
            self._finished.append(part.number)
            return []
        self._ranges[part.number] = part
        return [
            Delivery(
                payload,
                position,
                0,
                at,
                None if key is None else key.encode(),
                None if headers is None else headers_of(msgspec.json.decode(headers)),
                token=part,
            )
            for position, at, key, headers, payload in messages
        ]

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            part: _Range = delivery.token
            part.done.append(delivery.position)
            part.open -= 1
            if not part.open:
                self._finished.append(part.number)
                self._ranges.pop(part.number, None)

    async def flush(self) -> None:
        numbers, self._finished = self._finished, []
        if not numbers:
            return
        try:
            async with self._database.acquire() as connection:
                await finish_ranges(self._database, connection, numbers, self._owner)
        except BaseException:
            self._finished += numbers
            raise

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to say: what is not done of a range is read again by whoever takes it over."""

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        new: dict[int, list[int]] = {}
        parts: dict[int, _Range] = {}
        for delivery in deliveries:
            part: _Range = delivery.token
            parts[part.number] = part
            new.setdefault(part.number, []).append(delivery.position)
        done = [(number, [*parts[number].done, *ids]) for number, ids in new.items()]
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
        """Keep the lease of what is worked on, and note how far it is."""
        while True:
            await asyncio.sleep(self._source.lease / 4)
            try:
                await self._note_partial()
                before = {*self._ranges, *self._finished}
                ours = await renew_ranges(self._database, self._owner, before, self._source.lease)
            except Exception as error:
                if not is_passing(error):
                    raise
                continue
            if gone := self._ranges.keys() & (before - ours):
                log.warning(
                    "ranges of the log were taken over by another reader", source=self._source.name, n=len(gone)
                )
                for number in gone:
                    self._ranges.pop(number, None)
                self._lost(_of_ranges(gone))

    async def _note_partial(self) -> None:
        news = [part for part in self._ranges.values() if len(part.done) > part.noted]
        if not news:
            return
        seen = [(part.number, list(part.done)) for part in news]
        async with self._database.acquire() as connection:
            await note_done(self._database, connection, seen, self._owner)
        for part, (_, done) in zip(news, seen, strict=True):
            part.noted = len(done)


def _of_ranges(numbers: set[int]) -> Callable[[Delivery], bool]:
    return lambda delivery: isinstance(delivery.token, _Range) and delivery.token.number in numbers
