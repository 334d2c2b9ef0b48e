"""Events in a topic of Kafka, whose partitions are shared by the processes that follow a monitor.

KafkaSource("readings", bootstrap="kafka:9092", id="id", time="at")

A partition is read by whoever owns the share of its number, under the same lease as the entities of that share. Its
position is stored with its events, in one transaction that only the owner can commit: there is no consumer group, and
nothing is committed to the broker. An event may be about an entity that another process follows: it is in the log, and
that process folds it.

A partition is heard up to the moment of a poll once all that it held at that moment is stored. Until then it is heard
up to the time of its newest message that is: while a backlog is read, nobody is taken for silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.monitors.sources.base import Incoming, Page, SourceError, read_message

T = TypeVar("T")

WAIT = 0.2
COUNT_EVERY = 30.0

_silent = logging.getLogger("tidemill.monitors.kafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class KafkaSource:
    """Reads a topic, each process its own partitions.

    id, time    the fields of an event with its unique id and its time; else its place and its time at the broker count
    begin       where a partition begins that was never read: "earliest" or "latest"
    timeout     how long the broker may take to answer
    config      more settings of librdkafka, such as those of SASL
    """

    overlap = overlap_most = 0.0

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str = "localhost:9092",
        id: str = "id",
        time: str | Sequence[str] = "at",
        page: int = 500,
        begin: Literal["earliest", "latest"] = "earliest",
        timeout: Duration = "10s",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if page < 1:
            raise ConfigError(f"a page of {page} events brings nothing")
        if begin not in ("earliest", "latest"):
            raise ConfigError(f"begin={begin!r} is neither earliest nor latest")
        self._topic, self._bootstrap = topic, bootstrap
        self._id, self._time = id, (time,) if isinstance(time, str) else tuple(time)
        self._page, self._begin = page, begin
        self._timeout = parse_duration(timeout, what="timeout")
        self._config = dict(config or {})
        self._client: Any = None
        self._parts, self._count_at = 0, 0.0
        self._at: dict[int, int] = {}
        """Where the client is in each partition that it reads."""

    async def parts(self) -> int:
        """How many partitions the topic has; asked again from time to time, for it may be given more."""
        if time.monotonic() >= self._count_at:
            self._parts = await self._with_client(self._count)
            self._count_at = time.monotonic() + COUNT_EVERY
        return self._parts

    async def read(self, positions: Mapping[int, int | None], now: float) -> AsyncIterator[Page]:
        """All that these partitions hold now, from these positions on."""
        if not positions:
            return
        ends = await self._with_client(lambda: self._go_to(positions))
        told, patience = False, time.monotonic() + self._timeout
        while behind := self._behind(ends):
            came = await self._with_client(self._take)
            told = bool(came)
            if came:
                yield self._as_page(came, self._behind(ends), now)
                patience = time.monotonic() + self._timeout
            elif time.monotonic() > patience:
                raise SourceError(f"{self._where} does not give what it holds in partitions {sorted(behind)}")
        if not told:
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
        return f"topic {self._topic} at {self._bootstrap}"

    def _as_page(self, came: Sequence[Any], behind: set[int], now: float) -> Page:
        events: list[Incoming] = []
        unreadable: list[str] = []
        heard: dict[int, float] = {part: now for part in self._at if part not in behind}
        for message in came:
            part, payload = message.partition(), message.value() or b""
            known, milliseconds = message.timestamp()
            if known and part in behind:
                heard[part] = min(now, milliseconds / 1000)
            place = f"{self._topic}/{part}:{message.offset()}"
            try:
                at = milliseconds / 1000 if known else now
                events.append(read_message(payload, id=self._id, time=self._time, place=place, at=at))
            except ValueError as error:
                unreadable.append(f"{error}: {payload[:120].decode(errors='replace')}")
        return Page(events, unreadable=tuple(unreadable), positions=dict(self._at), heard=heard)

    # -- with the client, which blocks, in a thread -------------------------------------------------

    async def _with_client(self, work: Callable[[], T]) -> T:
        try:
            from confluent_kafka import KafkaException
        except ImportError:
            raise SourceError("install tidemill[kafka] to read from Kafka") from None
        try:
            if self._client is None:
                self._client = self._new_client()
            return await asyncio.to_thread(work)
        except KafkaException as error:
            await self.close()
            raise SourceError(f"{self._where} does not answer: {error.args[0]}") from error

    def _new_client(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "tidemill-monitor",  # It has to be said, but no group is joined.
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # Where what comes next was deleted: all that is left.
                "queued.max.messages.kbytes": 16_384,
                "logger": _silent,
                **self._config,
            }
        )

    def _count(self) -> int:
        found = self._client.list_topics(self._topic, timeout=self._timeout).topics.get(self._topic)
        if found is None or found.error is not None or not found.partitions:
            raise SourceError(f"{self._where} is not there{'' if found is None else f': {found.error}'}")
        return len(found.partitions)

    def _go_to(self, positions: Mapping[int, int | None]) -> dict[int, int]:
        """Read from these positions on, if it is not what is done already; returns where each partition ends now."""
        from confluent_kafka import TopicPartition

        bounds = {
            part: self._client.get_watermark_offsets(TopicPartition(self._topic, part), timeout=self._timeout)
            for part in positions
        }
        if self._at != positions:
            self._at = {part: self._start(position, *bounds[part]) for part, position in positions.items()}
            self._client.assign([TopicPartition(self._topic, part, at) for part, at in self._at.items()])
        return {part: end for part, (_, end) in bounds.items()}

    def _start(self, position: int | None, low: int, high: int) -> int:
        if position is None:
            return low if self._begin == "earliest" else high
        return position if position <= high else low  # A topic that was made anew.

    def _take(self) -> list[Any]:
        """The next messages; their partitions have been read up to there."""
        from confluent_kafka import KafkaError, KafkaException

        first = self._client.poll(WAIT)
        if first is None:
            return []
        taken: list[Any] = []
        for message in [first, *self._client.consume(self._page - 1, 0)]:
            error = message.error()
            if error is None:
                self._at[message.partition()] = message.offset() + 1
                taken.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Past what is never given: marks of transactions, and what was compacted away.
                self._at[message.partition()] = max(self._at[message.partition()], message.offset())
            else:
                raise KafkaException(error)
        return taken
