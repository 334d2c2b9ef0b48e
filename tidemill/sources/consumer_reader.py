"""Consumers as readers: a monitor reads a broker, and a message is acknowledged once its page is stored.

A message that is delivered again is dropped by its id: the one in the message, or its place at the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from tidemill.core.errors import TidemillError
from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import NEAR, Consumer, RecordPage, SourceError
from tidemill.sources.delivery import Delivery

WAIT = 0.2


class ConsumerReader:
    """Reads messages of a consumer in pages."""

    overlap = overlap_most = 0.0
    idle = NEAR

    def __init__(self, connect: Callable[[], Consumer], page: int) -> None:
        """`connect` makes a consumer; a new one is made after a failure."""
        self._connect, self._page = connect, page
        self._consumer: Consumer | None = None
        self._polling: asyncio.Task[list[Delivery]] | None = None
        self._unstored: list[Delivery] = []
        self._answered_at = 0.0
        """When a poll has ended last, by the event loop's clock."""
        self.read_until: float | None = None
        """Up to when all messages have been read, if not up to now: a broker that does not answer may have more."""

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """All messages that have arrived since the last call."""
        began = asyncio.get_running_loop().time()
        try:
            if self._consumer is None:
                consumer = self._connect()
                await consumer.start()
                self._consumer, self._answered_at = consumer, began
            while records := self._unstored or await self._poll(self._consumer):
                self._unstored = records
                yield RecordPage(records, by_place=True)
                # The caller has stored the page only now; after a failure before this line it is returned again.
                self._unstored = []
                self._consumer.ack(records)
                await self._consumer.flush()
            self.read_until = None if self._polling is None else min(now, now + self._answered_at - began)
        except (TidemillError, OSError) as error:
            await self.close()
            raise SourceError(str(error)) from error

    async def wait(self) -> None:
        """Return when there are more messages, or when they cannot be read."""
        if self._consumer is None:
            await asyncio.Event().wait()  # The next call of `pages` opens it.
        while self._consumer is not None and not self._unstored:
            polling = self._polling = self._polling or asyncio.create_task(self._consumer.poll(self._page))
            await asyncio.wait([polling])
            if polling.cancelled() or polling.exception() is not None or polling.result():
                return
            self._polling, self._answered_at = None, asyncio.get_running_loop().time()

    async def close(self) -> None:
        self._unstored = []
        if self._polling is not None:
            await end([self._polling])
            self._polling = None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.stop()

    async def _poll(self, consumer: Consumer) -> list[Delivery]:
        """The next messages. A poll that still waits is kept for the next call, so that no message is lost."""
        polling = self._polling = self._polling or asyncio.create_task(consumer.poll(self._page))
        done, _ = await asyncio.wait([polling], timeout=WAIT)
        if not done:
            return []
        self._polling, self._answered_at = None, asyncio.get_running_loop().time()
        return polling.result()
