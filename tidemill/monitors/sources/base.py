"""What a monitor asks of a source of events.

class Source(Protocol):
    def pages(self, since, token, limit): ...          # an async iterator of pages, from a time on

A page carries events, and what to remember once they are stored. Sources that give the newest first cannot say how far
they have come before the last page: their pages carry no `settled`, but the last one does.

A source in parts, such as the partitions of a topic, is `Parted`: the processes that follow a monitor share its parts,
as they share the entities.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.monitors.reducer.state import pick


class SourceError(TidemillError):
    """A source that did not answer, or whose answer cannot be understood."""


class Incoming(msgspec.Struct, frozen=True):
    """An event as it came: its id and time at the source, and its JSON."""

    id: str
    at: float
    data: Any
    raw: bytes


class Page(msgspec.Struct, frozen=True):
    """Some events, and whether everything up to the newest of them has been given."""

    events: list[Incoming]
    settled: bool = True
    token: str | None = None
    unreadable: tuple[str, ...] = ()
    positions: Mapping[int, int] = {}
    """Of a source in parts: where each goes on once this is stored."""
    heard: Mapping[int, float] = {}
    """And up to which moment each has been read then."""


@runtime_checkable
class Source(Protocol):
    """Where events come from."""

    overlap: float
    """How far before the cursor to ask, at least."""
    overlap_most: float
    """And at most, however late events come."""

    def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[Page]:
        """Everything from a time on, or from where the token points."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Parted(Protocol):
    """A source in parts, each with positions of its own that only grow."""

    overlap: float
    overlap_most: float

    async def parts(self) -> int:
        """How many there are; they are counted from 0."""
        ...

    def read(self, positions: Mapping[int, int | None], now: float) -> AsyncIterator[Page]:
        """Everything in these parts from these positions on, or from the beginning, and then up to now."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Backfilling(Protocol):
    """A source that can give the past of one entity."""

    def history(self, entity: str, since: float, token: str | None) -> AsyncIterator[Page]:
        """Its events from a time on; `token` is where an earlier attempt has come to."""
        ...


def read_incoming(raw: bytes | memoryview, *, id: str, time: tuple[str, ...]) -> Incoming:
    """An event from its JSON; a `ValueError` says what is missing."""
    data = msgspec.json.decode(raw)
    if not isinstance(data, Mapping):
        raise ValueError("it is not a JSON object")
    if data.get(id) in (None, ""):
        raise ValueError(f"it has no {id!r}")
    moment = next((data[name] for name in time if data.get(name) is not None), None)
    if moment is None:
        raise ValueError(f"it has no {' or '.join(repr(name) for name in time)}")
    return Incoming(str(pick(data, id)), read_time(moment), data, bytes(raw))


def read_message(payload: bytes, *, id: str, time: tuple[str, ...], place: str, at: float) -> Incoming:
    """An event from a message: its id and time as it says, else its place and time at the broker."""
    data = msgspec.json.decode(payload)
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    moment = next((data[name] for name in time if data.get(name) is not None), at)
    return Incoming(str(data.get(id) or place), read_time(moment), data, bytes(payload))


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
    if not -1e11 < moment < 1e11:
        raise ValueError(f"{value!r} is not a time in seconds")
    return round(moment, 6)
