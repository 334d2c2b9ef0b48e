"""What happens to a message that did not simply succeed: some plans are retried later, others are given up."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.core.retry import GiveUp, RetryPolicy, decide
from tidemill.sources.delivery import Delivery
from tidemill.streams.definition.message import MessageFailure

MOST_NAMED = 5


class RetryLater(msgspec.Struct, frozen=True):
    """Retry these plans after `delay` seconds."""

    delay: float
    attempts: int
    losses: int
    plans: tuple[str, ...] | None
    error: str
    stays: bool = False
    """It stays with this dispatcher, because messages of its key wait behind it; only its attempts are stored."""


class NewDeadLetter(msgspec.Struct, frozen=True):
    """Give the message up for these plans: it becomes a dead letter."""

    why: str
    attempts: int
    plans: tuple[str, ...] | None
    kind: str
    error: str


class MessageOutcome(msgspec.Struct):
    """What to store about a message; without a retry and a dead letter it has succeeded."""

    delivery: Delivery
    retry: RetryLater | None = None
    dead: NewDeadLetter | None = None

    @property
    def succeeded(self) -> bool:
        return self.retry is None and self.dead is None

    @property
    def stays(self) -> bool:
        return self.retry is not None and self.retry.stays


def decide_outcome(
    delivery: Delivery, failures: Sequence[MessageFailure], retry: RetryPolicy, *, stays: bool
) -> MessageOutcome:
    """Decide which of the failed plans are retried, and when, and which are given up."""
    again: list[MessageFailure] = []
    final: list[tuple[MessageFailure, str]] = []
    delay, counted = 0.0, False
    for failure in failures:
        if failure.verdict == "snooze":
            again.append(failure)
            delay = max(delay, failure.after or 0.0)
            continue
        if failure.verdict == "discard":
            final.append((failure, failure.error))
            continue
        counted = True
        verdict = decide(
            retry,
            failures=delivery.attempt,
            error=failure.lineage or (failure.kind,),
            retry_after=failure.after,
            seed=delivery.position * 31 + delivery.part,
        )
        if isinstance(verdict, GiveUp):
            final.append((failure, f"{failure.error} ({verdict.reason})"))
        else:
            again.append(failure)
            delay = max(delay, verdict.delay)
    outcome = MessageOutcome(delivery)
    if again:
        outcome.retry = RetryLater(
            delay,
            delivery.attempt + counted,
            delivery.losses,
            tuple(failure.plan for failure in again),
            "; ".join(f"{failure.plan}: {failure.kind}: {failure.error}" for failure in again),
            stays,
        )
    if final:
        outcome.dead = NewDeadLetter(
            "failed",
            delivery.attempt,
            tuple(failure.plan for failure, _ in final),
            final[0][0].kind,
            "; ".join(f"{failure.plan}: {failure.kind}: {words}" for failure, words in final),
        )
    return outcome


def suspects_text(suspects: Sequence[Delivery], sources: Sequence[str]) -> str | None:
    """Which messages have ended engines, or may have, for people; None if there are none."""
    guilty = [each for each in suspects if each.losses]
    named = ", ".join(sorted(f"{sources[each.source]}:{each.place}" for each in guilty or suspects)[:MOST_NAMED])
    if guilty:
        return f"{_messages(len(guilty), 'has', 'have')} ended an engine: {named}"
    return f"{_messages(len(suspects), 'may', 'may')} have ended an engine: {named}" if suspects else None


def _messages(count: int, one: str, many: str) -> str:
    return f"1 message {one}" if count == 1 else f"{count} messages {many}"


def lost(delivery: Delivery, why: str) -> MessageOutcome:
    """The outcome of a message whose engines have died too often."""
    error = f"its engine died {delivery.losses} times while running nothing but it; the last time: {why}"
    return MessageOutcome(delivery, dead=NewDeadLetter("lost", delivery.attempt, delivery.plans, "Lost", error))
