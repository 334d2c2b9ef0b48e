"""Clocks that are passed in as arguments, so that tests and simulations control the time.

`Clock` gives the wall clock (seconds since the epoch, UTC) and a monotonic clock. Programs get
`SYSTEM_CLOCK`; tests and the simulator pass a `VirtualClock` and move it by hand.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The clocks of the operating system."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class VirtualClock:
    """A clock that changes only when `advance` is called."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("a clock cannot go back")
        self._now += seconds


SYSTEM_CLOCK = SystemClock()
