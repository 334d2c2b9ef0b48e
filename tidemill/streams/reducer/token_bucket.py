"""A rate limit without bursts: a bucket that fills steadily, from which each message takes one token.

By default a bucket holds the tokens of a fiftieth of a second, so that any second, wherever it begins, sees hardly more
than the rate. `ready_at` says when an empty bucket has tokens again, so that no caller has to poll it.
"""

from __future__ import annotations

import math

BURST_SECONDS = 0.02


class TokenBucket:
    """Gains `rate` tokens per second and holds at most `burst`. Time is passed in."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float | None = None, *, now: float = 0.0) -> None:
        self.rate = rate
        self.burst = max(1.0, rate * BURST_SECONDS) if burst is None else max(1.0, burst)
        self.tokens = self.burst if rate else 0.0
        self.at = now

    def available(self, now: float) -> int:
        """The number of whole tokens."""
        self._refill(now)
        return int(self.tokens + 1e-9)

    def take(self, count: int, now: float) -> None:
        """Take tokens that are available."""
        self._refill(now)
        self.tokens -= count

    def ready_at(self, now: float, wanted: float = 1.0) -> float:
        """When the bucket will hold this many tokens, or be full."""
        self._refill(now)
        missing = min(wanted, self.burst) - self.tokens
        if missing <= 1e-9:
            return now
        return now + missing / self.rate if self.rate else math.inf

    def change(self, rate: float, now: float, burst: float | None = None) -> None:
        """Change the rate, without causing a burst. A rate of 0 lets nothing through."""
        self._refill(now)
        self.rate = rate
        self.burst = max(1.0, rate * BURST_SECONDS) if burst is None else max(1.0, burst)
        self.tokens = min(self.tokens, self.burst if rate else 0.0)

    def _refill(self, now: float) -> None:
        if now > self.at:
            self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
            self.at = now
