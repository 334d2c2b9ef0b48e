"""What every sink declares, and how an open one is written to.

A declaration such as `KafkaSink("verdicts")` is plain data and opens nothing. A plan hands a value over with
`ctx.emit("verdicts", value)`; it is stored in the outbox together with the outcome of its message, and sent after that.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.core.retry import RetryPolicy, retry

MOST_ATTEMPTS = 8
SHOWN = 200  # characters of what a receiver answered, or of what cannot be sent
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
ID_HEADER = "tidemill-id"
"""The header that identifies an item: the same whenever it is sent again."""


class SinkItem(msgspec.Struct, frozen=True):
    """One value to send."""

    id: str
    """Identifies it at the receiver: it is the same when the item, or its message, is repeated."""
    payload: bytes
    key: str | None = None
    headers: Mapping[str, str] = {}


class ItemRefused(msgspec.Struct, frozen=True):
    """The receiver did not take an item; others may go on, except those of its key."""

    error: str
    is_final: bool = False
    """Whether another attempt would not help."""
    after: float | None = None
    """When the receiver wants to be asked again, in seconds."""


class Unreachable(msgspec.Struct, frozen=True):
    """The receiver cannot be reached, or takes nothing at all: the item waits, and no attempt is counted."""

    error: str


class Behind(msgspec.Struct, frozen=True):
    """It was not sent, because one of its key before it was not taken."""


#: What became of an item; None: the receiver has it.
SendResult = ItemRefused | Unreachable | Behind | None

BEHIND = Behind()


class Sender(Protocol):
    """An open sink."""

    async def send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        """Send items, those of a key in order; returns what became of each. It connects by itself."""
        ...

    async def close(self) -> None: ...


class Sink(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """What every sink declares."""

    name: str = ""
    """Its name in plans, statistics and commands; by default the topic, subject or key."""
    max_attempts: int = MOST_ATTEMPTS
    """How often an item is sent that the receiver refuses; then it becomes a dead letter."""
    enabled: bool = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "name", check_name("sink", self.name or self.default_name))
        if self.max_attempts < 1:
            raise ConfigError(f"sink {self.name}: with max_attempts={self.max_attempts} nothing would be sent")

    @property
    def default_name(self) -> str:
        return type(self).__name__

    @property
    def retry(self) -> RetryPolicy:
        """When an item that was refused is sent again."""
        return retry(self.max_attempts, backoff="500ms", cap="5m")

    def sender(self) -> Sender:
        raise ConfigError(f"sink {self.name}: {type(self).__name__} has no sender()")


def refuse_headers(headers: Mapping[str, str], *, encoding: str) -> ItemRefused | None:
    """Why a protocol with headers in lines cannot carry these; None if it can."""
    for name, value in headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            return ItemRefused(f"{name!r} cannot be the name of a header", is_final=True)
        if _CONTROL.search(value) is not None or value.encode(encoding, "ignore").decode(encoding) != value:
            return ItemRefused(f"header {name} cannot have the value {value[:SHOWN]!r}", is_final=True)
    return None


async def send_by_key(
    items: Sequence[SinkItem], send: Callable[[SinkItem], Awaitable[SendResult]], *, at_once: int
) -> list[SendResult]:
    """Send items one by one, those of a key in order and behind each other, those of several keys concurrently."""
    results: dict[str, SendResult] = {}
    chains: dict[str, list[SinkItem]] = {}
    for item in items:
        chains.setdefault(f"item {item.id}" if item.key is None else f"key {item.key}", []).append(item)
    slots = asyncio.Semaphore(at_once)

    async def send_chain(chain: Sequence[SinkItem]) -> None:
        result: SendResult = None
        for item in chain:
            if result is None or (isinstance(result, ItemRefused) and result.is_final):
                async with slots:
                    result = await send(item)
                results[item.id] = result
            else:
                results[item.id] = BEHIND

    async with asyncio.TaskGroup() as group:
        for chain in chains.values():
            group.create_task(send_chain(chain))
    return [results[item.id] for item in items]
