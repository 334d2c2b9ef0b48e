"""Positions of one partition: what was taken, what is done, and how far everything is done without a gap."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class Offsets:
    """Messages finish in any order; only the position up to which all have finished may be committed."""

    __slots__ = ("_done", "_open", "committable")

    def __init__(self, start: int | None = None) -> None:
        self.committable = start
        """The last position up to which all is done; None until something is known."""
        self._open: deque[int] = deque()
        self._done: set[int] = set()

    def take(self, positions: Iterable[int]) -> None:
        """These have been taken, in the partition's order."""
        self._open.extend(positions)

    def finish(self, position: int) -> bool:
        """This one is done. Whether the committable position has moved."""
        open_, done = self._open, self._done
        if not open_ or position < open_[0]:
            return False
        if position != open_[0]:
            done.add(position)
            return False
        self.committable = open_.popleft()
        while open_ and open_[0] in done:
            self.committable = open_.popleft()
            done.discard(self.committable)
        return True

    @property
    def ahead(self) -> list[int]:
        """Those that are done beyond the committable position."""
        return sorted(self._done)
