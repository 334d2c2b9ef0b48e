"""Fair lanes: whose jobs a worker claims next, by deficit round robin. Pure.

A lane holds the jobs of one priority and fair key; jobs without a key are a lane too. Lanes with jobs stand in a ring
per priority, and each turn gives the first ones a quantum times their weight. A new lane goes before the old ones, so a
tenant with one job does not wait for a round of all others. A lane that a claim empties leaves the ring until it is
woken. The ring is a hint: a claim of an empty lane finds nothing, and a lane that is missing is discovered again.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.core.jobs.job import PRIORITIES

#: How many lanes a turn is divided among, and how many it visits at most.
SPREAD = 20
MOST_VISITED = 200


class FairLane:
    """The jobs of one priority and fair key, and where the last claim of them ended."""

    __slots__ = (
        "credit",
        "is_active",
        "is_flowing",
        "is_new",
        "is_seen",
        "is_woken",
        "key",
        "mark",
        "mark_round",
        "priority",
    )

    def __init__(self, priority: int, key: str | None) -> None:
        self.priority = priority
        self.key = key
        self.credit = 0
        self.is_active = self.is_new = self.is_woken = self.is_seen = False
        self.is_flowing = False
        """Whether it is expected to have more jobs than one turn takes."""
        self.mark: tuple[object, int] | None = None
        self.mark_round = 0


class Offer(NamedTuple):
    """How many jobs a lane may start before the next one has its turn; that may take several claims."""

    lane: FairLane
    share: int


class FairLanes:
    """The lanes of one queue."""

    def __init__(self, *, lowest_first: bool = False) -> None:
        self.weights: Mapping[str, int] = {}
        self._largest = 1
        self._lanes: dict[tuple[int, str | None], FairLane] = {}
        self._new: list[deque[FairLane]] = [deque() for _ in PRIORITIES]
        self._old: list[deque[FairLane]] = [deque() for _ in PRIORITIES]
        self._order = PRIORITIES if lowest_first else PRIORITIES[::-1]
        self._later: list[tuple[float, int, str]] = []
        self._due: dict[tuple[int, str], float] = {}

    @property
    def has_keys(self) -> bool:
        """Whether a lane with a fair key is known."""
        return bool(self._due) or any(key is not None for _, key in self._lanes)

    @property
    def has_work(self) -> bool:
        """Whether a lane may have due jobs."""
        return any(self._new) or any(self._old)

    @property
    def next_at(self) -> float:
        """When the next lane that is known to become due does."""
        return self._later[0][0] if self._later else math.inf

    def wake(self, priority: int, key: str | None) -> FairLane:
        """A lane may have due jobs: it enters the ring, before the lanes that have had a turn."""
        lane = self._lanes.get((priority, key))
        if lane is None:
            lane = self._lanes[priority, key] = FairLane(priority, key)
        lane.is_woken = True
        lane.is_flowing = lane.is_flowing or key is not None
        if not lane.is_active:
            lane.is_active = lane.is_new = True
            self._new[priority].append(lane)
        return lane

    def wake_unkeyed(self) -> None:
        """Jobs without a key may be due, at any priority."""
        for priority in PRIORITIES:
            self.wake(priority, None)

    def wake_at(self, priority: int, key: str, at: float) -> None:
        """Wake a lane at a moment: the first of its jobs is due then."""
        if at < self._due.get((priority, key), math.inf):
            self._due[priority, key] = at
            heapq.heappush(self._later, (at, priority, key))

    def wake_due(self, now: float) -> None:
        """Wake the lanes whose moment has come."""
        while self._later and self._later[0][0] <= now:
            at, priority, key = heapq.heappop(self._later)
            if self._due.get((priority, key)) == at:
                del self._due[priority, key]
                self.wake(priority, key)

    def forget_unseen(self) -> None:
        """Drop lanes that are out of the ring and have not been seen since the last call."""
        for name, lane in list(self._lanes.items()):
            if not lane.is_active and not lane.is_seen:
                del self._lanes[name]
            lane.is_seen = False

    def offer(self, room: int) -> list[Offer]:
        """The lanes that a claim of up to `room` jobs visits, in their order, and how much it may take from each.

        They offer more than `room`, because some may turn out to be empty.
        """
        offers: list[Offer] = []
        offered = 0
        self._largest = max(self._largest, room)  # A quantum that followed the room would favour some lanes.
        for priority in self._order:
            new, old = self._new[priority], self._old[priority]
            if not new and not old:
                continue
            quantum = math.ceil(self._largest / min(len(new) + len(old), SPREAD))
            for ring in (new, old):
                for lane in ring:
                    share = lane.credit or quantum * self.weights.get(lane.key or "", 1)
                    lane.is_woken = False
                    offers.append(Offer(lane, share))
                    offered += share
                    if len(offers) >= MOST_VISITED or (len(offers) >= SPREAD and offered >= 10 * room):
                        return offers
            if any(lane.is_flowing for lane, _ in offers):
                return offers  # Lower priorities get nothing that this one may need.
        return offers

    def claimed(self, offers: Sequence[Offer], counts: Counter[tuple[int, str | None]], room: int) -> None:
        """Move the lanes on after a claim of up to `room` jobs that took `counts` jobs from each."""
        left = room
        for lane, share in offers:
            if left <= 0:
                return  # The claim did not come this far.
            got = counts[lane.priority, lane.key]
            left -= got
            if got < share and left <= 0:
                lane.credit = share - got  # Cut by the limit: it stays in front.
                return
            ring = self._new if lane.is_new else self._old
            ring[lane.priority].popleft()
            lane.credit = 0
            lane.is_flowing = got >= share or (lane.is_woken and lane.key is not None)
            # One turn among the old lanes, before an empty lane may be new again, keeps lanes from overtaking for ever.
            if got >= share or lane.is_new or lane.is_woken:
                lane.is_new = False
                self._old[lane.priority].append(lane)
            else:
                lane.is_active = False

    def in_turn(self, lanes: Sequence[tuple[int, str | None]]) -> list[int]:
        """The order in which claimed jobs start, as indexes: by priority, then a job of each lane in turn, by weight.

        `lanes` has the lane of each job; jobs of one lane are in their own order.
        """
        taken: Counter[tuple[int, str | None]] = Counter()
        sign = 1 if self._order[0] == 0 else -1
        ranks: list[tuple[int, float, int]] = []
        for index, lane in enumerate(lanes):
            ranks.append((sign * lane[0], taken[lane] // self.weights.get(lane[1] or "", 1), index))
            taken[lane] += 1
        return [index for *_, index in sorted(ranks)]
