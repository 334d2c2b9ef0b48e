"""How long to wait before the next poll. Pure.

Events keep the pause short, quiet polls lengthen it, failures back off further. Five failures in a row make the source
UNHEALTHY; the first success makes it healthy again.
"""

from __future__ import annotations

import msgspec

from tidemill.core.duration import jitter_fraction

UNHEALTHY_AFTER = 5
GROWTH = 1.5


class PollLimits(msgspec.Struct, frozen=True):
    """The limits of the pauses, in seconds."""

    idle: float = 0.5
    idle_max: float = 5.0
    failure_max: float = 30.0
    failure_first: float = 0.5
    """Half of the pause after the first failure."""


class PollPace(msgspec.Struct, frozen=True):
    """The next pause, and how many polls have failed in a row."""

    pause: float
    failures: int = 0
    error: str | None = None

    @property
    def healthy(self) -> bool:
        return self.failures < UNHEALTHY_AFTER


def start(limits: PollLimits) -> PollPace:
    return PollPace(limits.idle)


def after_success(pace: PollPace, limits: PollLimits, *, active: bool) -> PollPace:
    """The pace after a successful poll, with or without events."""
    if active or pace.failures:
        return PollPace(limits.idle)
    return PollPace(min(pace.pause * GROWTH, limits.idle_max))


def after_failure(pace: PollPace, limits: PollLimits, error: str, *, seed: str = "") -> PollPace:
    """The pace after a failed poll: the pause doubles, with jitter so that many monitors do not retry at once."""
    failures = pace.failures + 1
    pause = min(limits.failure_max, limits.failure_first * 2.0 ** min(failures, 16))
    return PollPace(pause * (1 - 0.2 * jitter_fraction(seed, failures)), failures, error)
