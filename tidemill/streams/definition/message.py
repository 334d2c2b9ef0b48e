"""What dispatcher and engines exchange about a message: failures, its outbox, its answer."""

from __future__ import annotations

import msgspec


class MessageFailure(msgspec.Struct, frozen=True, array_like=True):
    """Why a plan failed for a message. `lineage` are the classes of the error, nearest first."""

    plan: str
    kind: str
    error: str
    lineage: tuple[str, ...] = ()
    after: float | None = None
    """The delay that a `RetryAfter` or `Snooze` asked for, in seconds."""
    verdict: str = ""
    """"snooze" costs no attempt, "discard" is final, "expired" ends the plan, otherwise the retry policy decides."""
    traceback: str = ""
    lines: bytes = b""
    """What the plan logged, as a JSON array."""
    seconds: float = 0.0


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt at a message that failed in one plan."""

    attempt: int
    plan: str
    kind: str
    error: str
    at: float = 0.0
    engine: str = ""
    """The process that ran it."""
    seconds: float = 0.0
    traceback: str = ""
    lines: msgspec.Raw | None = None
    """What the plan logged."""
    waited: dict[str, float] | None = None
    """How many seconds it has waited before this attempt, by where."""


class OutboxItem(msgspec.Struct, frozen=True, array_like=True):
    """One item to store with the completion of a message: a job, a statement, a log entry, an event, a state, or
    something for a sink."""

    kind: str
    body: bytes
    """As JSON, or the payload of a log entry or for a sink, or the content of a state."""
    name: str = ""
    key: str | None = None
    id: str | None = None
    """For a sink: what identifies the item there. Of a log entry and a state: the message, in words."""
    headers: dict[str, str] | None = None


class EngineAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of an engine about a message that did not simply succeed."""

    ticket: int
    status: str
    """ok, failed, undecodable or expired."""
    failures: tuple[MessageFailure, ...] = ()
    outbox: tuple[OutboxItem, ...] = ()
    result: bytes | None = None
    """For a live request: its result as JSON."""
