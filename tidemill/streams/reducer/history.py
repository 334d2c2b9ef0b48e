"""The history of a message: its failed attempts, the deaths of its engines, and how long it waited before each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.sources.delivery import Delivery
from tidemill.streams.definition.message import FailedAttempt, MessageFailure

MOST_HISTORY = 20


def note_attempts(delivery: Delivery, failures: Sequence[MessageFailure], engine: str, at: float) -> None:
    """Add failures to the history of a message, of which the last ones are kept."""
    new = [
        FailedAttempt(
            delivery.attempt, each.plan, each.kind, each.error, at, engine, round(each.seconds, 4), each.traceback,
            msgspec.Raw(each.lines) if each.lines else None, _waited(delivery, at - each.seconds),
        )
        for each in failures
        if each.verdict != "snooze"
    ]  # fmt: skip
    _add_attempts(delivery, new, at)


def note_loss(delivery: Delivery, why: str, engine: str, at: float, *, alone: bool) -> None:
    """Add the death of its engine to the history of a message."""
    error = f"its engine died: {why}" if alone else f"its engine died while it ran other messages, too: {why}"
    plans = ", ".join(delivery.plans or ())
    _add_attempts(delivery, [FailedAttempt(delivery.attempt, plans, "Lost", error, at, engine)], at)


def _add_attempts(delivery: Delivery, new: Sequence[FailedAttempt], at: float) -> None:
    delivery.history = [*(delivery.history or ()), *new][-MOST_HISTORY:] or None
    delivery.arrived, delivery.for_key = at, 0.0  # Waiting from now on belongs to the next attempt.


def _waited(delivery: Delivery, began: float) -> dict[str, float] | None:
    """How long a message has waited before an attempt that began then: at its source, here, and for its key."""
    if not delivery.arrived:
        return None
    waited = {"dispatcher": began - delivery.arrived, "key": delivery.for_key}
    if delivery.retry_row is None and delivery.attempt == 1 and delivery.at:
        waited["source"] = delivery.arrived - delivery.at
    return {where: round(seconds, 3) for where, seconds in waited.items() if seconds >= 0.001} or None
