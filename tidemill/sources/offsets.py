"""Positions of one partition: what was taken, what is done, and how far everything is done without a gap.

Only those that are open are remembered, each with the one before it: however much is done beyond one that is stuck, it
costs no more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable

from tidemill.store.streams.streams import Span


class Offsets:
    """Messages finish in any order; only the position up to which all have finished may be committed."""

    __slots__ = ("_last", "_open", "committable")

    def __init__(self, start: int | None = None) -> None:
        self.committable = start
        """The last position up to which all is done; None until something is known."""
        self._last = start
        self._open: OrderedDict[int, int | None] = OrderedDict()

    def take(self, positions: Iterable[int]) -> None:
        """These have been taken, in the partition's order."""
        for position in positions:
            self._open[position] = self._last
            self._last = position

    def finish(self, position: int) -> bool:
        """This one is done. Whether the committable position has moved."""
        open_ = self._open
        if position not in open_:
            return False
        is_first = next(iter(open_)) == position
        del open_[position]
        if is_first:
            self.committable = open_[next(iter(open_))] if open_ else self._last
        return is_first

    def done_beyond(self, after: int | None, more: Container[int] = ()) -> list[Span]:
        """What is done beyond a position up to which all is done; `more` count as done."""
        spans: list[Span] = []
        for position, before in self._open.items():
            if position in more:
                if before is None:
                    after = position - 1  # The first of all: what comes before it is not known.
                continue
            if before is not None and before != after:
                spans.append((after, before))
            after = position
        if self._last is not None and self._last != after:
            spans.append((after, self._last))
        return spans
