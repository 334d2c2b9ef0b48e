"""How a worker divides its free slots between its queues, and how many jobs it prefetches. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.core.jobs.job import ClaimedJob

MOST_DRY = 20  # dry queues that are asked in one turn


def share_slots(room: int, queues: Sequence[str], dry: set[str], turn: int) -> dict[str, int]:
    """How many jobs to request from each queue: equal shares, rotating the remainder.

    A queue that returned fewer jobs than requested last time is `dry`: one additional job is requested from it, so that
    its share is not left unused and new jobs in it are noticed. Of very many such queues, only some are asked each
    time, because a claim costs the more the more queues it reads.
    """
    if room <= 0:
        return {}
    flowing = [queue for queue in queues if queue not in dry]
    wanted: dict[str, int] = {}
    if flowing:
        resting = [queue for queue in queues if queue in dry]
        first = turn * MOST_DRY % len(resting) if len(resting) > MOST_DRY else 0
        wanted = dict.fromkeys((resting[first:] + resting[:first])[:MOST_DRY], 1)
    sharing = flowing or list(queues)
    base, rest = divmod(room, len(sharing))
    for index in range(len(sharing)):
        queue = sharing[(index + turn * rest) % len(sharing)]
        share = base + (index < rest)
        if share:
            wanted[queue] = share
    return wanted


def put_ahead(backlog: deque[tuple[float, ClaimedJob]], place: int, now: float, jobs: Sequence[ClaimedJob]) -> int:
    """Put jobs in this place of a backlog, except those that are less urgent than the job there; returns how many."""
    waiting = backlog[place][1].priority
    urgent = [(now, job) for job in jobs if job.priority >= waiting]
    backlog.rotate(-place)
    backlog.extendleft(reversed(urgent))
    backlog.rotate(place)
    return len(urgent)


class JobPrefetch:
    """How many jobs to hold beyond the running ones: as many as will start within `window` seconds.

    Fast jobs are prefetched in large batches, so that the database and the worker work at the same time; slow ones are
    left to other workers.
    """

    def __init__(self, *, window: float = 0.05, most: int = 2400) -> None:
        self._window = window
        self._most = most
        self._rate = 0.0
        self._since: float | None = None
        self._count = 0

    def finished(self, count: int, now: float) -> None:
        """Update the rate at which jobs finish."""
        if self._since is None:
            self._since = now
        self._count += count
        elapsed = now - self._since
        if elapsed >= 0.002 and self._count:
            rate = self._count / elapsed
            # Increase quickly to follow a burst; decrease at once, so that no jobs are hoarded.
            self._rate = rate if rate < self._rate else (self._rate + rate) / 2
            self._since, self._count = now, 0

    def slow_down(self) -> None:
        """Stop prefetching until held jobs start again."""
        self._rate, self._count, self._since = 0.0, 0, None

    @property
    def extra(self) -> int:
        """How many jobs to hold beyond the running ones."""
        return min(self._most, int(self._rate * self._window))
