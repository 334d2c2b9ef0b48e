"""A Redis stream: a consumer group; entries are acknowledged when their work is done.

Entries of a consumer that has not answered for a while are taken over by another one. The message is the field
`payload`; other fields are its headers. An entry without that field is given whole, as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from tidemill.core.errors import ConfigError
from tidemill.engine.containment.cancellation import end
from tidemill.sources.base import Begin, Source, SourceContext, SourceError
from tidemill.sources.delivery import Delivery
from tidemill.sources.positions.offsets import PositionState
from tidemill.store.database import Executor

log = structlog.get_logger("tidemill.sources")

AT_ONCE = 1000
BLOCK_MS = 1000
TIMEOUT = 5.0  # seconds that the server has to answer, longer than it is asked to wait
TAKE_OVER_EVERY = 2.0
POLL_OTHERS = 0.1  # Redis does not tell when an entry of another consumer is acknowledged.

#: Reads new entries if no other consumer of the group has any in flight: of an ordered source, one reads at a time.
READ_IN_ORDER = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])
for _, each in ipairs(pending[4] or {}) do
    if each[1] ~= ARGV[2] then return {0, {}} end
end
return {1, redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>') or {}}
"""
GONE = ("NOGROUP", "UNBLOCKED")  # what the server says of a stream or a group that was deleted
_SEQUENCES = 1_000_000


class RedisSource(Source, frozen=True, tag="redis"):
    """A stream of a Redis server."""

    key: str
    url: str = "redis://localhost:6379"
    group: str = ""
    """The consumer group; by default one for this stream or monitor and this source."""
    begin: Begin = "earliest"
    """Where a new group begins."""
    lease: float = 30.0
    """How many seconds a consumer that has stopped answering keeps its entries."""

    @property
    def default_name(self) -> str:
        return self.key.replace(":", "-")

    def consumer(self, context: SourceContext) -> RedisConsumer:
        try:
            import redis  # noqa: F401
        except ImportError:
            raise ConfigError(f"source {self.name}: install tidemill[redis] to read from Redis") from None
        return RedisConsumer(self, context)


class RedisConsumer:
    transactional = False

    def __init__(self, source: RedisSource, context: SourceContext) -> None:
        self._source = source
        self._group = source.group or context.group(source.name)
        self._name = str(context.owner)
        self._client: Any = None
        self._open: set[bytes] = set()
        self._last: str | bytes = "$"
        self._acked: list[bytes] = []
        self._take_over_at = 0.0
        self._keeping_alive: asyncio.Task[None] | None = None

    async def start(self) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import ExponentialBackoff
        from redis.exceptions import RedisError

        self._client = Redis.from_url(
            self._source.url,
            socket_timeout=TIMEOUT,
            socket_connect_timeout=TIMEOUT,
            retry=Retry(ExponentialBackoff(1.0, 0.05), 5),
        )
        try:
            await self._make_group("$")
            await self._client.xinfo_groups(self._source.key)
        except (RedisError, OSError) as error:
            raise SourceError(f"source {self._source.name}: {error}") from error
        self._keeping_alive = asyncio.create_task(self._keep_alive())

    async def _make_group(self, latest: str | bytes) -> None:
        """Make the consumer group if there is none; `latest` is where one begins that reads only what is new."""
        from redis.exceptions import ResponseError

        first = "0" if self._source.begin == "earliest" else latest
        with contextlib.suppress(ResponseError):  # The group exists already.
            await self._client.xgroup_create(self._source.key, self._group, id=first, mkstream=True)

    async def poll(self, most: int) -> list[Delivery]:
        from redis.exceptions import ResponseError

        try:
            return await self._poll(most)
        except ResponseError as error:
            if not str(error).startswith(GONE):
                raise
            log.warning("the stream or its group was deleted: re-creating it", source=self._source.name)
            await self._make_group(self._last)
            return []

    async def _poll(self, most: int) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        count = min(most, AT_ONCE)
        if loop.time() >= self._take_over_at:
            if entries := await self._take_over(count):
                return self._take(entries)
            self._take_over_at = loop.time() + min(self._source.lease / 3, TAKE_OVER_EVERY)
        if self._source.ordered:
            return await self._read_in_order(count)
        answer = await self._client.xreadgroup(
            self._group, self._name, {self._source.key: ">"}, count=count, block=BLOCK_MS
        )
        return self._take(_entries(answer)) if answer else []

    async def _take_over(self, count: int) -> Sequence[tuple[bytes, dict[bytes, bytes] | None]]:
        """Entries of consumers that do not answer, oldest first: the server examines ten for each that is wanted."""
        lease, start = int(self._source.lease * 1000), b"0-0"
        while True:
            start, entries, *_ = await self._client.xautoclaim(
                self._source.key, self._group, self._name, lease, start_id=start, count=count
            )
            if entries or start == b"0-0":
                return entries

    async def _read_in_order(self, count: int) -> list[Delivery]:
        """Read new entries, unless another consumer has older ones in flight; waits for either."""
        is_mine, answer = await self._client.eval(READ_IN_ORDER, 1, self._source.key, self._group, self._name, count)
        if answer:
            return self._take([(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in answer[0][1]])
        if not is_mine:
            self._take_over_at = 0.0  # As soon as the other one ends or its lease lapses, its entries come first.
            await asyncio.sleep(POLL_OTHERS)
            return []
        last = await self._last_delivered()
        await self._client.xread({self._source.key: last}, count=1, block=BLOCK_MS)
        return []

    async def _last_delivered(self) -> bytes:
        groups = await self._client.xinfo_groups(self._source.key)
        return next((group["last-delivered-id"] for group in groups if group["name"] == self._group.encode()), b"$")

    def _take(self, entries: Sequence[tuple[bytes, dict[bytes, bytes] | None]]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for id, fields in entries:
            if fields is None or id in self._open:
                continue  # Deleted from the stream, or in flight here.
            self._open.add(id)
            self._last = id
            milliseconds, sequence = _number(id)
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
                    milliseconds * _SEQUENCES + sequence,
                    0,
                    milliseconds / 1000,
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
        """Nothing to do: `stop` gives back all that was not done."""

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Nothing to do: the server stores positions."""

    async def stop(self) -> None:
        if self._keeping_alive is not None:
            await end([self._keeping_alive])
        await self.flush()
        await self._give_back()
        await self._client.aclose()

    async def _give_back(self) -> None:
        """End the lease of everything that was not done here: the next consumer takes it over at once.

        The server knows best what that is: a read that was cancelled may have been carried out.
        """
        lease, first = int(self._source.lease * 1000), "-"
        while True:
            found = await self._client.xpending_range(
                self._source.key, self._group, first, "+", AT_ONCE, consumername=self._name
            )
            if not found:
                return
            ids = [each["message_id"] for each in found]
            await self._client.xclaim(self._source.key, self._group, self._name, 0, ids, idle=lease, justid=True)
            first = f"({ids[-1].decode()}"

    async def lag(self) -> int | None:
        for group in await self._client.xinfo_groups(self._source.key):
            if group["name"] == self._group.encode():
                return group.get("lag")
        return None

    async def state_of(self, part: int, position: int) -> PositionState | None:
        milliseconds, sequence = divmod(position, _SEQUENCES)
        id = f"{milliseconds}-{sequence}"
        if await self._client.xpending_range(self._source.key, self._group, id, id, 1):
            return "open"
        return "unread" if (milliseconds, sequence) > _number(await self._last_delivered()) else "done"

    async def _keep_alive(self) -> None:
        """Renew the lease of the entries in flight."""
        while True:
            await asyncio.sleep(self._source.lease / 3)
            # Newest first: should this process die meanwhile, the leases of older entries still end earlier.
            ids = sorted(self._open, key=_number, reverse=True)
            for start in range(0, len(ids), AT_ONCE):
                try:
                    await self._client.xclaim(
                        self._source.key, self._group, self._name, 0, ids[start : start + AT_ONCE], justid=True
                    )
                except Exception as error:  # noqa: BLE001 - the server is unavailable; the next round retries
                    log.debug("the server does not answer", source=self._source.name, error=str(error))
                    break


def position_of(id: str) -> int:
    """The position of an entry in a stream, from its id at the server."""
    milliseconds, sequence = _number(id.encode())
    return milliseconds * _SEQUENCES + sequence


def _number(id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = id.partition(b"-")
    return int(milliseconds), int(sequence)


def _entries(answer: Any) -> Sequence[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of a reply to XREADGROUP, in both versions of the protocol."""
    if isinstance(answer, dict):
        found = next(iter(answer.values()))
        return found[0] if found and isinstance(found[0], list) else found
    return answer[0][1]
