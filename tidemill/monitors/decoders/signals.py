"""Small decoders of numbers and times: each is plain data with a step, to be kept in an entity's state."""

from __future__ import annotations

import math

import msgspec

from tidemill.core.errors import ConfigError


class Hysteresis(msgspec.Struct):
    """On at or above `high`, off at or below `low`, and as it was in between."""

    high: float
    low: float
    on: bool = False
    since: float | None = None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"what is left at {self.low} must be reached at that or above, not at {self.high}")

    def step(self, value: float, at: float) -> bool:
        """Take one more value; `since` is when it went on."""
        was = self.on
        self.on = value >= self.high or (was and value > self.low)
        if not self.on:
            self.since = None
        elif not was:
            self.since = at
        return self.on


class Ewma(msgspec.Struct):
    """An average that forgets: what is `half_life` seconds old counts half. Knows its spread, too."""

    half_life: float
    mean: float = 0.0
    variance: float = 0.0
    at: float | None = None

    def step(self, value: float, at: float) -> float:
        """Take one more value; returns the average."""
        if self.at is None:
            self.mean = value
        else:
            weight = 1 - 0.5 ** (max(0.0, at - self.at) / self.half_life)
            off = value - self.mean
            self.mean += weight * off
            self.variance = (1 - weight) * (self.variance + weight * off * off)
        self.at = at if self.at is None else max(at, self.at)
        return self.mean

    def deviation(self, value: float) -> float:
        """By how many standard deviations a value differs from the average; 0 as long as there is no spread."""
        return (value - self.mean) / math.sqrt(self.variance) if self.variance > 0 else 0.0


class Rate(msgspec.Struct):
    """How often something happens, per second over the last `window` seconds, and how long it has been silent."""

    window: float
    times: list[float] = []

    def step(self, at: float) -> float:
        """Count one more event; returns the rate."""
        self.times.append(at)
        return self.rate(at)

    def rate(self, now: float) -> float:
        """The rate now."""
        while self.times and self.times[0] <= now - self.window:
            del self.times[0]
        return len(self.times) / self.window

    def silence(self, now: float) -> float:
        """Seconds since it last happened; without end if it never did."""
        return now - self.times[-1] if self.times else math.inf
