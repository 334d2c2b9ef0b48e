"""Statistics of a plan in an engine: counts, and durations in buckets of doubling width, which can be added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_BUCKETS = 28  # from 1 µs to more than a minute


class PlanStatistics(msgspec.Struct):
    """The statistics of a plan since the engine started."""

    done: int = 0
    failed: int = 0
    filtered: int = 0
    seconds: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * _BUCKETS)
    reasons: dict[str, int] = {}
    """How often messages were filtered for each reason, for the first twenty reasons."""

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1

    def filtered_for(self, reason: str) -> None:
        self.filtered += 1
        if reason in self.reasons or len(self.reasons) < 20:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


def percentile(buckets: Iterable[int], share: float) -> float | None:
    """The duration in seconds below which this share lies, estimated from the buckets; None if they are empty."""
    counts = list(buckets)
    wanted = share * sum(counts)
    if not wanted:
        return None
    for power, count in enumerate(counts):
        wanted -= count
        if wanted <= 0:
            low, high = (2 ** (power - 1) if power else 0), 2**power
            return (low + (high - low) * (1 + wanted / count)) / 1e6
    return None


def add(into: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Add the statistics of one engine to those of others."""
    for name, value in more.items():
        if isinstance(value, dict):
            into[name] = add(into.get(name, {}), value)
        elif isinstance(value, list):
            into[name] = [left + right for left, right in zip(into.get(name) or [0] * len(value), value, strict=True)]
        else:
            into[name] = into.get(name, 0) + value
    return into
