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
    awaits_part: bool = False
    """Whether the rate has yet to be divided: until then nothing passes."""

    def set_rate(self, max_qps: float | None, burst: float | None) -> None:
        """Change the limit. The parts of all dispatchers together stay within it; without a limit there are none."""
        if not max_qps:
            self.qps_part, self.awaits_part = None, False
        elif self.qps_part is not None and self.max_qps:
            self.qps_part *= min(1.0, max_qps / self.max_qps)
        self.max_qps, self.burst = max_qps or None, burst

    def await_part(self) -> None:
        """Let nothing pass limits of which this dispatcher has no part: others may use all of them."""
        self.awaits_part = self.max_qps is not None and self.qps_part is None
        if self.max_concurrency is not None and self.concurrency_part is None:
            self.concurrency_part = 0

    @property
    def rate_here(self) -> tuple[float | None, float | None]:
        """The rate and the burst that this dispatcher may use."""
        if self.awaits_part:
            return 0.0, None
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
