"""The clock of a test: the real time plus a shift."""

from __future__ import annotations

import asyncio
import time

from tidemill.core.clock import SystemClock


class ShiftedTime:
    """The real time plus a shift, in this process: `time.time()`, Tidemill's clock, and the timers of event loops."""

    def __init__(self) -> None:
        self.shift = 0.0
        self._time, self._monotonic = time.time, time.monotonic
        self._loops: list[asyncio.AbstractEventLoop] = []

    def __enter__(self) -> ShiftedTime:
        time.time = self.now
        SystemClock.now = staticmethod(self.now)
        return self

    def __exit__(self, *_: object) -> None:
        time.time = self._time
        SystemClock.now = staticmethod(self._time)
        for loop in self._loops:
            del loop.time

    def now(self) -> float:
        return self._time() + self.shift

    def control(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the timers of a loop follow the shift."""
        if loop not in self._loops:
            self._loops.append(loop)
            loop.time = lambda: self._monotonic() + self.shift

    def move(self, seconds: float) -> None:
        """Move forward, and let the loops see it."""
        self.shift += seconds
        for loop in self._loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_nothing)


def _nothing() -> None:
    pass
