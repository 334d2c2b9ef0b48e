"""A subject of NATS JetStream in order: messages are read by their number in the stream, each once.

A broker that delivers again does so behind newer messages. Here nothing is ever delivered again: the position is
stored in PostgreSQL with the results of messages, and the process that reads next begins after it. One process at a
time reads; the others wait until its lease ends. The key of a message is its subject.

The consumer at the server lives as long as its reader. When messages were lost with a connection, which their numbers
show, a new one continues after the last message that arrived. A work queue must have its messages acknowledged, and
deletes them then: its consumer is made again as well, and gives what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog

from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import Begin, FencedError, SourceContext, SourceError
from tidemill.sources.delivery import Delivery
from tidemill.sources.nats.client import NatsConnection, delivery_of
from tidemill.sources.positions.offsets import PositionState
from tidemill.sources.positions.reader_lease import ReaderLease
from tidemill.sources.positions.stored_positions import StoredPositions
from tidemill.store.database import Executor

if TYPE_CHECKING:
    from tidemill.sources.nats.source import NatsSource

log = structlog.get_logger("tidemill.sources")

WAIT = 1.0
AT_ONCE = 500
UNUSED_FOR = 600.0  # seconds after which the server deletes a consumer whose reader has died


class OrderedNatsConsumer:
    """The one reader of a subject, or one that waits to be it."""

    transactional = True

    def __init__(
        self,
        source: NatsSource,
        context: SourceContext,
        connection: NatsConnection,
        *,
        durable: str,
        begin: Begin,
        lease: float,
    ) -> None:
        self._source, self._context, self._connection = source, context, connection
        self._durable, self._begin = durable, begin
        self._positions = StoredPositions(source.name, context)
        self._lease = ReaderLease(source.name, source.subject, context, lease, self._lost)
        self._stream, self._created = "", ""
        self._is_work_queue = False
        self._subscription: Any = None
        self._last = 0
        """The number of the last message that arrived, in the stream."""
        self._arrived = 0
        """And the count of those that this consumer at the server has delivered."""
        self._fetching: asyncio.Task[list[Any]] | None = None
        self._to_ack: dict[int, Any] = {}
        self._acked: list[Any] = []

    async def start(self) -> None:
        from nats.errors import Error
        from nats.js.api import RetentionPolicy

        await self._connection.connect()
        try:
            jetstream = self._connection.jetstream
            self._stream = self._source.stream or await jetstream.find_stream_name_by_subject(self._source.subject)
            retention = (await jetstream.stream_info(self._stream)).config.retention
        except (Error, OSError) as error:
            await self._connection.close()
            raise self._connection.error(error) from error
        if retention == RetentionPolicy.INTEREST:
            await self._connection.close()
            raise SourceError(
                f"source {self._source.name}: stream {self._stream} deletes messages that no consumer waits for, so "
                "they cannot be read in order: give it the retention limits or workqueue, or leave out ordered=True"
            )
        self._is_work_queue = retention == RetentionPolicy.WORK_QUEUE
        self._lease.start()

    async def poll(self, most: int) -> list[Delivery]:
        from nats.errors import Error

        try:
            if self._lease.held is None and not await self._take_over():
                await self._lease.wait()
                return []
            if self._subscription is None:
                if await self._has_left_replaced_stream():
                    return []
                await self._subscribe()
            held = self._lease.held
            messages = await self._fetch(min(most, AT_ONCE))
            if self._lease.held is not held:
                return []  # Another process has taken over the lease.
            deliveries = self._in_order(messages)
            if len(deliveries) < len(messages) or (not messages and await self._has_lost_some()):
                await self._unsubscribe()
        except Error as error:
            await self._unsubscribe()
            raise self._connection.error(error) from error
        return self._take(deliveries)

    async def _take_over(self) -> bool:
        """Become the reader, if no other process is; find out where to begin."""
        cursor = await self._lease.take()
        if cursor is None:
            return False
        self._positions.use(0, self._source.subject, cursor)
        found = await self._connection.jetstream.stream_info(self._stream)
        created, last = str(found.created), found.state.last_seq
        position = cursor.position
        if position is None or cursor.note != created:
            # Every message of a re-created stream is newer than what has been read.
            position = last if self._begin == "latest" and position is None else 0
            await self._positions.begin(0, position, created)
        elif position > last:
            await self._lease.release()
            raise SourceError(
                f"source {self._source.name}: its position {position} is ahead of stream {self._stream}, which ends at "
                f"{last}: the stream is an older copy of itself; give the source another name to start over"
            )
        self._last, self._created = position, created
        self._lease.begin()
        return True

    async def _has_left_replaced_stream(self) -> bool:
        """Begin again as a new reader does if the stream was deleted and re-created: its numbers start over."""
        found, held = await self._connection.jetstream.stream_info(self._stream), self._lease.held
        if held is None or str(found.created) == self._created:
            return False
        log.warning("the stream was deleted and re-created: reading all of it", source=self._source.name)
        await self._lease.release()
        await self._lost(held)
        return True

    async def _subscribe(self) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
        from nats.js.errors import NotFoundError

        jetstream, durable = self._connection.jetstream, None
        if self._is_work_queue:
            durable = self._durable
            with contextlib.suppress(NotFoundError):
                await jetstream.delete_consumer(self._stream, durable)
            wanted = ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, deliver_policy=DeliverPolicy.ALL, ack_wait=UNUSED_FOR, max_ack_pending=-1
            )
        else:
            wanted = ConsumerConfig(
                ack_policy=AckPolicy.NONE,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._last + 1,
                inactive_threshold=UNUSED_FOR,
            )
        self._arrived = 0
        self._subscription = await jetstream.pull_subscribe(
            self._source.subject, durable=durable, stream=self._stream, config=wanted
        )

    async def _unsubscribe(self) -> None:
        """Leave the consumer at the server; the next poll makes one that begins after the last message."""
        from nats.errors import Error

        if self._fetching is not None:
            await end([self._fetching])
            self._fetching = None
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            with contextlib.suppress(Error, OSError):
                consumer = await subscription.consumer_info()
                await subscription.unsubscribe()
                if not self._is_work_queue:
                    await self._connection.jetstream.delete_consumer(self._stream, consumer.name)

    async def _fetch(self, most: int) -> list[Any]:
        fetching = self._fetching = self._fetching or asyncio.create_task(self._subscription.fetch(most, timeout=WAIT))
        try:
            return await asyncio.shield(fetching)  # Cancelling a fetch would lose what it has received.
        except TimeoutError:
            return []
        finally:
            if fetching.done():
                self._fetching = None

    def _in_order(self, messages: Sequence[Any]) -> list[Any]:
        """These messages up to the first gap in the count of the consumer."""
        for index, message in enumerate(messages):
            if message.metadata.sequence.consumer != self._arrived + 1:
                return list(messages[:index])
            self._arrived += 1
        return list(messages)

    async def _has_lost_some(self) -> bool:
        """Whether the server has delivered messages that did not arrive."""
        return (await self._subscription.consumer_info()).delivered.consumer_seq != self._arrived

    def _take(self, messages: Sequence[Any]) -> list[Delivery]:
        new: list[Delivery] = []
        for message in messages:
            delivery = delivery_of(message, self._lease.held)
            if self._is_work_queue:
                self._to_ack[delivery.position] = message
            if delivery.position > self._last:  # A new consumer of a work queue gives again what is in flight here.
                self._last = delivery.position
                new.append(delivery)
        fresh = self._positions.take(new)
        if self._is_work_queue and len(fresh) < len(new):
            self._done({each.position for each in new} - {each.position for each in fresh})
        return fresh

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        mine = [each for each in deliveries if each.token is self._lease.held]
        self._positions.ack(mine)
        self._done({each.position for each in mine})

    def _done(self, positions: set[int]) -> None:
        self._acked += [message for each in positions if (message := self._to_ack.pop(each, None)) is not None]

    async def flush(self) -> None:
        await self._positions.flush()
        while self._acked:  # Messages of a work queue are acknowledged only after the position is stored.
            message = self._acked.pop()
            # A message that is not acknowledged comes again, and is known to be done.
            with contextlib.suppress(Exception):
                await message.ack()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: they are read again from the stored position."""

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        if any(each.token is not self._lease.held for each in deliveries):
            raise FencedError(f"source {self._source.name}: another reader has taken over some of its messages")
        await self._positions.commit(connection, deliveries)

    async def stop(self) -> None:
        await self._lease.stop()
        try:
            await self.flush()
            await self._unsubscribe()
        finally:
            if self._lease.held is not None:
                await self._lease.release()
            await self._connection.close()

    async def state_of(self, part: int, position: int) -> PositionState | None:
        return self._positions.state_of(part, position)

    async def lag(self) -> int | None:
        if self._subscription is None:
            return None
        return (await self._subscription.consumer_info()).num_pending

    @property
    def problem(self) -> str | None:
        """What keeps the client from its servers; it goes on trying by itself."""
        return self._connection.problem

    async def _lost(self, held: object) -> None:
        """Drop what was read ahead: another process reads now."""
        self._to_ack.clear()
        self._positions.disown(0)
        await self._unsubscribe()
        self._context.on_lost(lambda delivery: delivery.token is held)
