"""A topic of Kafka, read by a consumer group for a stream, and by assigned partitions for a monitor.

In a stream the client lives in a thread of its own, which polls all the time, so that the group does not take this
member for dead however full it is; when it is full it pauses its partitions. A position is committed when everything
before it is done. `exact=True` stores positions in PostgreSQL, in the transaction that stores the results of messages;
commits to the broker are then only a hint. The member that is assigned a partition takes over its stored position.
`ordered=True` does so, too: what was done beyond a position is known, and does not run again after newer messages. A
member that loses a partition first finishes its messages in flight.

In a monitor the processes share the partitions: each reads those that belong to its share of the entities. A position
is stored with the events, in one transaction that only the owner of the share can commit. No group is joined, and
nothing is committed to the broker.

A group may also move single partitions instead of all at once: `config={"partition.assignment.strategy":
"cooperative-sticky"}`, or, where the brokers decide, `config={"group.protocol": "consumer"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import structlog

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.engine.event_wait import wait_for_event
from tidemill.sources.base import Begin, Source, SourceContext, SourceError
from tidemill.sources.delivery import Delivery, size_of
from tidemill.sources.kafka.client import delivery_of, new_client
from tidemill.sources.kafka.reader import KafkaReader
from tidemill.sources.positions.offsets import Offsets, PositionState
from tidemill.sources.positions.stored_positions import StoredPositions
from tidemill.store.database import Executor

log = structlog.get_logger("tidemill.sources")

_TRACKER = attrgetter("token")

HIGH, LOW = 4000, 2000  # buffered messages at which the client is no longer asked for more, and is asked again
HIGH_BYTES, LOW_BYTES = 32 * 2**20, 16 * 2**20  # the same for their size
AT_ONCE = 1000
POLL = 0.1
PROBLEM_LASTS = 30.0  # seconds after the last error that the client has reported
PATIENCE = (
    2.0  # when the buffer is full for longer than this, partitions are paused: the client drops what it has fetched
)
COMMIT_EVERY = 0.5
FINISH_WITHIN = 8.0  # seconds for messages in flight when a partition moves; the group waits for this member meanwhile


class KafkaSource(Source, frozen=True, tag="kafka"):
    """A topic of a Kafka cluster."""

    topic: str
    bootstrap: str = "localhost:9092"
    group: str = ""
    """The consumer group of a stream; by default one for this application, stream and source."""
    begin: Begin = "earliest"
    """Where a new group begins, and a partition that a monitor has never read."""
    exact: bool = False
    """Store positions in PostgreSQL together with the results of messages; `ordered=True` always does."""
    timeout: Duration = "10s"
    """How long a monitor waits for an answer of the broker."""
    config: Mapping[str, Any] = {}
    """More settings of librdkafka, such as those of SASL."""

    def __post_init__(self) -> None:
        super().__post_init__()
        timeout = parse_duration(self.timeout, what=f"source {self.name}, timeout")
        msgspec.structs.force_setattr(self, "timeout", timeout)

    @property
    def default_name(self) -> str:
        return self.topic

    def consumer(self, context: SourceContext) -> KafkaConsumer:
        self._require_client()
        return KafkaConsumer(self, context)

    def reader(self, context: SourceContext) -> KafkaReader:
        self._require_client()
        return KafkaReader(self)

    def _require_client(self) -> None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise ConfigError(f"source {self.name}: install tidemill[kafka] to read from Kafka") from None


class KafkaConsumer:
    """One member of a consumer group."""

    def __init__(self, source: KafkaSource, context: SourceContext) -> None:
        self.transactional = source.exact or source.ordered
        self._source = source
        self._context = context
        self._positions = StoredPositions(source.name, context) if self.transactional else None
        self._offsets: dict[int, Offsets] = {}
        self._committed: dict[int, int] = {}
        self._buffer: deque[Delivery] = deque()
        self._size = 0  # bytes in the buffer
        self._arrival = asyncio.Event()
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._failure: BaseException | None = None
        self._has_acks = False
        self._behind: int | None = None
        self._problem: str | None = None
        self._problem_at = 0.0
        self._incremental = False
        self._client: Any = None
        self._thread: threading.Thread | None = None

    # -- in the event loop ------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        """Start a new client in a thread of its own."""
        from confluent_kafka import KafkaException

        config = self._source.config
        by_broker = config.get("group.protocol") == "consumer"
        self._incremental = by_broker or "cooperative" in str(config.get("partition.assignment.strategy"))
        settings = {
            "group.id": self._source.group or self._context.group(self._source.name),
            "auto.offset.reset": self._source.begin,
            "enable.auto.offset.store": False,
            **({} if by_broker else {"partition.assignment.strategy": "range,roundrobin"}),
            "fetch.wait.max.ms": 50,
            "error_cb": self._report,
            "fetch.queue.backoff.ms": 5,  # The default waits a second each time that enough was fetched ahead.
        }
        try:
            self._client = new_client(self._source, settings)
        except KafkaException as error:
            raise SourceError(f"source {self._source.name}: {error}") from error
        self._thread = threading.Thread(target=self._run, name=f"kafka {self._source.name}", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """What keeps the client from its brokers; it goes on trying by itself."""
        return self._problem if time.monotonic() - self._problem_at < PROBLEM_LASTS else None

    def _report(self, error: Any) -> None:
        self._problem, self._problem_at = str(error), time.monotonic()

    async def poll(self, most: int) -> list[Delivery]:
        if not self._buffer:
            self._arrival.clear()
            await wait_for_event(self._arrival, 1.0)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._forget(set(self._offsets), list(self._offsets.values()))
            self._offsets.clear()
            self._committed.clear()
            self._begin()
            raise SourceError(f"source {self._source.name} starts a new client: {failure}") from failure
        taken = [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
        self._size -= size_of(taken)
        if self._is_low():
            self._room.set()
        for tracker, some in groupby(taken, key=_TRACKER):
            tracker.take([each.position for each in some])
        if self._positions is None:
            return taken
        fresh = self._positions.take(taken)
        for delivery in taken if len(fresh) < len(taken) else ():
            if delivery not in fresh:
                delivery.token.finish(delivery.position)  # The result is stored; only the offset was not committed.
        return fresh

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for tracker, some in groupby(deliveries, key=_TRACKER):
            tracker.finish_all([each.position for each in some])
        if self._positions is not None:
            self._positions.ack(deliveries)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: messages whose positions are not committed are delivered again."""

    async def flush(self) -> None:
        if self._positions is not None:
            await self._positions.flush()
        self._has_acks = True  # The client's thread commits within half a second.

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        if self._positions is not None:
            await self._positions.commit(connection, deliveries)

    async def stop(self) -> None:
        if self._positions is not None:
            await self._positions.flush()
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 10.0)

    async def lag(self) -> int | None:
        return self._behind

    async def state_of(self, part: int, position: int) -> PositionState | None:
        offsets = self._offsets.get(part)
        return None if offsets is None else offsets.state_of(position)

    def _arrived(self, deliveries: list[Delivery]) -> None:
        self._problem = None
        self._buffer.extend(deliveries)
        self._size += size_of(deliveries)
        self._arrival.set()

    def _is_low(self) -> bool:
        return len(self._buffer) < LOW and self._size < LOW_BYTES

    def _is_full(self) -> bool:
        return len(self._buffer) > HIGH or self._size > HIGH_BYTES

    def _forget(self, parts: set[int], trackers: list[Offsets]) -> None:
        """Drop what belongs to another member now."""
        self._drop_waiting(parts, trackers)
        if self._positions is not None:
            for part in parts:
                self._positions.disown(part)

    def _drop_waiting(self, parts: set[int], trackers: list[Offsets]) -> None:
        """Drop messages that were read ahead of partitions that this member loses."""
        is_lost = _belongs_to(parts, trackers)
        kept = [delivery for delivery in self._buffer if not is_lost(delivery)]
        self._buffer.clear()
        self._buffer.extend(kept)
        self._size = size_of(kept)
        self._context.on_lost(is_lost)

    # -- in the client's thread -------------------------------------------------------------------

    def _run(self) -> None:
        client, failure = self._client, None
        try:
            client.subscribe([self._source.topic], on_assign=self._assigned, on_revoke=self._revoked)
            self._consume()
            self._commit(asynchronous=False)
        except Exception as error:  # noqa: BLE001 - the next poll raises it
            failure = error
        finally:
            client.close()
        if failure is not None:  # Set after the client is closed, because the next poll starts a new one.
            self._failure = failure
            self._call(self._arrival.set)

    def _consume(self) -> None:
        """Use the client; only this thread may, because the client is not safe for two."""
        client, paused, due, full_since = self._client, False, 0.0, time.monotonic()
        while not self._stopping.is_set():
            if (now := time.monotonic()) >= due:
                due = now + COMMIT_EVERY
                if self._has_acks:
                    self._has_acks = False
                    self._commit(asynchronous=True)
                self._behind = self._count_behind()
            if self._is_low():
                full_since = now
                if paused:
                    paused = False
                    client.resume(client.assignment())
            elif self._is_full() and not paused:
                if now - full_since < PATIENCE:
                    self._room.wait(POLL)  # Until there is room, fetched messages stay in the client.
                    self._room.clear()
                    continue
                paused = True  # Polling a paused client returns no messages and keeps it in its group.
                client.pause(client.assignment())
            first = client.poll(POLL)
            if first is None:
                continue
            messages = [first, *client.consume(AT_ONCE, 0)]
            deliveries = [delivery for message in messages if (delivery := self._delivery(message)) is not None]
            if deliveries:
                self._call(self._arrived, deliveries)
            if paused:  # A rebalance may have assigned partitions that are not paused.
                client.pause(client.assignment())

    def _delivery(self, message: Any) -> Delivery | None:
        error = message.error()
        if error is not None:
            if error.fatal():
                raise SourceError(error.str())
            log.debug("the broker reports an error", source=self._source.name, error=error.str())
            return None
        tracker = self._offsets.get(message.partition())
        if tracker is None:
            tracker = self._offsets[message.partition()] = Offsets()
        return delivery_of(message, tracker)

    def _assigned(self, client: Any, partitions: Sequence[Any]) -> None:
        log.info("partitions assigned", source=self._source.name, partitions=[each.partition for each in partitions])
        for each in partitions:
            self._offsets[each.partition] = Offsets()
            self._committed.pop(each.partition, None)
            if self._positions is not None:
                own = self._positions.own(each.partition, f"{self._source.topic}/{each.partition}")
                cursor = asyncio.run_coroutine_threadsafe(own, self._loop).result()
                if cursor.position is not None:
                    each.offset = cursor.position + 1
        if self._positions is not None:
            (client.incremental_assign if self._incremental else client.assign)(partitions)

    def _revoked(self, client: Any, partitions: Sequence[Any]) -> None:
        """Commit positions while this member still may."""
        parts = {each.partition for each in partitions}
        log.info("partitions revoked", source=self._source.name, partitions=sorted(parts))
        trackers = [tracker for part in parts if (tracker := self._offsets.get(part)) is not None]
        if self._positions is not None and not self._stopping.is_set():
            self._call(self._drop_waiting, parts, trackers)
            self._wait_for(self._store_moving(self._positions, _belongs_to(parts, trackers)))
        self._commit(asynchronous=False, only=parts)
        for part in parts:
            self._offsets.pop(part, None)
        self._call(self._forget, parts, trackers)

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait in the client's thread for something that the event loop does."""
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * FINISH_WITHIN)
        except RuntimeError:
            work.close()  # The event loop has ended before this thread.
        except Exception as error:  # noqa: BLE001 - the partition moves in any case, and its next member repeats more
            log.warning("a partition moves before its messages are stored", source=self._source.name, error=str(error))

    async def _store_moving(self, positions: StoredPositions, is_lost: Callable[[Delivery], bool]) -> None:
        """Store the position of partitions that move; in order, only when their messages in flight are done."""
        if self._source.ordered:
            async with asyncio.timeout(FINISH_WITHIN):
                await self._context.wait_finished(is_lost)
        await positions.flush()

    def _commit(self, *, asynchronous: bool, only: set[int] | None = None) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        moved: list[Any] = []
        for part, tracker in list(self._offsets.items()):
            position = tracker.committable
            if position is None or (only is not None and part not in only) or self._committed.get(part) == position:
                continue
            self._committed[part] = position
            moved.append(TopicPartition(self._source.topic, part, position + 1))
        if not moved:
            return
        try:
            self._client.commit(offsets=moved, asynchronous=asynchronous)
        except (KafkaException, RuntimeError) as error:
            for each in moved:
                self._committed.pop(each.partition, None)
            log.debug("a commit was refused", source=self._source.name, error=str(error))

    def _count_behind(self) -> int | None:
        behind = 0
        try:
            for each in self._client.position(self._client.assignment()):
                low, high = self._client.get_watermark_offsets(each, cached=True)
                behind += max(0, high - max(low, each.offset)) if high >= 0 else 0
        except Exception as error:  # noqa: BLE001 - the client fails in many ways while it has no connection
            log.debug("the lag is not known", source=self._source.name, error=str(error))
            return None
        return behind + len(self._buffer)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The event loop may have ended before this thread.
            self._loop.call_soon_threadsafe(callback, *arguments)


def _belongs_to(parts: set[int], trackers: list[Offsets]) -> Callable[[Delivery], bool]:
    """Whether a delivery is of these partitions, as this member has read them."""
    gone = {id(tracker) for tracker in trackers}
    return lambda delivery: delivery.token is not None and delivery.part in parts and id(delivery.token) in gone
