"""What all sources have in common: the declaration that users write, and the tap that runs.

A declaration is plain data and opens nothing. `tap` makes the running half:

    start    connect; learn where to begin
    poll     the next messages, waiting a while for them if there are none
    ack      these are done; may be remembered and told later
    flush    what was acked is safe when this returns
    nack     these were not done, and will not be by us
    stop     disconnect
    lag      how many messages are behind, where that can be known

Where a tap's position is kept in our own PostgreSQL, `settle` stores it inside the caller's transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.store.database import Database, Executor
from tidemill.streams.definition.message import Delivery


class SourceError(TidemillError):
    """A source that cannot be read as it is configured."""


class FencedError(TidemillError):
    """Another dispatcher has taken over what this one was working on; its result must not count."""


class Place(msgspec.Struct, frozen=True):
    """Where a tap is opened: for which stream, by which dispatcher, beside which database."""

    stream: str
    dispatcher: UUID
    database: Database
    lost: Callable[[Callable[[Delivery], bool]], None]
    """To be told which deliveries are no longer ours: those that this test holds for."""
    on_news: Callable[[str, Callable[[], None]], None]
    """Call this when somebody notifies of news for this topic."""


class Tap(Protocol):
    """An open source."""

    transactional: bool

    async def start(self) -> None: ...
    async def poll(self, most: int) -> list[Delivery]: ...
    def ack(self, deliveries: Sequence[Delivery]) -> None: ...
    async def flush(self) -> None: ...
    def nack(self, deliveries: Sequence[Delivery]) -> None: ...
    async def settle(self, connection: Executor, deliveries: Sequence[Delivery]) -> None: ...
    async def stop(self) -> None: ...
    async def lag(self) -> int | None: ...


class Source(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """What every source can be told."""

    name: str = ""
    """How it is called in figures and commands; its topic if not given."""
    weight: float = 1.0
    """Its share, against the weights of the others."""
    max_qps: float | None = None
    """At most so many messages a second, held smoothly."""
    burst: float | None = None
    max_in_flight: int | None = None
    """At most so many of its messages under way; else as many as leave others a quarter of their shares."""
    eligibilities: frozenset[str] | set[str] = frozenset()
    """Which plans its messages go through."""
    decoder: Any = None
    """A type that the JSON payload is read as, or a function of the bytes, or `bytes`; plain JSON if not given."""
    ordered: bool = False
    """Messages of one key one after the other."""
    delay: Duration = 0.0
    """Not before its messages are this old."""
    max_age: Duration | None = None
    """Messages older than this are dropped."""
    message_id: str | None = None
    """What makes two deliveries the same message: "key", or "header:NAME"."""
    enabled: bool = True

    def __post_init__(self) -> None:
        where = f"source {self.name or self.default_name}"
        put = msgspec.structs.force_setattr
        put(self, "name", self.name or self.default_name)
        if not self.weight > 0:
            raise ConfigError(f"{where}: a weight of {self.weight!r} would never let a message through")
        if self.max_qps is not None:
            put(self, "max_qps", parse_rate(self.max_qps, what=f"{where}, max_qps"))
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ConfigError(f"{where}: with max_in_flight={self.max_in_flight} no message would ever be sent")
        put(self, "delay", parse_duration(self.delay, what=f"{where}, delay"))
        if self.max_age is not None:
            put(self, "max_age", parse_duration(self.max_age, what=f"{where}, max_age"))
        put(self, "eligibilities", _words(self.eligibilities, where))
        if self.message_id not in (None, "key") and not str(self.message_id).startswith("header:"):
            raise ConfigError(f"{where}: message_id {self.message_id!r} is neither 'key' nor 'header:NAME'")

    @property
    def default_name(self) -> str:
        return type(self).__name__

    def tap(self, place: Place) -> Tap:
        raise NotImplementedError


def _words(given: Any, where: str) -> frozenset[str]:
    if isinstance(given, str):
        raise ConfigError(f"{where}: eligibilities={given!r} is one text; write a set, such as {{{given!r}}}")
    return frozenset(given)


def identify(source: Source, delivery: Delivery) -> str | None:
    """The message's id, by what its source says makes it one."""
    if delivery.id is not None or source.message_id is None:
        return delivery.id
    if source.message_id == "key":
        return None if delivery.key is None else delivery.key.decode(errors="replace")
    wanted = source.message_id.partition(":")[2]
    found = dict(delivery.headers or ()).get(wanted)
    return None if found is None else found.decode(errors="replace")


def headers_of(given: Mapping[str, Any] | None) -> tuple[tuple[str, bytes], ...] | None:
    """Headers as deliveries carry them."""
    if not given:
        return None
    return tuple((name, value if isinstance(value, bytes) else str(value).encode()) for name, value in given.items())


class Pause:
    """Waiting for news with a slow poll behind it; the wait doubles while nothing comes."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first
        self._news = asyncio.Event()

    def wake(self) -> None:
        self._news.set()

    def reset(self) -> None:
        self._next = self._first

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(self._next):
                await self._news.wait()
            self._next = self._first
        except TimeoutError:
            self._next = min(self._longest, self._next * 2)
        self._news.clear()
