"""Reads a topic of Kafka for a monitor, by assigned partitions: no group is joined, and nothing is committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.core.duration import parse_duration
from tidemill.sources.base import NEAR, RecordPage, SourceError
from tidemill.sources.kafka.client import delivery_of, new_client

if TYPE_CHECKING:
    from tidemill.sources.kafka.source import KafkaSource

T = TypeVar("T")

WAIT = 0.2
COUNT_EVERY = 30.0


class KafkaReader:
    """Reads assigned partitions.

    A partition has been read up to the moment of a call once everything that it held at that moment is stored. Until
    then it has been read up to the time of its newest stored message: while a backlog is read, no entity is taken for
    silent.
    """

    overlap = overlap_most = 0.0
    idle = NEAR

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._timeout = parse_duration(source.timeout, what="timeout")
        self._client: Any = None
        self._count, self._count_at = 0, 0.0
        self._at: dict[int, int] = {}
        """Where the client is in each partition that it reads."""

    async def partitions(self) -> int:
        """How many partitions the topic has; asked again from time to time, because a topic may get more."""
        if time.monotonic() >= self._count_at:
            self._count = await self._with_client(self._count_partitions)
            self._count_at = time.monotonic() + COUNT_EVERY
        return self._count

    async def read(self, positions: Mapping[int, int | None], now: float) -> AsyncIterator[RecordPage]:
        """Everything that these partitions hold now, from these positions on."""
        if not positions:
            return
        ends = await self._with_client(lambda: self._go_to(positions))
        gave_last, give_up = False, time.monotonic() + self._timeout
        while behind := self._behind(ends):
            taken = await self._with_client(self._take)
            gave_last = bool(taken)
            if taken:
                yield self._as_page(taken, self._behind(ends), now)
                give_up = time.monotonic() + self._timeout
            elif time.monotonic() > give_up:
                raise SourceError(f"{self._where} does not give what it holds in partitions {sorted(behind)}")
        if not gave_last:
            yield self._as_page([], behind, now)

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            self._at, self._count_at = {}, 0.0
            await asyncio.to_thread(client.close)

    def _behind(self, ends: Mapping[int, int]) -> set[int]:
        return {part for part, end in ends.items() if self._at[part] < end}

    @property
    def _where(self) -> str:
        return f"topic {self._source.topic} at {self._source.bootstrap}"

    def _as_page(self, messages: Sequence[Any], behind: set[int], now: float) -> RecordPage:
        records = [delivery_of(message) for message in messages]
        read_until: dict[int, float] = {part: now for part in self._at if part not in behind}
        for record in records:
            if record.at and record.part in behind:
                read_until[record.part] = min(now, record.at)
        return RecordPage(records, by_place=True, positions=dict(self._at), read_until=read_until)

    # -- with the client, which blocks, in a thread -------------------------------------------------

    async def _with_client(self, work: Callable[[], T]) -> T:
        from confluent_kafka import KafkaException

        settings = {
            "group.id": "tidemill-monitor",  # The setting is required, although no group is joined.
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # Where the next position was deleted: everything that is left.
            "queued.max.messages.kbytes": 16_384,
        }
        try:
            if self._client is None:
                self._client = new_client(self._source, settings)
            return await asyncio.to_thread(work)
        except KafkaException as error:
            await self.close()
            raise SourceError(f"{self._where} does not answer: {error.args[0]}") from error

    def _count_partitions(self) -> int:
        topic = self._source.topic
        found = self._client.list_topics(topic, timeout=self._timeout).topics.get(topic)
        if found is None or found.error is not None or not found.partitions:
            raise SourceError(f"{self._where} does not exist{'' if found is None else f': {found.error}'}")
        return len(found.partitions)

    def _go_to(self, positions: Mapping[int, int | None]) -> dict[int, int]:
        """Read from these positions on, unless the client does so already; returns where each partition ends now."""
        from confluent_kafka import TopicPartition

        topic = self._source.topic
        bounds = {
            part: self._client.get_watermark_offsets(TopicPartition(topic, part), timeout=self._timeout)
            for part in positions
        }
        if self._at != positions:
            self._at = {part: self._start(position, *bounds[part]) for part, position in positions.items()}
            self._client.assign([TopicPartition(topic, part, at) for part, at in self._at.items()])
        return {part: end for part, (_, end) in bounds.items()}

    def _start(self, position: int | None, low: int, high: int) -> int:
        if position is None:
            return low if self._source.begin == "earliest" else high
        return position if position <= high else low  # A topic that was deleted and created again.

    def _take(self) -> list[Any]:
        """The next messages; moves the positions of their partitions."""
        from confluent_kafka import KafkaError, KafkaException

        first = self._client.poll(WAIT)
        if first is None:
            return []
        taken: list[Any] = []
        for message in [first, *self._client.consume(self._source.page - 1, 0)]:
            error = message.error()
            if error is None:
                self._at[message.partition()] = message.offset() + 1
                taken.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Skips what is never delivered: transaction markers, and what was compacted away.
                self._at[message.partition()] = max(self._at[message.partition()], message.offset())
            else:
                raise KafkaException(error)
        return taken
