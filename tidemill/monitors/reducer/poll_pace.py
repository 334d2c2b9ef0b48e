"""How long to wait before the next poll: pure.

Activity keeps the pause short, quiet lets it grow, failures make it grow further. Five failures in a row make the
source UNHEALTHY; the first success makes it healthy again.
"""

from __future__ import annotations

import msgspec

from tidemill.core.duration import jitter_fraction

UNHEALTHY_AFTER = 5
GROWTH = 1.5


class Limits(msgspec.Struct, frozen=True):
    """The bounds of the pauses, in seconds."""

    idle: float = 0.5
    idle_max: float = 5.0
    failure_max: float = 30.0


class Pace(msgspec.Struct, frozen=True):
    """Where the polling stands: the pause to come, and how many polls have failed in a row."""

    pause: float
    failures: int = 0
    error: str | None = None

    @property
    def healthy(self) -> bool:
        return self.failures < UNHEALTHY_AFTER


def start(limits: Limits) -> Pace:
    return Pace(limits.idle)


def after_success(pace: Pace, limits: Limits, *, active: bool) -> Pace:
    """After a poll that was answered, with or without events."""
    if active or pace.failures:
        return Pace(limits.idle)
    return Pace(min(pace.pause * GROWTH, limits.idle_max))


def after_failure(pace: Pace, limits: Limits, error: str, *, seed: str = "") -> Pace:
    """After a poll that failed: twice the pause each time, spread a little so that many do not come back at once."""
    failures = pace.failures + 1
    pause = min(limits.failure_max, limits.idle * 2.0 ** min(failures, 16))
    return Pace(pause * (1 - 0.2 * jitter_fraction(seed, failures)), failures, error)
