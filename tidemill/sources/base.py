"""What every source declares, and the two ways to read one that is open.

A declaration such as `KafkaSource("posts")` is plain data and opens nothing. A stream and a monitor take the same
declaration. Each kind of source implements one of two interfaces, or both:

    reader(context) -> PageReader        pages of records from a position: files, tables, HTTP APIs
    consumer(context) -> Consumer    records that are acknowledged: brokers, the PostgreSQL log

Streams use consumers and monitors use readers; `tidemill.sources.opening` turns each of them into the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from tidemill.core.codec import storable
from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.sources.delivery import MOST_TIME, Delivery
from tidemill.store.database import Database, Executor
from tidemill.store.schemas import identifier

Begin = Literal["earliest", "latest"]
ORIGIN_HEADER = "tidemill-origin"
MOST_ORIGIN = 1000  # characters
NEAR = 0.1  # seconds between the polls of a monitor that brought events, for sources that polls cost little


class SourceError(TidemillError):
    """A source that cannot be read: it does not answer, its answer makes no sense, or its settings do not fit it."""


class FencedError(TidemillError):
    """Another process has taken over these messages or this position; the result of this one must not count."""


class Source(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """What every source declares. Options from `weight` on are for streams; monitors read `id` and `time`."""

    name: str = ""
    """Its name in statistics and commands; by default the topic, file or table."""
    id: str = "id"
    """The field of a JSON record with its unique id."""
    time: str | Sequence[str] = "at"
    """The field of a JSON record with its time; several names are tried in order."""
    page: int = 500
    """How many records are read at once."""
    weight: float = 1.0
    """Its share relative to the weights of the other sources of a stream."""
    max_qps: float | None = None
    """The maximum number of messages per second, spread evenly."""
    burst: float | None = None
    max_concurrency: int | None = None
    """The maximum number of its messages in flight; by default a quarter of the others' shares stays free."""
    eligibilities: frozenset[str] | set[str] = frozenset()
    """The plans that its messages go through."""
    eligibilities_from: str | None = None
    """Where a message says the plans that it goes through, instead: "header:NAME" or "field:NAME"."""
    decoder: Any = None
    """A type that the JSON payload is decoded to, a function of the bytes, or `bytes`; plain JSON by default."""
    ordered: bool = False
    """Process messages with the same key one after the other."""
    delay: Duration = 0.0
    """Process a message only when it is this old."""
    max_age: Duration | None = None
    """Drop messages older than this."""
    deadline: str | None = None
    """Where a message says until when its result is of use, in seconds since 1970 or as a time: "header:NAME" or
    "field:NAME". Then it is dropped, also while it runs."""
    message_id: str | None = None
    """What identifies a message that is delivered twice: "key", or "header:NAME"."""
    enabled: bool = True

    def __post_init__(self) -> None:
        where = f"source {self.name or self.default_name}"
        put = msgspec.structs.force_setattr
        put(self, "name", self.name or self.default_name)
        put(self, "time", (self.time,) if isinstance(self.time, str) else tuple(self.time))
        if self.page < 1:
            raise ConfigError(f"{where}: a page of {self.page} records would bring nothing")
        if not self.weight > 0:
            raise ConfigError(f"{where}: a weight of {self.weight!r} would never let a message through")
        if self.max_qps is not None:
            put(self, "max_qps", parse_rate(self.max_qps, what=f"{where}, max_qps"))
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"{where}: with max_concurrency={self.max_concurrency} no message would ever be sent")
        put(self, "delay", parse_duration(self.delay, what=f"{where}, delay"))
        if self.max_age is not None:
            put(self, "max_age", parse_duration(self.max_age, what=f"{where}, max_age"))
        put(self, "eligibilities", _words(self.eligibilities, where))
        if self.message_id not in (None, "key") and not str(self.message_id).startswith("header:"):
            raise ConfigError(f"{where}: message_id {self.message_id!r} is neither 'key' nor 'header:NAME'")
        for option in ("deadline", "eligibilities_from"):
            if (given := getattr(self, option)) is not None and given.partition(":")[0] not in ("header", "field"):
                raise ConfigError(f"{where}: {option} {given!r} is neither 'header:NAME' nor 'field:NAME'")
        if (begin := getattr(self, "begin", "earliest")) not in ("earliest", "latest"):
            raise ConfigError(f"{where}: begin={begin!r} is neither earliest nor latest")

    @property
    def default_name(self) -> str:
        return type(self).__name__


async def _finished(matches: Callable[[Delivery], bool]) -> None:
    """A reader that processes page by page has nothing in flight."""


class SourceContext(msgspec.Struct, frozen=True):
    """What a source is opened with."""

    name: str
    """The stream or monitor that reads. Consumer groups and stored positions carry this name."""
    owner: UUID
    """The process that reads; a position belongs to the last owner that opened it."""
    database: Database
    on_lost: Callable[[Callable[[Delivery], bool]], None] = lambda is_lost: None
    """Called with a test for deliveries that belong to another process now."""
    wait_finished: Callable[[Callable[[Delivery], bool]], Awaitable[None]] = _finished
    """Waits until no delivery that matches is being processed."""
    on_notify: Callable[[str, Callable[[], None]], None] = lambda topic, wake: None
    """Registers a callback for notifications about a topic of the PostgreSQL log, or the lease of a cursor."""

    def group(self, source: str, separator: str = ".") -> str:
        """The default name of a consumer group at a broker. Applications share brokers: the name begins with theirs."""
        application = self.database.application
        return separator.join([*([identifier(application)] if application else []), self.name, source])


# -- records with acknowledgements ------------------------------------------------------------------


class Consumer(Protocol):
    """An open source that gives messages and takes acknowledgements."""

    transactional: bool
    """Whether `commit` stores positions in our own database."""

    async def start(self) -> None:
        """Connect, and find out where to begin."""
        ...

    async def poll(self, most: int) -> list[Delivery]:
        """The next messages; waits a while if there are none."""
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done. The source may store this later."""
        ...

    async def flush(self) -> None:
        """Make all acknowledgements durable."""
        ...

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """These were not done, and this process will not do them."""
        ...

    async def commit(self, connection: Executor, deliveries: Sequence[Delivery]) -> None:
        """Store in the caller's transaction that these are done, if the consumer is transactional."""
        ...

    async def stop(self) -> None: ...

    async def lag(self) -> int | None:
        """How many messages are not read yet, where the source can tell."""
        ...


@runtime_checkable
class HasConsumer(Protocol):
    """A declaration whose messages are acknowledged at the source."""

    def consumer(self, context: SourceContext) -> Consumer: ...


# -- pages of records -------------------------------------------------------------------------------


class RecordPage(msgspec.Struct, frozen=True):
    """Some records, and whether everything up to the newest of them has been given."""

    records: list[Delivery]
    complete: bool = True
    """False while older records are still to come: for sources that give the newest first."""
    token: str | None = None
    """Where the source goes on after this page, for sources that have a position of their own."""
    by_place: bool = False
    """Whether a record without an id or a time of its own has those that its broker gave it."""
    positions: Mapping[int, int] = {}
    """For a source in partitions: where each goes on after this page."""
    read_until: Mapping[int, float] = {}
    """For a source in partitions: the time up to which each has been read with this page."""


@runtime_checkable
class PageReader(Protocol):
    """An open source that gives pages from a position, oldest first or newest first."""

    overlap: float
    """How far before the newest record to read again, at least."""
    overlap_most: float
    """And at most, however late records arrive."""

    def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
        """All records from a time on, or from where the token points.

        A reader may also say how soon it is asked again after events (`idle`, in seconds), and have a method `wait`
        that returns when there are more.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class PartitionReader(Protocol):
    """An open source in partitions, each with positions that only grow."""

    overlap: float
    overlap_most: float

    async def partitions(self) -> int:
        """How many there are; they are numbered from 0."""
        ...

    def read(self, positions: Mapping[int, int | None], now: float) -> AsyncIterator[RecordPage]:
        """All records of these partitions from these positions on (None: from where the source begins) up to now."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class HistoryReader(Protocol):
    """A reader that can give the past of one entity."""

    def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[RecordPage]:
        """The records of the entity from a time on; `token` is where an earlier attempt stopped."""
        ...


@runtime_checkable
class HasReader(Protocol):
    """A declaration that is read in pages."""

    def reader(self, context: SourceContext) -> PageReader | PartitionReader: ...


# -- what records say -------------------------------------------------------------------------------


class SourceEvent(msgspec.Struct, frozen=True):
    """A record as a monitor reads it: its id and time at the source, and its JSON."""

    id: str
    at: float
    data: Any
    raw: bytes
    trace: str | None = None
    """The W3C `traceparent` of the message that it came in."""
    origin: str | None = None
    """The work that published it, in words."""


def read_event(
    record: Delivery, id: str = "id", time: Sequence[str] = ("at",), *, by_place: bool = False, now: float = 0.0
) -> SourceEvent:
    """Read the id and the time of a record; a `ValueError` says what is missing.

    A record that its reader has given an id keeps that id and its time. With `by_place` a record without these fields
    is identified by its place at the broker, and its time is the broker's, or else `now`.
    """
    data = msgspec.json.decode(record.payload)
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    trace = None if record.headers is None else read_option("header:traceparent", record.headers, None)
    if record.id is not None:
        return SourceEvent(record.id, round(record.at, 6), data, record.payload, trace, origin_of(record))
    found = data.get(id)
    if found in (None, ""):
        if not by_place:
            raise ValueError(f"it has no {id!r}")
        found = record.place
    moment = next((data[name] for name in time if data.get(name) is not None), None)
    if moment is None:
        if not by_place:
            raise ValueError(f"it has no {' or '.join(repr(name) for name in time)}")
        moment = record.at or now
    return SourceEvent(str(found), read_time(moment), data, record.payload, trace, origin_of(record))


def read_time(value: Any) -> float:
    """Seconds since 1970 from a number or an ISO 8601 text; without a zone it is UTC. Exact to the microsecond."""
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a time")
    if isinstance(value, int | float):
        moment = float(value)
    else:
        try:
            read = datetime.fromisoformat(str(value))
        except ValueError:
            raise ValueError(f"{value!r} is not a time") from None
        moment = (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()
    if not -MOST_TIME < moment < MOST_TIME:
        raise ValueError(f"{value!r} is not a time in seconds")
    return round(moment, 6)


def identify(source: Source, delivery: Delivery) -> str | None:
    """The id by which a stream recognises a message that is delivered twice."""
    if delivery.id is not None or source.message_id is None:
        return delivery.id
    if source.message_id == "key":
        return None if delivery.key is None else storable(delivery.key.decode(errors="replace"))
    wanted = source.message_id.partition(":")[2]
    found = dict(delivery.headers or ()).get(wanted)
    return None if found is None else storable(found.decode(errors="replace"))


def read_option(where: str, headers: Sequence[tuple[str, bytes]] | None, value: Any) -> Any:
    """What a message says in a header or in a field of its value; None if it does not."""
    kind, _, name = where.partition(":")
    if kind == "header":
        found = dict(headers or ()).get(name)
        return None if found is None else bytes(found).decode(errors="replace")
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def origin_of(delivery: Delivery) -> str | None:
    """The work that published a message, in words; None if it is not known."""
    if delivery.origin is not None or delivery.headers is None:
        return delivery.origin
    found = read_option(f"header:{ORIGIN_HEADER}", delivery.headers, None)
    return None if found is None else storable(found[:MOST_ORIGIN])


def headers_of(given: Mapping[str, Any] | None) -> tuple[tuple[str, bytes], ...] | None:
    """Headers as deliveries carry them."""
    if not given:
        return None
    return tuple((name, value if isinstance(value, bytes) else str(value).encode()) for name, value in given.items())


class Backoff:
    """Waits for a notification, with a slow poll behind it: the wait doubles while nothing comes."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first
        self._notified = asyncio.Event()

    def wake(self) -> None:
        self._notified.set()

    def reset(self) -> None:
        self._next = self._first

    async def wait(self) -> None:
        try:
            async with asyncio.timeout(self._next):
                await self._notified.wait()
            self._next = self._first
        except TimeoutError:
            self._next = min(self._longest, self._next * 2)
        self._notified.clear()


def _words(given: Any, where: str) -> frozenset[str]:
    if isinstance(given, str):
        raise ConfigError(f"{where}: eligibilities={given!r} is one text; write a set, such as {{{given!r}}}")
    return frozenset(given)
