"""How late events usually are, and how far back a poll reads because of that. Pure.

An event is late by its distance to the newest event before it, when it is first seen. Each minute in which events come
has one lateness: the one that all but one in a hundred of its events keep. What three of the last minutes have in
common is usual, and the overlap follows it, up and down. A single straggler, or everything that one machine sends after
it was away, changes nothing: a poll that looks further back finds such events now and then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

MINUTE = 60.0
REMEMBERED, FORGOTTEN_AFTER = 20, 3600.0
USUAL = 3
RARE = 0.01
MARGIN = 1.5
MOST_LATE = 1000


class PollCosts(msgspec.Struct):
    """What the polls of about a minute have read."""

    seconds: float = 0.0
    polls: int = 0
    pages: int = 0
    records: int = 0
    read_again: int = 0


class Lateness:
    """How late the events of a source are, minute by minute."""

    def __init__(self, minutes: Sequence[tuple[float, float]] = ()) -> None:
        self.minutes = [*minutes]
        """When each minute ended, and how late its events were."""
        self.costs = PollCosts()
        """Of the last complete minute."""
        self._now = PollCosts()
        self._began: float | None = None
        self._new = 0
        self._late: list[float] = []

    def usual(self, now: float) -> float:
        """How late events usually are, in seconds."""
        known = sorted((late for at, late in self.minutes if now - at < FORGOTTEN_AFTER), reverse=True)
        return known[USUAL - 1] if len(known) >= USUAL else 0.0

    def overlap(self, now: float, *, least: float, most: float) -> float:
        """How far back to read: the declared overlap, or more if events are usually later."""
        return min(max(least, self.usual(now) * MARGIN), max(least, most))

    def observe(self, records: int, new: int, late: Sequence[float]) -> None:
        """Count a page: all its records, the new ones, and how late those were that came behind others."""
        self._now.pages += 1
        self._now.records += records
        self._now.read_again += records - new
        self._new += new
        self._late = sorted([*self._late, *late], reverse=True)[:MOST_LATE]

    def end_poll(self, now: float) -> bool:
        """Count a poll; returns whether a minute is complete."""
        self._now.polls += 1
        if self._began is None:
            self._began = now
        if now - self._began < MINUTE:
            return False
        self._now.seconds = round(now - self._began, 3)
        self.costs, self._now, self._began = self._now, PollCosts(), now
        if self._new:
            rank = int(self._new * RARE)
            late = self._late[rank] if rank < len(self._late) else 0.0
            self.minutes = [*self.minutes, (now, late)][-REMEMBERED:]
        self._new, self._late = 0, []
        return True
