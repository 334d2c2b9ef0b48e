"""The limits of a source as its lane keeps them, and which of them holds its messages back."""

from __future__ import annotations

import math

from tidemill.streams.reducer.fair_share import Lane
from tidemill.streams.reducer.source_limits import SourceLimits
from tidemill.streams.reducer.token_bucket import TokenBucket


def apply_limits(lane: Lane, limits: SourceLimits, now: float) -> None:
    """Let a source send as its settings say now."""
    lane.enabled, lane.weight = limits.enabled, limits.weight
    rate, burst = limits.rate_here
    if rate is None or math.isinf(rate):
        lane.bucket = None
    elif lane.bucket is None:
        lane.bucket = TokenBucket(rate, burst, now=now)
    else:
        lane.bucket.change(rate, now, burst)


def what_holds(lane: Lane, room: int, free: int, now: float) -> str:
    """What the waiting messages of a source wait for: its limits, a free slot, or only their turn."""
    if not lane.enabled:
        return "enabled"
    if free <= 0:
        return "slot"
    if room <= 0:
        return "max_concurrency"
    if lane.bucket is not None and not lane.bucket.available(now):
        return "limit"
    return "delay" if lane.held_until > now else "turn"
