"""A circuit breaker: when a dependency fails too often, it is not called for a while.

Closed: calls pass and are counted over a sliding window. Open: no call passes for `rest` seconds. Half-open: a few
probes pass; if enough of them succeed it closes, and the first failure opens it again. Pure: time is passed in.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError

_SLOTS = 12

State = Literal["closed", "open", "half-open"]


class BreakerRule(msgspec.Struct, frozen=True):
    """When a breaker opens: at this share of failures over `window` seconds, once there were `least` calls."""

    failures: float = 0.5
    window: Duration = 60.0
    least: int = 20
    rest: Duration = 15.0
    probes: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.failures <= 1:
            raise ConfigError(f"breaker failures: {self.failures!r} is not a share above 0 and up to 1")
        if self.least < 1 or self.probes < 1:
            raise ConfigError("breaker least and probes: at least one call is needed")
        for name in ("window", "rest"):
            seconds = parse_duration(getattr(self, name), what=f"breaker {name}")
            if seconds <= 0:
                raise ConfigError(f"breaker {name}: it must be longer than 0")
            msgspec.structs.force_setattr(self, name, seconds)


class Breaker:
    """The breaker of one dependency."""

    def __init__(self, name: str, rule: BreakerRule | None = None) -> None:
        self.name = name
        self.rule = rule or BreakerRule()
        self._window, self._rest = parse_duration(self.rule.window), parse_duration(self.rule.rest)
        self._slot = self._window / _SLOTS
        self._counts: list[list[float]] = []  # [start of the slot, calls, failures], oldest first
        self._opened_at: float | None = None
        self._probing = 0
        self._passed = 0

    def state(self, now: float) -> State:
        if self._opened_at is None:
            return "closed"
        return "open" if now < self._opened_at + self._rest else "half-open"

    def wait(self, now: float) -> float | None:
        """None if a call may pass now, which counts it as started; otherwise how long to wait."""
        if self._opened_at is None:
            return None
        left = self._opened_at + self._rest - now
        if left > 0:
            return left
        if self._probing >= self.rule.probes - self._passed:
            return self._slot  # Enough probes are running; their results decide.
        self._probing += 1
        return None

    def record(self, ok: bool, now: float) -> None:
        """Record the result of a call."""
        if self._opened_at is not None:
            self._record_probe(ok, now)
            return
        if not self._counts or now >= self._counts[-1][0] + self._slot:
            self._counts.append([now, 0, 0])
        self._counts[-1][1] += 1
        self._counts[-1][2] += not ok
        while self._counts and self._counts[0][0] <= now - self._window:
            self._counts.pop(0)
        calls, failures = sum(slot[1] for slot in self._counts), sum(slot[2] for slot in self._counts)
        if not ok and calls >= self.rule.least and failures / calls >= self.rule.failures:
            self._open(now)

    def abandon(self) -> None:
        """A call was cancelled: it says nothing about the dependency."""
        if self._opened_at is not None and self._probing:
            self._probing -= 1

    def _record_probe(self, ok: bool, now: float) -> None:
        if self.state(now) == "open":
            return  # The call started before the breaker opened.
        self._probing = max(0, self._probing - 1)
        if not ok:
            self._open(now)
            return
        self._passed += 1
        if self._passed >= self.rule.probes:
            self._opened_at, self._passed, self._probing = None, 0, 0

    def _open(self, now: float) -> None:
        self._opened_at, self._passed, self._probing = now, 0, 0
        self._counts.clear()
