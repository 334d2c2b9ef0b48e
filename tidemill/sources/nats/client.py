"""Clients of NATS JetStream, and their messages as deliveries."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from tidemill.core.errors import ConfigError
from tidemill.sources.base import SourceError
from tidemill.sources.delivery import Delivery

log = structlog.get_logger("tidemill.sources")

CONNECT_WITHIN = ANSWER_WITHIN = 5.0
PROBLEM_LASTS = 5.0  # seconds after the last error that the client has reported


class NatsConnection:
    """One connection to a cluster, which reconnects by itself."""

    def __init__(self, what: str, servers: str) -> None:
        """`what` is the source or sink that connects, for messages."""
        try:
            from nats.aio.client import Client
        except ImportError:
            raise ConfigError(f"{what}: install tidemill[nats] to use NATS") from None
        self.client: Any = Client()
        self._what, self._servers = what, servers
        self._problem: str | None = None
        self._problem_at = 0.0

    @property
    def jetstream(self) -> Any:
        return self.client.jetstream()

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN):  # The client itself would try forever.
                await self.client.connect(
                    self._servers.split(","),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.2,
                    error_cb=self._report,
                    allow_reconnect=True,
                )
        except Exception as error:
            await self.client.close()
            raise self.error(error) from error

    def error(self, error: BaseException) -> SourceError:
        """An error of the client with what is known about its cause."""
        return SourceError(f"{self._what}: {self.problem or str(error) or type(error).__name__}")

    async def check(self) -> None:
        """Raise an error unless a server answers."""
        if not self.client.is_connected:
            raise self.error(OSError("the client is not connected"))
        try:
            await self.client.flush(ANSWER_WITHIN)
        except Exception as error:
            raise self.error(error) from error

    async def close(self) -> None:
        await self.client.close()

    @property
    def problem(self) -> str | None:
        """What keeps the client from its servers; it goes on trying by itself."""
        return self._problem if time.monotonic() - self._problem_at < PROBLEM_LASTS else None

    async def _report(self, error: Exception) -> None:
        if self.problem is None:
            log.warning("the NATS client reports an error", what=self._what, error=str(error))
        self._problem, self._problem_at = str(error), time.monotonic()


def delivery_of(message: Any, token: Any) -> Delivery:
    """A message of the client as a delivery; its key is its subject."""
    metadata, headers = message.metadata, message.headers
    return Delivery(
        message.data,
        metadata.sequence.stream,
        0,
        metadata.timestamp.timestamp(),
        message.subject.encode(),
        None if not headers else tuple((name, value.encode()) for name, value in headers.items()),
        token=token,
    )
