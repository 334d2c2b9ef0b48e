"""Collects garbage in an engine process on a period, and measures how long that takes.

A full collection looks at every object, models included, and stops all messages meanwhile. What exists when the engine
is ready is therefore left out, and Python's own full collections are put off: one happens on the period instead.
"""

from __future__ import annotations

import gc
import time

import msgspec

_PUT_OFF = 1_000_000  # collections of the middle generation before Python starts a full one by itself


class CollectedGarbage(msgspec.Struct, array_like=True):
    """The full collections of an engine since its start."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0


class GarbageCollector:
    """Collects on a period."""

    def __init__(self, period: float) -> None:
        self.total = CollectedGarbage()
        self._period = period
        self._due = time.monotonic() + period
        gc.collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _PUT_OFF)

    def collect_if_due(self) -> None:
        began = time.monotonic()
        if began < self._due:
            return
        gc.collect()
        now = time.monotonic()
        took = now - began
        self._due = now + self._period
        self.total = CollectedGarbage(self.total.count + 1, self.total.seconds + took, max(self.total.longest, took))


def add_garbage(left: CollectedGarbage, right: CollectedGarbage) -> CollectedGarbage:
    """The collections of two engines together."""
    return CollectedGarbage(left.count + right.count, left.seconds + right.seconds, max(left.longest, right.longest))
