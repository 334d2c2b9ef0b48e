"""A Redis stream as a sink: the value is the field `payload`, beside `key`, `id` and the headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.sinks.base import ID_HEADER, SendResult, Sink, SinkItem, Unreachable

TIMEOUT = 10.0


class RedisSink(Sink, frozen=True, tag="redis"):
    """A stream of a Redis server."""

    key: str
    url: str = "redis://localhost:6379"
    max_length: int | None = None
    """About how many entries the stream keeps; the oldest are deleted."""

    @property
    def default_name(self) -> str:
        return self.key.replace(":", "-")

    def sender(self) -> RedisSender:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise ConfigError(f"sink {self.name}: install tidemill[redis] to write to Redis") from None
        client = Redis.from_url(self.url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)
        return RedisSender(self, client)


class RedisSender:
    def __init__(self, sink: RedisSink, client: Any) -> None:
        self._sink, self._client = sink, client

    async def send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        """Append all items in one transaction: all of them, or none."""
        from redis.exceptions import RedisError

        try:
            async with self._client.pipeline(transaction=True) as pipe:
                for item in items:
                    fields = {**item.headers, ID_HEADER: item.id, "payload": item.payload}
                    if item.key is not None:
                        fields["key"] = item.key
                    pipe.xadd(self._sink.key, fields, maxlen=self._sink.max_length, approximate=True)
                await pipe.execute()
        except (RedisError, OSError) as error:
            return [Unreachable(str(error) or type(error).__name__)] * len(items)
        return [None] * len(items)

    async def close(self) -> None:
        await self._client.aclose()
