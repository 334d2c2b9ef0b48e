"""How a worker shares its free room between its queues, and how much it takes ahead. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def share_room(room: int, queues: Sequence[str], dry: set[str], turn: int) -> dict[str, int]:
    """How many jobs to ask of each queue: equal shares, rotating the remainder.

    A queue that gave less than it was asked for last time is `dry`: it is asked for one job, on top, so that
    its share is not left unused and it is noticed when it flows again.
    """
    if room <= 0:
        return {}
    flowing = [queue for queue in queues if queue not in dry]
    wanted = {queue: 1 for queue in queues if queue in dry} if flowing else {}
    sharing = flowing or list(queues)
    base, rest = divmod(room, len(sharing))
    for index in range(len(sharing)):
        queue = sharing[(index + turn) % len(sharing)]
        share = base + (index < rest)
        if share:
            wanted[queue] = share
    return wanted


class Appetite:
    """How many jobs to hold beyond those that run: as many as will start within `window` seconds.

    Fast jobs are taken in large batches, so that the database and the worker work at the same time; slow
    ones are left for others.
    """

    def __init__(self, *, window: float = 0.05, most: int = 2400) -> None:
        self._window = window
        self._most = most
        self._rate = 0.0
        self._since: float | None = None
        self._count = 0

    def finished(self, count: int, now: float) -> None:
        """Learn how fast jobs finish."""
        if self._since is None:
            self._since = now
        self._count += count
        elapsed = now - self._since
        if elapsed >= 0.002 and self._count:
            rate = self._count / elapsed
            # Up quickly, so that a burst is met; down at once, so that nothing is hoarded.
            self._rate = rate if rate < self._rate else (self._rate + rate) / 2
            self._since, self._count = now, 0

    def slow_down(self) -> None:
        """Jobs were held and did not start: take nothing ahead until they flow again."""
        self._rate, self._count, self._since = 0.0, 0, None

    @property
    def extra(self) -> int:
        """How many jobs to hold beyond those that run."""
        return min(self._most, int(self._rate * self._window))
