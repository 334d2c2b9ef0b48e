"""Kafka as a source: consumer groups, rebalance, pause and resume, and commits that never pass an unfinished message.

The client lives in a thread of its own, which polls all the time, so that the group never takes us for dead however
full we are; when we are full it pauses its partitions. Positions are committed when everything before them is done.

`exact=True` stores positions in PostgreSQL, in the transaction that stores what messages hand over; commits to the
broker are then only a hint. Whoever is assigned a partition takes its stored position over.

A group may also move single partitions instead of all at once: `config={"partition.assignment.strategy":
"cooperative-sticky"}`, or, where the brokers decide, `config={"group.protocol": "consumer"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import structlog

from tidemill.core.errors import ConfigError
from tidemill.store.database import Executor
from tidemill.streams.definition.message import Delivery, size_of
from tidemill.streams.reducer.offsets import Offsets
from tidemill.streams.sources.base import Place, Source, SourceError
from tidemill.streams.sources.cursor import Cursors

log = structlog.get_logger("tidemill.streams")

HIGH, LOW = 4000, 2000  # messages in our hands at which the client is not asked for more, and is again
HIGH_BYTES, LOW_BYTES = 32 * 2**20, 16 * 2**20  # the same for what they weigh
AT_ONCE = 1000
POLL = 0.1
PATIENCE = 2.0  # full for longer than this, partitions are paused: what was fetched ahead is dropped then
COMMIT_EVERY = 0.5


class KafkaSource(Source, frozen=True, tag="kafka"):
    """A topic of a Kafka cluster."""

    topic: str
    bootstrap: str = "localhost:9092"
    group: str = ""
    """Who reads together; those of this stream and source, if not given."""
    begin: Literal["earliest", "latest"] = "earliest"
    """Where a new group begins."""
    exact: bool = False
    """Store positions in PostgreSQL together with what messages hand over."""
    config: Mapping[str, Any] = {}
    """More settings of librdkafka, such as those of SASL."""

    @property
    def default_name(self) -> str:
        return self.topic

    def tap(self, place: Place) -> KafkaTap:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise ConfigError(f"source {self.name}: install tidemill[kafka] to read from Kafka") from None
        return KafkaTap(self, place)


class KafkaTap:
    """One member of a consumer group."""

    def __init__(self, source: KafkaSource, place: Place) -> None:
        self.transactional = source.exact
        self._source = source
        self._place = place
        self._cursors = Cursors(source.name, place) if source.exact else None
        self._offsets: dict[int, Offsets] = {}
        self._committed: dict[int, int] = {}
        self._buffer: deque[Delivery] = deque()
        self._size = 0  # of what is in the buffer
        self._arrival = asyncio.Event()
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._failure: BaseException | None = None
        self._has_news = False
        self._behind: int | None = None
        self._incremental = False
        self._consumer: Any = None
        self._thread: threading.Thread | None = None

    # -- in the event loop ------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        """A new client, in a thread of its own."""
        from confluent_kafka import Consumer, KafkaException

        told = self._source.config
        by_broker = told.get("group.protocol") == "consumer"
        self._incremental = by_broker or "cooperative" in str(told.get("partition.assignment.strategy"))
        settings = {
            "bootstrap.servers": self._source.bootstrap,
            "group.id": self._source.group or f"{self._place.stream}.{self._source.name}",
            "auto.offset.reset": self._source.begin,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            **({} if by_broker else {"partition.assignment.strategy": "range,roundrobin"}),
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 5,  # it would wait a second after each time that enough was fetched ahead
            "logger": _Silent(),
            **told,
        }
        try:
            self._consumer = Consumer(settings)
        except KafkaException as error:
            raise SourceError(f"source {self._source.name}: {error}") from error
        self._thread = threading.Thread(target=self._run, name=f"kafka {self._source.name}", daemon=True)
        self._thread.start()

    async def poll(self, most: int) -> list[Delivery]:
        if not self._buffer:
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._arrival.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._forget(set(self._offsets), list(self._offsets.values()))
            self._offsets.clear()
            self._committed.clear()
            self._begin()
            raise SourceError(f"source {self._source.name} begins anew: {failure}") from failure
        taken = [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
        self._size -= size_of(taken)
        if self._is_low():
            self._room.set()
        for delivery in taken:
            delivery.token.take((delivery.position,))
        if self._cursors is None:
            return taken
        fresh = self._cursors.take(taken)
        for delivery in taken if len(fresh) < len(taken) else ():
            if delivery not in fresh:
                delivery.token.finish(delivery.position)  # Its work is stored; only the broker does not know.
        return fresh

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            delivery.token.finish(delivery.position)
        if self._cursors is not None:
            self._cursors.ack(deliveries)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to say: what is not committed is delivered again."""

    async def flush(self) -> None:
        if self._cursors is not None:
            await self._cursors.flush()
        self._has_news = True  # The client's thread commits, within half a second.

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        if self._cursors is not None:
            await self._cursors.settle(connection, deliveries)

    async def stop(self) -> None:
        if self._cursors is not None:
            await self._cursors.flush()
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 10.0)

    async def lag(self) -> int | None:
        return self._behind

    def _arrived(self, deliveries: list[Delivery]) -> None:
        self._buffer.extend(deliveries)
        self._size += size_of(deliveries)
        self._arrival.set()

    def _is_low(self) -> bool:
        return len(self._buffer) < LOW and self._size < LOW_BYTES

    def _is_full(self) -> bool:
        return len(self._buffer) > HIGH or self._size > HIGH_BYTES

    def _forget(self, parts: set[int], trackers: list[Offsets]) -> None:
        """Partitions went to another member: what waits here of them is theirs now."""
        gone = {id(tracker) for tracker in trackers}
        if self._cursors is not None:
            for part in parts:
                self._cursors.disown(part)

        def is_lost(delivery: Delivery) -> bool:
            return delivery.part in parts and id(delivery.token) in gone

        kept = [delivery for delivery in self._buffer if not is_lost(delivery)]
        self._buffer.clear()
        self._buffer.extend(kept)
        self._size = size_of(kept)
        self._place.lost(lambda delivery: delivery.token is not None and is_lost(delivery))

    # -- in the client's thread -------------------------------------------------------------------

    def _run(self) -> None:
        consumer, failure = self._consumer, None
        try:
            consumer.subscribe([self._source.topic], on_assign=self._assigned, on_revoke=self._revoked)
            self._consume()
            self._commit(asynchronous=False)
        except Exception as error:  # noqa: BLE001 - it is told to whoever polls
            failure = error
        finally:
            consumer.close()
        if failure is not None:  # only now, for whoever hears of it begins anew
            self._failure = failure
            self._tell(self._arrival.set)

    def _consume(self) -> None:
        """The only one to touch the client, which is not safe for two."""
        consumer, paused, due, full_since = self._consumer, False, 0.0, time.monotonic()
        while not self._stopping.is_set():
            if (now := time.monotonic()) >= due:
                due = now + COMMIT_EVERY
                if self._has_news:
                    self._has_news = False
                    self._commit(asynchronous=True)
                self._behind = self._count_behind()
            if self._is_low():
                full_since = now
                if paused:
                    paused = False
                    consumer.resume(consumer.assignment())
            elif self._is_full() and not paused:
                if now - full_since < PATIENCE:
                    self._room.wait(POLL)  # What the client has fetched meanwhile stays with it.
                    self._room.clear()
                    continue
                paused = True  # For long: then it is polled without getting messages, and stays in its group.
                consumer.pause(consumer.assignment())
            first = consumer.poll(POLL)
            if first is None:
                continue
            messages = [first, *consumer.consume(AT_ONCE, 0)]
            deliveries = [delivery for message in messages if (delivery := self._delivery(message)) is not None]
            if deliveries:
                self._tell(self._arrived, deliveries)
            if paused:  # A rebalance may have given us partitions that are not paused.
                consumer.pause(consumer.assignment())

    def _delivery(self, message: Any) -> Delivery | None:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise SourceError(error.str())
            log.debug("the broker says", source=self._source.name, error=error.str())
            return None
        part = message.partition()
        tracker = self._offsets.get(part)
        if tracker is None:
            tracker = self._offsets[part] = Offsets()
        kind, milliseconds = message.timestamp()
        headers = message.headers()
        return Delivery(
            message.value() or b"",
            message.offset(),
            part,
            milliseconds / 1000 if kind else 0.0,
            message.key(),
            None if not headers else tuple((name, value or b"") for name, value in headers),
            token=tracker,
        )

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        log.info("partitions assigned", source=self._source.name, partitions=[each.partition for each in partitions])
        for each in partitions:
            self._offsets[each.partition] = Offsets()
            self._committed.pop(each.partition, None)
            if self._cursors is not None:
                own = self._cursors.own(each.partition, f"{self._source.topic}/{each.partition}")
                cursor = asyncio.run_coroutine_threadsafe(own, self._loop).result()
                if cursor.position is not None:
                    each.offset = cursor.position + 1
        if self._cursors is not None:
            (consumer.incremental_assign if self._incremental else consumer.assign)(partitions)

    def _revoked(self, consumer: Any, partitions: Sequence[Any]) -> None:
        """Say how far we are while we still may."""
        parts = {each.partition for each in partitions}
        log.info("partitions revoked", source=self._source.name, partitions=sorted(parts))
        self._commit(asynchronous=False, only=parts)
        trackers = [tracker for part in parts if (tracker := self._offsets.pop(part, None)) is not None]
        self._tell(self._forget, parts, trackers)

    def _commit(self, *, asynchronous: bool, only: set[int] | None = None) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        news: list[Any] = []
        for part, tracker in list(self._offsets.items()):
            position = tracker.committable
            if position is None or (only is not None and part not in only) or self._committed.get(part) == position:
                continue
            self._committed[part] = position
            news.append(TopicPartition(self._source.topic, part, position + 1))
        if not news:
            return
        try:
            self._consumer.commit(offsets=news, asynchronous=asynchronous)
        except (KafkaException, RuntimeError) as error:
            for each in news:
                self._committed.pop(each.partition, None)
            log.debug("a commit was refused", source=self._source.name, error=str(error))

    def _count_behind(self) -> int | None:
        behind = 0
        try:
            for each in self._consumer.position(self._consumer.assignment()):
                low, high = self._consumer.get_watermark_offsets(each, cached=True)
                behind += max(0, high - max(low, each.offset)) if high >= 0 else 0
        except Exception as error:  # noqa: BLE001 - the client refuses in many ways while it has no connection
            log.debug("the lag is not known", source=self._source.name, error=str(error))
            return None
        return behind + len(self._buffer)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop may have ended before us.
            self._loop.call_soon_threadsafe(callback, *arguments)


class _Silent:
    """The client's own log lines are no news to our users; what matters comes as an error of a message."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        log.debug("kafka", said=message % arguments if arguments else message)
