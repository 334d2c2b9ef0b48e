"""A subject of NATS JetStream: a durable pull consumer; each message is acknowledged when its work is done.

The server delivers a message again if it is not acknowledged in time; while a message is in flight, its time is
extended. What is delivered again comes behind newer messages: `ordered=True` reads in another way (`ordered`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import structlog

from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import Begin, Consumer, Source, SourceContext
from tidemill.sources.delivery import Delivery
from tidemill.sources.nats.client import NatsConnection, delivery_of
from tidemill.sources.nats.ordered import OrderedNatsConsumer
from tidemill.sources.positions.offsets import PositionState
from tidemill.store.database import Executor

log = structlog.get_logger("tidemill.sources")

WAIT = 1.0
AT_ONCE = 500
CHECK_EVERY = 5.0  # seconds without a message after which the consumer is looked for


class NatsSource(Source, frozen=True, tag="nats"):
    """A subject of a JetStream stream."""

    subject: str
    servers: str = "nats://localhost:4222"
    stream: str = ""
    """The JetStream stream; found by its subject if not given."""
    durable: str = ""
    """The durable consumer; by default the names of the application, the stream or monitor, and the source."""
    begin: Begin = "earliest"
    """Where a new durable consumer begins."""
    ack_wait: float = 30.0
    """How many seconds a dispatcher that has stopped answering keeps its messages."""
    max_pending: int = 8000
    """How many messages may be in flight."""

    @property
    def default_name(self) -> str:
        return self.subject.replace(".", "-").replace("*", "any").replace(">", "all")

    def consumer(self, context: SourceContext) -> Consumer:
        connection = NatsConnection(f"source {self.name}", self.servers)
        durable = self.durable or context.group(self.name, "-")
        if not self.ordered:
            return NatsConsumer(self, connection, durable)
        return OrderedNatsConsumer(self, context, connection, durable=durable, begin=self.begin, lease=self.ack_wait)


class NatsConsumer:
    transactional = False

    def __init__(self, source: NatsSource, connection: NatsConnection, durable: str) -> None:
        self._source = source
        self._connection = connection
        self._durable = durable
        self._subscription: Any = None
        self._created: Any = None
        """When the stream was made, if only what is new is read: another one of its name begins at its start."""
        self._checked_at = 0.0
        self._open: dict[int, Any] = {}
        self._acked: list[Any] = []
        self._nacked: list[Any] = []
        self._fetching: asyncio.Task[list[Any]] | None = None
        self._keeping_alive: asyncio.Task[None] | None = None

    async def start(self) -> None:
        from nats.errors import Error

        await self._connection.connect()
        try:
            self._subscription = await self._subscribe()
        except (Error, OSError) as error:
            await self._connection.close()
            raise self._connection.error(error) from error
        self._keeping_alive = asyncio.create_task(self._keep_alive())

    async def _subscribe(self) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        jetstream, subject = self._connection.jetstream, self._source.subject
        stream = self._source.stream or await jetstream.find_stream_name_by_subject(subject)
        is_all = self._source.begin == "earliest"
        if not is_all:  # Every message of a re-created stream is newer than what has been read.
            created = (await jetstream.stream_info(stream)).created
            is_all = self._created not in (None, created)
            self._created = created
        wanted = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL if is_all else DeliverPolicy.NEW,
            ack_wait=self._source.ack_wait,
            max_ack_pending=self._source.max_pending,
        )
        found = await jetstream.pull_subscribe(subject, durable=self._durable, stream=stream, config=wanted)
        self._checked_at = time.monotonic()
        return found

    async def _check_consumer(self) -> None:
        """Re-create the consumer if it was deleted, with its stream or by itself: a fetch only finds nothing then."""
        from nats.js.errors import NotFoundError

        if time.monotonic() - self._checked_at < CHECK_EVERY:
            return
        try:
            await self._subscription.consumer_info()
            self._checked_at = time.monotonic()
        except NotFoundError:
            log.warning("the stream or its consumer was deleted: re-creating it", source=self._source.name)
            subscription, self._subscription = self._subscription, None
            await subscription.unsubscribe()

    async def poll(self, most: int) -> list[Delivery]:
        from nats.errors import Error, TimeoutError as NothingYet

        if self._subscription is None:
            try:
                self._subscription = await self._subscribe()
            except Error as error:
                raise self._connection.error(error) from error
        fetching = self._fetching = self._fetching or asyncio.create_task(
            self._subscription.fetch(min(most, AT_ONCE), timeout=WAIT)
        )
        try:
            messages = await asyncio.shield(fetching)  # A cancelled fetch would lose what the server has sent already.
        except (NothingYet, TimeoutError):
            messages = []
        finally:
            if fetching.done():
                self._fetching = None
        if not messages:
            await self._connection.check()  # A fetch also ends when no server answers.
            await self._check_consumer()
            return []
        deliveries = [delivery_of(message, message) for message in messages]
        self._open.update((each.position, each.token) for each in deliveries)
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._open.pop(delivery.position, None)
            self._acked.append(delivery.token)

    async def flush(self) -> None:
        acked, self._acked = self._acked, []
        while acked:
            try:
                await acked[-1].ack()
                acked.pop()
            except BaseException as error:
                if "already acknowledged" in str(error):
                    acked.pop()
                    continue
                self._acked += acked
                if isinstance(error, Exception):
                    raise OSError(f"source {self._source.name}: {error}") from error
                raise
        await self._connection.client.flush()

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._nacked += [delivery.token for delivery in deliveries]

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: the server stores positions."""

    async def stop(self) -> None:
        if self._keeping_alive is not None:
            await end([self._keeping_alive])
        await self.flush()
        if self._fetching is not None:
            fetched = (await asyncio.gather(self._fetching, return_exceptions=True))[0]
            self._nacked += fetched if isinstance(fetched, list) else []
        # Without this, the server would send back to this client what it is given back.
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        await self._connection.client.flush()
        for message in self._nacked:
            await message.nak()
        await self._connection.client.flush()  # The next consumer gets them only after the server has read this.
        await self._connection.close()

    async def lag(self) -> int | None:
        return None if self._subscription is None else (await self._subscription.consumer_info()).num_pending

    async def state_of(self, part: int, position: int) -> PositionState | None:
        if position in self._open:
            return "open"
        if self._subscription is None:
            return None
        info = await self._subscription.consumer_info()
        if info.ack_floor is not None and position <= info.ack_floor.stream_seq:
            return "done"
        return "unread" if info.delivered is not None and position > info.delivered.stream_seq else None

    async def _keep_alive(self) -> None:
        """Tell the server that the messages in flight are still being processed."""
        while True:
            await asyncio.sleep(self._source.ack_wait / 3)
            for message in list(self._open.values()):
                try:
                    await message.in_progress()
                except Exception as error:  # noqa: BLE001 - the server is unavailable; it delivers again what was not acknowledged
                    log.debug("the server does not answer", source=self._source.name, error=str(error))
                    break

    @property
    def problem(self) -> str | None:
        """What keeps the client from its servers; it goes on trying by itself."""
        return self._connection.problem
