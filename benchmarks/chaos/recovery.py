"""How long throughput takes to come back after a blow, from the moments at which jobs finished."""

import bisect
from collections.abc import Sequence

import msgspec

WINDOW_S = 0.25
STEP_S = 0.05
STEADY_S = 1.0
ENOUGH = 0.8
NOTICED_WITHIN_S = 2.0


class Event(msgspec.Struct, frozen=True):
    """A blow of some kind, and the time just before it."""

    kind: str
    at: float


class Throughput:
    """Finished jobs over time; `before` is the rate between two moments when all was well."""

    def __init__(self, finished_at: Sequence[float], quiet_from: float, quiet_until: float) -> None:
        self._moments = sorted(finished_at)
        self.before = self._rate(quiet_from, quiet_until)

    def recoveries(self, events: Sequence[Event], until: float) -> dict[str, float]:
        """The slowest recovery by kind of event."""
        ends = [event.at for event in events[1:]] + [until]
        slowest: dict[str, float] = {}
        for event, end in zip(events, ends, strict=True):
            seconds = self.recovery(event.at, end)
            slowest[event.kind] = max(slowest.get(event.kind, 0.0), seconds)
        return slowest

    def recovery(self, at: float, until: float) -> float:
        """Seconds from `at` to the end of the first good quarter of a second after which a second stays good.

        Good is 80 % of the rate before. 0 if throughput never fell below that; all of the time to `until` if it
        did not come back.
        """
        moment = at
        while not self._is_low(moment):
            moment += STEP_S
            if moment > min(at + NOTICED_WITHIN_S, until - WINDOW_S):
                return 0.0
        steady_since = None
        while moment + WINDOW_S <= until:
            if self._is_low(moment):
                steady_since = None
            elif steady_since is None:
                steady_since = moment
            elif moment + WINDOW_S - steady_since >= STEADY_S:
                return steady_since + WINDOW_S - at
            moment += STEP_S
        return (until if steady_since is None else steady_since + WINDOW_S) - at

    def _is_low(self, start: float) -> bool:
        return self._rate(start, start + WINDOW_S) < ENOUGH * self.before

    def _rate(self, start: float, end: float) -> float:
        count = bisect.bisect_left(self._moments, end) - bisect.bisect_left(self._moments, start)
        return count / (end - start)
