"""A message on its way: what a source delivers, what the dispatcher keeps of it while it is under way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Delivery(msgspec.Struct, gc=False):
    """One message as its source delivered it, and what has happened to it since.

    The first fields are the source's; `part` and `position` say which message it is there.
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
    """Whatever its source needs to recognise it."""
    retry_row: int | None = None
    """The row that it was kept in while it waited for this attempt."""
    noted: bool = False
    """Its attempts are noted in the database, though its source still holds it."""
    not_before: float = 0.0
    """When its next attempt is due, in seconds since 1970."""
    source: int = 0
    followers: list[Any] | None = None
    """Deliveries of the same message that arrived while this one was under way; they share its fate."""

    @property
    def place(self) -> str:
        """Which message of its source it is, for people."""
        return f"{self.part}:{self.position}"


def size_of(deliveries: Iterable[Delivery]) -> int:
    """How many bytes these have, all together."""
    return sum([len(each.payload) for each in deliveries])


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """Why a plan failed for a message. `lineage` are the classes of the error, nearest first."""

    plan: str
    kind: str
    error: str
    lineage: tuple[str, ...] = ()
    after: float | None = None
    """What a `RetryAfter` or `Snooze` asked for, in seconds."""
    verdict: str = ""
    """"snooze" costs no attempt, "discard" is final, otherwise the retry policy decides."""


class HandOver(msgspec.Struct, frozen=True, array_like=True):
    """Something to store with a message's completion: a job, a statement, a log entry, an event for a run, a state."""

    kind: str
    body: bytes
    """As JSON, or the payload of a log entry, or the content of a state."""
    name: str = ""
    key: str | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What an engine says of a message that did not simply succeed."""

    ticket: int
    status: str
    """ok, failed, undecodable or expired."""
    failures: tuple[Failure, ...] = ()
    handed: tuple[HandOver, ...] = ()
    result: bytes | None = None
    """For a live request: its result as JSON."""
