"""A message on its way: what a source delivers, what the dispatcher keeps of it while it is under way."""

from __future__ import annotations

import msgspec


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
