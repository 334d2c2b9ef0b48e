"""Redis Streams as a source: a consumer group, entries acked when their work is done.

What a consumer has taken and not acked is taken over by another when nobody has said for a while that it is under way.
The message is the field `payload`; other fields are its headers. An entry without it is given whole, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import structlog

from tidemill.core.errors import ConfigError
from tidemill.engine.cancellation import end
from tidemill.store.database import Executor
from tidemill.streams.definition.message import Delivery
from tidemill.streams.sources.base import Place, Source, SourceError

log = structlog.get_logger("tidemill.streams")

AT_ONCE = 1000
BLOCK_MS = 1000
_SEQUENCES = 1_000_000


class RedisSource(Source, frozen=True, tag="redis"):
    """A stream of a Redis server."""

    key: str
    url: str = "redis://localhost:6379"
    group: str = ""
    """Who reads together; those of this stream and source, if not given."""
    begin: Literal["earliest", "latest"] = "earliest"
    lease: float = 30.0
    """How long a silent consumer keeps what it has taken."""

    @property
    def default_name(self) -> str:
        return self.key.replace(":", "-")

    def tap(self, place: Place) -> RedisTap:
        try:
            import redis  # noqa: F401
        except ImportError:
            raise ConfigError(f"source {self.name}: install tidemill[redis] to read from Redis") from None
        return RedisTap(self, place)


class RedisTap:
    transactional = False

    def __init__(self, source: RedisSource, place: Place) -> None:
        self._source = source
        self._group = source.group or f"{place.stream}.{source.name}"
        self._me = str(place.dispatcher)
        self._client: Any = None
        self._open: set[bytes] = set()
        self._acked: list[bytes] = []
        self._look_at = 0.0
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff
        from redis.exceptions import RedisError, ResponseError

        self._client = Redis.from_url(self._source.url, retry=Retry(ExponentialBackoff(1.0, 0.05), 5))
        first = "0" if self._source.begin == "earliest" else "$"
        try:
            with contextlib.suppress(ResponseError):  # The group is there already.
                await self._client.xgroup_create(self._source.key, self._group, id=first, mkstream=True)
            await self._client.xinfo_groups(self._source.key)
        except (RedisError, OSError) as error:
            raise SourceError(f"source {self._source.name}: {error}") from error
        self._keeping = asyncio.create_task(self._keep())

    async def poll(self, most: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        count = min(most, AT_ONCE)
        if loop.time() >= self._look_at:
            _, entries, *_ = await self._client.xautoclaim(
                self._source.key, self._group, self._me, int(self._source.lease * 1000), count=count
            )
            if entries:
                return self._take(entries)
            self._look_at = loop.time() + self._source.lease / 3
        answer = await self._client.xreadgroup(
            self._group, self._me, {self._source.key: ">"}, count=count, block=BLOCK_MS
        )
        return self._take(_entries(answer)) if answer else []

    def _take(self, entries: Sequence[tuple[bytes, dict[bytes, bytes] | None]]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for id, fields in entries:
            if fields is None or id in self._open:
                continue  # Deleted from the stream; or ours, and under way.
            self._open.add(id)
            milliseconds, _, sequence = id.partition(b"-")
            payload = fields.pop(b"payload", None)
            if payload is None:
                payload = msgspec.json.encode(
                    {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()}
                )
                fields = {}
            key = fields.get(b"key")
            headers = tuple((name.decode(errors="replace"), value) for name, value in fields.items()) or None
            deliveries.append(
                Delivery(
                    payload,
                    int(milliseconds) * _SEQUENCES + int(sequence),
                    0,
                    int(milliseconds) / 1000,
                    key,
                    headers,
                    token=id,
                )
            )
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._acked += [delivery.token for delivery in deliveries]

    async def flush(self) -> None:
        from redis.exceptions import RedisError

        acked, self._acked = self._acked, []
        if not acked:
            return
        try:
            await self._client.xack(self._source.key, self._group, *acked)
            self._open.difference_update(acked)
        except BaseException as error:
            self._acked += acked
            if isinstance(error, RedisError):
                raise OSError(f"source {self._source.name}: {error}") from error
            raise

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to say: others take it over when its lease has lapsed."""

    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Positions are the server's business."""

    async def stop(self) -> None:
        if self._keeping is not None:
            await end([self._keeping])
        await self.flush()
        await self._client.aclose()

    async def lag(self) -> int | None:
        for group in await self._client.xinfo_groups(self._source.key):
            if group["name"] == self._group.encode():
                return group.get("lag")
        return None

    async def _keep(self) -> None:
        """Say that what is under way is still ours."""
        while True:
            await asyncio.sleep(self._source.lease / 3)
            ids = list(self._open)
            for start in range(0, len(ids), AT_ONCE):
                try:
                    await self._client.xclaim(
                        self._source.key, self._group, self._me, 0, ids[start : start + AT_ONCE], justid=True
                    )
                except Exception as error:  # noqa: BLE001 - away; the next round says it again
                    log.debug("the server does not hear us", source=self._source.name, error=str(error))
                    break


def _entries(answer: Any) -> Sequence[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of a reply to XREADGROUP, in the forms of both versions of the protocol."""
    if isinstance(answer, dict):
        found = next(iter(answer.values()))
        return found[0] if found and isinstance(found[0], list) else found
    return answer[0][1]
