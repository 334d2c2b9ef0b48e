"""Figures of a plan in an engine: how many, how long. Latencies go into buckets that double, which add up anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_BUCKETS = 28  # from 1 µs to more than a minute


class PlanFigures(msgspec.Struct):
    """Since the engine began."""

    done: int = 0
    failed: int = 0
    filtered: int = 0
    seconds: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * _BUCKETS)
    reasons: dict[str, int] = {}
    """Why messages were filtered, for the first reasons that were given."""

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        self.buckets[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1

    def filtered_for(self, reason: str) -> None:
        self.filtered += 1
        if reason in self.reasons or len(self.reasons) < 20:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1


def percentile(buckets: Iterable[int], share: float) -> float | None:
    """Seconds below which this share lies, as well as the buckets tell; None without any."""
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
    """Figures of two engines as one."""
    for name, value in more.items():
        if isinstance(value, dict):
            into[name] = add(into.get(name, {}), value)
        elif isinstance(value, list):
            into[name] = [left + right for left, right in zip(into.get(name) or [0] * len(value), value, strict=True)]
        else:
            into[name] = into.get(name, 0) + value
    return into
