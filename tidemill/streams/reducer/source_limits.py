"""What the reducer keeps of each source: its limits and its counts; and what it chooses to send."""

from __future__ import annotations

import math

import msgspec

from tidemill.sources.delivery import Delivery


class SourceCounts(msgspec.Struct):
    """How many messages of one source have had each outcome."""

    arrived: int = 0
    sent: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0
    duplicates: int = 0
    lost: int = 0


class SourceLimits(msgspec.Struct):
    """The settings of a source as they are now, and the part of its limits that this dispatcher may use."""

    weight: float
    enabled: bool
    max_qps: float | None = None
    burst: float | None = None
    max_concurrency: int | None = None
    qps_part: float | None = None
    """The part of `max_qps`; None for all of it."""
    concurrency_part: int | None = None
    """The part of `max_concurrency`; None for all of it."""

    @property
    def rate_here(self) -> tuple[float | None, float | None]:
        """The rate and the burst that this dispatcher may use."""
        if not self.max_qps or self.qps_part is None:
            return self.max_qps, self.burst
        return self.qps_part, None if self.burst is None else self.burst * self.qps_part / self.max_qps


class Choice(msgspec.Struct):
    """The messages to send now, each with its ticket, and those that need no work and can be acknowledged."""

    send: list[tuple[int, Delivery]]
    ack: list[Delivery]
    suspects: list[tuple[int, Delivery]]
    """For the quarantine engine, which runs nothing else beside them."""


def most_slots(limits: SourceLimits, share: float, slots: int) -> int:
    """How many slots a source may use: even with slow plans it leaves the others a quarter of their shares."""
    if limits.max_concurrency is not None:
        return min(limits.max_concurrency if limits.concurrency_part is None else limits.concurrency_part, slots)
    return math.ceil(slots * (1 - (1 - share) / 4))
