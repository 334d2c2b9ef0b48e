"""Fair shares: how many messages each source may send next.

Deficit round robin. In its turn a lane gets credit in proportion to its weight and sends as many messages as its
credit, its queue and its rate limit allow. A lane with nothing to send is skipped and loses its credit; a throttled
lane is skipped too, and its wake time says when to try again. A turn that was cut short because no slot was free
continues where it stopped. Nothing here waits, and time is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized

import msgspec

from tidemill.streams.reducer.token_bucket import TokenBucket

NEVER = math.inf


class Lane(msgspec.Struct, eq=False):
    """One source in the round: its weight, its limit, its queue, and when it may send."""

    name: str
    queue: Sized
    weight: float = 1.0
    bucket: TokenBucket | None = None
    size: int = 0
    """The bytes of its waiting messages, including those that wait behind their keys."""
    enabled: bool = True
    held_until: float = 0.0
    credit: float = 0.0
    quantum: float = 1.0
    room: int | None = None
    """How many more of its messages may be in flight; None for as many as there are slots."""

    def sendable(self, now: float) -> int:
        """How many messages it could send now, regardless of its share."""
        if not self.enabled or self.held_until > now:
            return 0
        waiting = len(self.queue) if self.room is None else min(len(self.queue), self.room)
        if waiting and self.bucket is not None:
            return min(waiting, self.bucket.available(now))
        return waiting

    def wakes_at(self, now: float) -> float:
        """When it can send again without an arrival; never if it has nothing to send or can send now."""
        if not self.enabled or not len(self.queue):
            return NEVER
        if self.held_until > now:
            return self.held_until
        if self.bucket is not None and not self.bucket.available(now):
            # A few tokens at a time: smooth enough, and a fast source does not cause a wake-up for each message.
            return self.bucket.ready_at(now, wanted=max(1.0, self.bucket.burst / 2))
        return NEVER


class FairShare:
    """The lanes in their round, and the position in it."""

    __slots__ = ("_at", "_in_turn", "lanes")

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self.lanes = list(lanes)
        self._at = 0
        self._in_turn = False
        self.reweigh()

    def reweigh(self) -> None:
        """Recompute the credit per turn: the lightest lane gets one message."""
        lightest = min((lane.weight for lane in self.lanes), default=1.0)
        for lane in self.lanes:
            lane.quantum = lane.weight / lightest
            lane.credit = min(lane.credit, lane.quantum)

    def pick(self, free: int, now: float) -> list[tuple[Lane, int]]:
        """Which lanes fill the free slots, in order, and with how many messages."""
        picks: list[tuple[Lane, int]] = []
        left = {id(lane): sendable for lane in self.lanes if (sendable := lane.sendable(now))}
        while free and left:
            lane = self.lanes[self._at]
            sendable = left.get(id(lane), 0)
            if sendable:
                if not self._in_turn:
                    lane.credit += lane.quantum if len(left) > 1 else max(lane.quantum, free)
                count = min(int(lane.credit + 1e-9), sendable, free)
                if count:
                    lane.credit -= count
                    free -= count
                    sendable -= count
                    if lane.bucket is not None:
                        lane.bucket.take(count, now)
                    picks.append((lane, count))
                    left[id(lane)] = sendable
                if not free and sendable and lane.credit >= 1.0:
                    self._in_turn = True  # Its turn continues when slots are free again.
                    break
                if not sendable:
                    del left[id(lane)]
                    lane.credit = 0.0
            else:
                lane.credit = 0.0
            self._in_turn = False
            self._at = (self._at + 1) % len(self.lanes)
        return picks

    def wakes_at(self, now: float) -> float:
        """The next time at which a throttled or delayed lane can send."""
        return min((lane.wakes_at(now) for lane in self.lanes), default=NEVER)
