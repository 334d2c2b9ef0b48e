"""Fair lanes: whose jobs a worker claims next, by deficit round robin. Pure.

A lane holds the jobs of one priority and fair key; jobs without a key are a lane too. Lanes with jobs stand in a ring
per priority, and each turn gives the first ones a quantum times their weight. A new lane goes before the old ones, so a
tenant with one job does not wait for a round of all others. A lane that a claim empties leaves the ring until it is
woken. The ring is a hint: a claim of an empty lane finds nothing, and a lane that is missing is discovered again.

Jobs with a rate key are in a lane of their fair key and their rate key. Lanes of a rate key that is used up are held
out of the ring, in their order, until its next job may start.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from tidemill.core.jobs.job import LANE_SEPARATOR, PRIORITIES

T = TypeVar("T")

#: The priority and fair key of a lane.
LaneName = tuple[int, str | None]

#: How many lanes a turn is divided among, and how many it visits at most.
SPREAD = 20
MOST_VISITED = 1000

#: How much more than its room a turn is offered, by what lanes have given before: some may have less.
MARGIN = 1.2


class FairLane:
    """The jobs of one priority and fair key, and where the last claim of them ended."""

    __slots__ = (
        "credit",
        "fair_key",
        "is_active",
        "is_flowing",
        "is_new",
        "is_resting",
        "is_seen",
        "is_woken",
        "key",
        "mark",
        "mark_round",
        "priority",
        "rate_key",
    )

    def __init__(self, priority: int, key: str | None) -> None:
        self.priority = priority
        self.key = key
        self.fair_key, separator, rate_key = (key or "").partition(LANE_SEPARATOR)
        self.rate_key = rate_key if separator else None
        self.credit = 0
        self.is_active = self.is_new = self.is_woken = self.is_seen = False
        self.is_resting = False
        """Whether it is empty, and only keeps its place among the old lanes until its turn."""
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
        self._given = math.inf  # how many jobs a lane gives on average, if it may
        self._lanes: dict[LaneName, FairLane] = {}
        self._new: list[deque[FairLane]] = [deque() for _ in PRIORITIES]
        self._old: list[deque[FairLane]] = [deque() for _ in PRIORITIES]
        self._order = PRIORITIES if lowest_first else PRIORITIES[::-1]
        self._later: list[tuple[float, int, str]] = []
        self._due: dict[tuple[int, str], float] = {}
        self._held: dict[str, deque[FairLane]] = {}
        self._releases: list[tuple[float, str]] = []

    @property
    def has_keys(self) -> bool:
        """Whether a lane with a fair key is known."""
        return bool(self._due) or any(key is not None for _, key in self._lanes)

    @property
    def has_work(self) -> bool:
        """Whether a lane may have due jobs."""
        return any(self._new) or any(self._old)

    @property
    def quantum(self) -> int:
        """How many jobs a lane of weight 1 may start in a turn."""
        return math.ceil(self._largest / SPREAD)  # If it followed the room, it would favour some lanes.

    @property
    def next_at(self) -> float:
        """When the next lane that is known to become due does, or the next rate key may start a job."""
        due = self._later[0][0] if self._later else math.inf
        return min(due, self._releases[0][0]) if self._releases else due

    def wake(self, priority: int, key: str | None) -> FairLane:
        """A lane may have due jobs: it enters the ring, before the lanes that have had a turn."""
        lane = self._lanes.get((priority, key))
        if lane is None:
            lane = self._lanes[priority, key] = FairLane(priority, key)
        lane.is_woken = True
        lane.is_resting = False
        lane.is_flowing = lane.is_flowing or key is not None
        if not lane.is_active:
            lane.is_active = lane.is_new = True
            self._new[priority].append(lane)
        return lane

    def add_old(self, priority: int, key: str) -> None:
        """A lane has given jobs outside the ring, and may have more: it stands behind the others."""
        if (priority, key) not in self._lanes:
            lane = self._lanes[priority, key] = FairLane(priority, key)
            lane.is_active = lane.is_flowing = True
            self._old[priority].append(lane)
        else:
            self.wake(priority, key)

    def wake_unkeyed(self) -> None:
        """Jobs without a key may be due, at any priority."""
        for priority in PRIORITIES:
            self.wake(priority, None)

    def wake_at(self, priority: int, key: str, at: float) -> None:
        """Wake a lane at a moment: the first of its jobs is due then."""
        if at < self._due.get((priority, key), math.inf):
            self._due[priority, key] = at
            heapq.heappush(self._later, (at, priority, key))

    def hold(self, rate_key: str, until: float) -> None:
        """Visit no lane of this rate key before that time."""
        if rate_key not in self._held:
            self._held[rate_key] = deque()
            heapq.heappush(self._releases, (until, rate_key))

    def release(self, now: float = math.inf) -> None:
        """Visit lanes again that were held until now."""
        while self._releases and self._releases[0][0] <= now:
            for lane in self._held.pop(heapq.heappop(self._releases)[1]):
                self._old[lane.priority].append(lane)

    def wake_due(self, now: float) -> None:
        """Wake the lanes whose moment has come."""
        self.release(now)
        while self._later and self._later[0][0] <= now:
            at, priority, key = heapq.heappop(self._later)
            if self._due.get((priority, key)) == at:
                del self._due[priority, key]
                self.wake(priority, key)

    def forget_unseen(self) -> None:
        """Drop lanes that are out of the ring and have not been seen since the last call."""
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.is_active or lane.is_seen}
        for lane in self._lanes.values():
            lane.is_seen = False

    def offer(self, room: int) -> list[Offer]:
        """Take out the lanes that a claim of up to `room` jobs visits, in their order; how much it may take from each.

        They offer more than `room`, because some may turn out to be empty. `claimed` puts them back.
        """
        offers: list[Offer] = []
        expected = 0.0
        rate_keys: set[str] = set()
        self._largest = max(self._largest, room)
        for priority in self._order:
            new, old = self._new[priority], self._old[priority]
            if not new and not old:
                continue
            is_round = len(new) + len(old) <= SPREAD
            if is_round:
                self._give_credit(room, [lane for lane in (*new, *old) if not lane.is_resting])
            for ring in (new, old):
                passed: list[FairLane] = []
                while ring and len(passed) < MOST_VISITED:
                    lane = ring.popleft()
                    if lane.is_resting:
                        lane.is_resting = lane.is_active = False
                        continue
                    if lane.rate_key is not None:
                        if (held := self._held.get(lane.rate_key)) is not None:
                            lane.is_new = False
                            held.append(lane)
                            continue
                        if lane.rate_key in rate_keys:  # Lanes of one rate key share its limit: one of them at a time.
                            passed.append(lane)
                            continue
                    if is_round and not lane.credit:
                        passed.append(lane)  # Lanes with credit go first in this round.
                        continue
                    if lane.rate_key is not None:
                        rate_keys.add(lane.rate_key)
                    share = lane.credit or self.quantum * self.weights.get(lane.fair_key, 1)
                    lane.is_woken = False
                    offers.append(Offer(lane, share))
                    expected += min(share, self._given)
                    if len(offers) >= MOST_VISITED or (len(offers) >= SPREAD and expected >= MARGIN * room):
                        ring.extendleft(reversed(passed))
                        return offers
                ring.extendleft(reversed(passed))
            if any(lane.is_flowing for lane, _ in offers):
                return offers  # Lower priorities get nothing that this one may need.
        return offers

    def _give_credit(self, room: int, lanes: Sequence[FairLane]) -> None:
        """Let few lanes, which all have a turn in each claim, together start at least as many jobs as there is room."""
        weights = [self.weights.get(lane.fair_key, 1) for lane in lanes]
        quantum = math.ceil((room - sum(lane.credit for lane in lanes)) / max(1, sum(weights)))
        for lane, weight in zip(lanes, weights, strict=True):
            lane.credit += max(0, quantum) * weight
            if lane.is_new and not lane.credit:
                lane.credit = weight  # A new lane does not wait for the end of a round.

    def claimed(self, offers: Sequence[Offer], counts: Counter[LaneName], room: int) -> None:
        """Put the lanes back after a claim of up to `room` jobs that took `counts` jobs from each.

        Those of rate keys that are used up must be held before.
        """
        left, visited, in_front = room, 0, list[FairLane]()
        for lane, share in offers:
            if left <= 0:
                in_front.append(lane)  # The claim did not come this far.
                continue
            got = counts[lane.priority, lane.key]
            left -= got
            visited += 1
            is_held = lane.rate_key in self._held
            if (got < share and left <= 0) or (is_held and not got):
                lane.credit = share - got  # Cut by a limit: it stays in front.
                in_front.append(lane)
                continue
            lane.credit = 0
            lane.is_flowing = got >= share or is_held or (lane.is_woken and lane.key is not None)
            if got >= share or is_held or lane.is_woken:
                lane.is_new = False
                self._old[lane.priority].append(lane)
            elif lane.is_new:
                # A place among the old lanes, before it may be new again, keeps it from overtaking them forever.
                lane.is_new, lane.is_resting = False, True
                self._old[lane.priority].append(lane)
            else:
                lane.is_active = False
        if visited:
            given = (room - left) / visited
            self._given = given if self._given == math.inf else (self._given + given) / 2
        for lane in reversed(in_front):
            (self._new if lane.is_new else self._old)[lane.priority].appendleft(lane)

    def _weight(self, key: str | None) -> int:
        return self.weights.get((key or "").partition(LANE_SEPARATOR)[0], 1) if self.weights else 1

    def in_turn(self, by_lane: Mapping[LaneName, Sequence[T]]) -> list[T]:
        """The order in which claimed jobs start: by priority, then some of each lane in turn, by weight."""
        started: list[T] = []
        for priority in self._order:
            left = [(jobs, self._weight(key)) for (level, key), jobs in by_lane.items() if level == priority]
            if all(weight == 1 for _, weight in left):
                for turns in zip_longest(*(jobs for jobs, _ in left)):
                    started += [job for job in turns if job is not None]
                continue
            turn = 0
            while left:
                for jobs, weight in left:
                    started += jobs[turn * weight : (turn + 1) * weight]
                turn += 1
                left = [(jobs, weight) for jobs, weight in left if len(jobs) > turn * weight]
        return started
