"""Fair shares: how many messages each source may send next.

What is shared is time in slots. Each lane is charged for the slots that its messages hold, for as long as they hold
them, divided by its weight; free slots go to the lanes that were charged least. So a source whose messages are slow
gets no more than its share of the slots while others wait, and all of them while nothing else does. A lane that had
nothing to send begins with the charge of the others: it saves up no credit. Slots that a lane has just used stay free
for it for about as long as the messages of the others take, at most a second: slow messages would take them in the
short gap until its next ones arrive, and keep them for long. Nothing here waits, and time is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from itertools import pairwise
from typing import TypeVar

import msgspec

from tidemill.streams.reducer.token_bucket import TokenBucket

T = TypeVar("T")

NEVER = math.inf
MESSAGE_COST = 0.001  # seconds in a slot that every message is charged, however quick it is
KEPT_FOR = 1.0  # seconds in which what a lane has just used falls to about a third, at most
REMEMBERED = 10.0  # seconds over which the time that messages take is measured
LOOK_AGAIN = 0.05  # seconds after which slots that were kept free are looked at again
MOST_DEBT = 60.0  # seconds of one slot: what a lane has used beyond its share before is forgotten above this


class Lane(msgspec.Struct, eq=False):
    """One source: its weight, its limits, its queue, and when it may send."""

    name: str
    queue: Sized
    weight: float = 1.0
    bucket: TokenBucket | None = None
    enabled: bool = True
    held: Sized = ()
    """The part of its queue that may not be sent before `held_until`."""
    held_until: float = 0.0
    in_flight: int = 0
    room: int | None = None
    """How many more of its messages may be in flight; None for as many as there are slots."""
    charge: float = 0.0
    """Its time in slots so far, divided by its weight."""
    slots: int = 0
    """The slots that it has held since its last charge."""
    was_waiting: bool = False
    recent: float = 0.0
    """How many slots it has used just now."""
    spent: float = 0.0
    """The time that its messages have spent in slots lately, and how many have ended."""
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """How long one of its messages takes, at most a second; a second if that is not known yet."""
        return min(1.0, self.spent / self.ended) if self.ended >= 1.0 else 1.0

    def sendable(self, now: float) -> int:
        """How many messages it could send now, regardless of its share."""
        if not self.enabled:
            return 0
        waiting = len(self.queue)
        if self.held_until > now:
            waiting -= len(self.held)
        if self.room is not None:
            waiting = min(waiting, self.room)
        if waiting and self.bucket is not None:
            return min(waiting, self.bucket.available(now))
        return waiting

    def wakes_at(self, now: float) -> float:
        """When it can send again without an arrival; never if it has nothing to send or can send now."""
        waiting = len(self.queue)
        if not self.enabled or not waiting:
            return NEVER
        if self.held_until > now and waiting == len(self.held):
            return self.held_until
        if self.bucket is not None and not self.bucket.available(now):
            # A few tokens at a time: smooth enough, and a fast source does not cause a wake-up for each message.
            return self.bucket.ready_at(now, wanted=max(1.0, self.bucket.burst / 2))
        return self.held_until if self.held_until > now else NEVER


class FairShare:
    """The lanes, and what each has been charged."""

    __slots__ = ("_at", "_keeps_free", "_level", "lanes")

    def __init__(self, lanes: Iterable[Lane], *, now: float = 0.0) -> None:
        self.lanes = list(lanes)
        self._at = now
        self._level = 0.0
        self._keeps_free = False

    def pick(self, free: int, now: float) -> list[tuple[Lane, int]]:
        """Which lanes fill the free slots, and with how many messages."""
        passed, self._at = max(0.0, now - self._at), now
        waiting = self._charge(passed, now)
        kept = self._kept_free(waiting, free, passed) if len(self.lanes) > 1 else 0
        picks = _fill(waiting, max(0, free - kept))
        self._keeps_free = bool(kept) and sum(count for _, count in picks) < sum(count for _, count in waiting)
        for lane in self.lanes:
            lane.slots = lane.in_flight
        for lane, count in picks:
            lane.slots += count
            lane.charge += MESSAGE_COST * count / lane.weight
        return picks

    def wakes_at(self, now: float) -> float:
        """The next time at which a throttled or delayed lane can send."""
        soon = now + LOOK_AGAIN if self._keeps_free else NEVER
        return min((lane.wakes_at(now) for lane in self.lanes), default=NEVER) if soon == NEVER else soon

    def _kept_free(self, waiting: list[tuple[Lane, int]], free: int, passed: float) -> int:
        """How many of the free slots are kept for lanes that have just used them and have nothing to send now."""
        longest = max((lane.seconds for lane, _ in waiting), default=0.0)
        fade = math.exp(-passed / (KEPT_FOR * longest)) if longest else 0.0
        forget = math.exp(-passed / REMEMBERED)
        for lane in self.lanes:
            lane.recent = max(lane.in_flight, max(lane.slots, lane.recent) * fade)
            lane.spent = lane.spent * forget + lane.slots * passed
            lane.ended = lane.ended * forget + max(0, lane.slots - lane.in_flight)
        ready = {id(lane) for lane, _ in waiting}
        resting = [lane for lane in self.lanes if lane.enabled and id(lane) not in ready and lane.recent >= 1.0]
        if not waiting or not resting:
            return 0
        slots = free + sum(lane.in_flight for lane in self.lanes)
        weights = sum(lane.weight for lane, _ in waiting) + sum(lane.weight for lane in resting)
        kept = 0
        for lane in resting:
            share = slots * lane.weight / weights
            kept += max(0, int(min(share, lane.recent)) - lane.in_flight)
        return kept

    def _charge(self, passed: float, now: float) -> list[tuple[Lane, int]]:
        """Charge the lanes for their slots; returns those that have messages to send, with how many."""
        waiting: list[tuple[Lane, int]] = []
        for lane in self.lanes:
            if lane.slots:
                lane.charge += lane.slots * passed / lane.weight
            if sendable := lane.sendable(now):
                waiting.append((lane, sendable))
            else:
                lane.was_waiting = False
        if len(waiting) > 1:
            self._level = max(
                self._level, min((lane.charge for lane, _ in waiting if lane.was_waiting), default=self._level)
            )
            for lane, _ in waiting:
                lane.charge = min(max(lane.charge, self._level), self._level + MOST_DEBT / lane.weight)
        elif waiting:
            self._level = max(self._level, waiting[0][0].charge)
        for lane, _ in waiting:
            lane.was_waiting = True
        return waiting


def interleaved(sent: Sequence[T], bounds: Sequence[int]) -> list[T]:
    """The messages of several lanes evenly mixed; those of each lane, which stand between two bounds, in their order.

    Those that an engine runs last are in their slots for longest: no lane must be charged for that alone.
    """
    first = bounds[0]
    if len(bounds) == 2:
        return [*sent[first:]]
    shares: list[float] = []
    for begin, end in pairwise(bounds):
        shares += [(at + 0.5) / (end - begin) for at in range(end - begin)]
    return [sent[first + at] for at in sorted(range(len(shares)), key=shares.__getitem__)]


def _fill(waiting: list[tuple[Lane, int]], free: int) -> list[tuple[Lane, int]]:
    """Distribute free slots so that the charges of the lanes come as close to each other as they can."""
    if sum(sendable for _, sendable in waiting) <= free:
        return waiting
    if len(waiting) == 1:
        return [(waiting[0][0], free)] if free else []
    # The charge of each lane if its messages in flight ended now; each message that it sends raises it by its slope.
    slope = 2 * MESSAGE_COST
    left = sorted(
        ((lane.charge + slope / 2 * lane.in_flight / lane.weight, lane, sendable) for lane, sendable in waiting),
        key=lambda entry: entry[0],
    )
    picks: list[tuple[Lane, int]] = []
    while True:
        level, reached = _water_level(left, free * slope)
        full = [
            (start, lane, sendable)
            for start, lane, sendable in reached
            if (level - start) * lane.weight >= sendable * slope
        ]
        if not full:
            break
        picks += [(lane, sendable) for _, lane, sendable in full]
        free -= sum(sendable for _, _, sendable in full)
        left = [entry for entry in left if entry not in full]
    counts = {id(lane): int((level - start) * lane.weight / slope) for start, lane, _ in reached}
    rest = free - sum(counts.values())
    # Slots left over by rounding go to the lanes whose next message would end first.
    following = sorted(left, key=lambda entry: entry[0] + (counts.get(id(entry[1]), 0) + 1) * slope / entry[1].weight)
    for _, lane, _ in following[: max(0, rest)]:
        counts[id(lane)] = counts.get(id(lane), 0) + 1
    return picks + [(lane, count) for _, lane, _ in left if (count := counts.get(id(lane), 0))]


def _water_level(left: list[tuple[float, Lane, int]], amount: float) -> tuple[float, list[tuple[float, Lane, int]]]:
    """The charge that the least charged lanes reach together with this amount, and which lanes these are."""
    weights = charges = level = 0.0
    for at, (start, lane, _) in enumerate(left):
        if at and start >= level:
            return level, left[:at]
        weights += lane.weight
        charges += start * lane.weight
        level = (amount + charges) / weights
    return level, left
