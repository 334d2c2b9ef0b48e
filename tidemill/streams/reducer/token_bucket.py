"""A smooth rate: a bucket that fills steadily, from which each message takes one token.

A bucket holds little (a fiftieth of a second's worth unless told otherwise), so that no second, wherever it begins,
sees noticeably more than the rate. Whoever finds it empty is told when it is not, and never has to look before.
"""

from __future__ import annotations

import math

BURST_SECONDS = 0.02


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them kept. Time is passed in."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float | None = None, *, now: float = 0.0) -> None:
        self.rate = rate
        self.burst = max(1.0, rate * BURST_SECONDS) if burst is None else max(1.0, burst)
        self.tokens = self.burst
        self.at = now

    def available(self, now: float) -> int:
        """How many whole tokens there are."""
        self._refill(now)
        return int(self.tokens + 1e-9)

    def take(self, count: int, now: float) -> None:
        """Take tokens that are there."""
        self._refill(now)
        self.tokens -= count

    def ready_at(self, now: float, wanted: float = 1.0) -> float:
        """When there will be this many tokens, or as many as it can hold."""
        self._refill(now)
        missing = min(wanted, self.burst) - self.tokens
        return now if missing <= 1e-9 else now + missing / self.rate

    def change(self, rate: float, now: float) -> None:
        """Another rate from now on; no burst follows from the change."""
        self._refill(now)
        self.rate = rate
        self.burst = max(1.0, rate * BURST_SECONDS)
        self.tokens = min(self.tokens, self.burst)

    def _refill(self, now: float) -> None:
        if now > self.at:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now


def bucket_for(rate: float | None, burst: float | None = None, *, now: float = 0.0) -> TokenBucket | None:
    """A bucket, or None where there is no limit."""
    return None if not rate or math.isinf(rate) else TokenBucket(rate, burst, now=now)
