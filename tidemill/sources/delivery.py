"""One record of a source, with what its reader needs to know about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

MOST_TIME = 1e11  # seconds since 1970; beyond it, a time is in another unit


class Delivery(msgspec.Struct, gc=False):
    """One message as its source delivered it, and what has happened to it since.

    The first fields belong to the source; `part` and `position` identify the message there.
    """

    payload: bytes
    position: int = 0
    part: int = 0
    at: float = 0.0
    """When it was sent, in seconds since 1970; 0 if the source does not know."""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] | None = None
    id: str | None = None
    deadline: float | None = None
    attempt: int = 1
    losses: int = 0
    plans: tuple[str, ...] | None = None
    """Only these plans are left to run; None for all."""
    token: Any = None
    """What its source needs to recognise it."""
    retry_row: int | None = None
    """The row that holds it while it waits for this attempt."""
    noted: bool = False
    """Its attempts are stored in the database, although its source still holds the message."""
    not_before: float = 0.0
    """When its next attempt is due, in seconds since 1970."""
    source: int = 0
    followers: list[Any] | None = None
    """Deliveries of the same message that arrived while this one was in flight; they get the same outcome."""
    history: list[Any] | None = None
    """Its failed attempts so far, for people."""
    suspicions: int = 0
    """How often its engine has died while it ran other messages too."""
    arrived: float = 0.0
    """When the dispatcher took it for this attempt, in seconds since 1970."""
    for_key: float = 0.0
    """How many seconds it has waited for its key; while it waits, minus the time at which that began."""
    origin: str | None = None
    """The work that published it, in words, if its source stores that."""

    @property
    def place(self) -> str:
        """Which message of its source it is, for people."""
        return f"{self.part}:{self.position}"


def size_of(deliveries: Iterable[Delivery]) -> int:
    """The number of bytes of these payloads together."""
    return sum([len(each.payload) for each in deliveries])
