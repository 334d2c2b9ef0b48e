"""Any source of a stream as the source of a monitor: NATS, Redis, the PostgreSQL log, a file.

StreamSource(NatsSource(...), id="id", time="at")

Messages are acknowledged once they are in the monitor's log. What is delivered again is dropped by its id: the one in
the message, or the place of the message at its source. One process reads for all; topics of Kafka, whose partitions
can be shared, have a source of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.engine.cancellation import end
from tidemill.monitors.sources.base import Incoming, Page, SourceError, read_message
from tidemill.store.database import Database


class StreamSource:
    """Takes batches from a stream's source, whatever it is."""

    overlap = overlap_most = 0.0

    def __init__(
        self, source: Any, *, id: str = "id", time: str | Sequence[str] = "at", page: int = 500, wait: float = 0.2
    ) -> None:
        if getattr(getattr(source, "__struct_config__", None), "tag", None) == "kafka":
            raise ConfigError(
                "a topic of Kafka is read by tidemill.monitors.KafkaSource: its partitions are shared out"
            )
        self._source = source
        self._id, self._time = id, (time,) if isinstance(time, str) else tuple(time)
        self._page, self._wait = page, wait
        self._database: Database | None = None
        self._tap: Any = None
        self._polling: asyncio.Task[Any] | None = None

    def attach(self, database: Database, monitor: str) -> None:
        """Where a source that cannot remember its position keeps it."""
        self._database, self._name = database, f"monitor:{monitor}"

    async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[Page]:
        """What has come since it was last asked."""
        try:
            await self._open()
            while deliveries := await self._poll():
                yield self._as_page(deliveries, now)
                # Only now is the page stored: whoever dies before this is given it again.
                self._tap.ack(deliveries)
                await self._tap.flush()
        except (TidemillError, OSError) as error:
            await self.close()
            raise SourceError(str(error)) from error

    async def close(self) -> None:
        if self._polling is not None:
            await end([self._polling])
            self._polling = None
        if self._tap is not None:
            tap, self._tap = self._tap, None
            await tap.stop()

    async def _open(self) -> None:
        if self._tap is not None:
            return
        if self._database is None:
            raise SourceError("a stream source is opened by the monitor that it belongs to")
        place = SimpleNamespace(
            stream=self._name,
            dispatcher=uuid4(),
            database=self._database,
            lost=lambda which: None,
            on_news=lambda topic, wake: None,
        )
        self._tap = self._source.tap(place)
        await self._tap.start()

    async def _poll(self) -> list[Any]:
        """The next messages; a poll that is still waiting is kept for the next time, so that it loses nothing."""
        polling = self._polling = self._polling or asyncio.create_task(self._tap.poll(self._page))
        done, _ = await asyncio.wait([polling], timeout=self._wait)
        if not done:
            return []
        self._polling = None
        return polling.result()

    def _as_page(self, deliveries: Sequence[Any], now: float) -> Page:
        events: list[Incoming] = []
        unreadable: list[str] = []
        for delivery in deliveries:
            place = delivery.id or f"{delivery.part}:{delivery.position}"
            try:
                events.append(
                    read_message(delivery.payload, id=self._id, time=self._time, place=place, at=delivery.at or now)
                )
            except ValueError as error:
                unreadable.append(f"{error}: {bytes(delivery.payload)[:120].decode(errors='replace')}")
        return Page(events, unreadable=tuple(unreadable))
