"""Acknowledges finished messages at their sources, and makes that durable, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from tidemill.sources.base import FencedError
from tidemill.sources.delivery import Delivery
from tidemill.store.database_errors import is_transient
from tidemill.streams.runner.attempts import OrderedAttempts
from tidemill.streams.runner.stored_ids import StoredIds

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

FLUSH_EVERY = 0.05
ERROR_PAUSE = 0.2


class Acknowledgements:
    """The acknowledgements of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher, ids: StoredIds | None, attempts: OrderedAttempts) -> None:
        """`ids` are stored before their messages are acknowledged; None if no source has any."""
        self._dispatcher, self._ids, self._attempts = dispatcher, ids, attempts
        self._to_flush: set[int] = set()
        self._needed = asyncio.Event()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge messages; the next flush makes it durable."""
        dispatcher = self._dispatcher
        by_source: list[list[Delivery]] = [[] for _ in dispatcher.consumers]
        for delivery in deliveries:
            if delivery.retry_row is None:
                by_source[delivery.source].append(delivery)
                if delivery.noted:
                    self._attempts.finished(delivery)
            else:
                dispatcher.retries.ack(delivery)
        for index, some in enumerate(by_source):
            if some:
                dispatcher.consumers[index].ack(some)
                self._to_flush.add(index)
        self._needed.set()

    async def run(self) -> None:
        """Make acknowledgements durable until cancelled."""
        dispatcher = self._dispatcher
        while True:
            await self._needed.wait()
            await asyncio.sleep(FLUSH_EVERY)
            self._needed.clear()
            indexes, self._to_flush = self._to_flush, set()
            if self._ids is not None and not await self._ids.flush():
                self._to_flush, indexes = indexes, set()  # A message is acknowledged when its id is stored.
            for index in indexes:
                try:
                    await dispatcher.consumers[index].flush()
                except FencedError as error:
                    log.warning("a position belongs to another reader now", why=str(error))
                except Exception as error:
                    if not is_transient(error):  # An unreachable broker is a passing error, too.
                        raise
                    dispatcher.health[index].failed(error)
                    self._to_flush.add(index)
            await dispatcher.retries.flush()
            await self._attempts.flush()
            if self._to_flush:
                await asyncio.sleep(ERROR_PAUSE)
                self._needed.set()
