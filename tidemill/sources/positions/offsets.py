"""Tracks the positions of one partition: which are open, and up to which position everything is done.

Only open positions are stored, each with its predecessor: the cost does not grow with what is done after a stuck one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import Literal

from tidemill.store.streams.streams import Span

#: Not read yet, read and not done, or done (or skipped, if the source began after it).
PositionState = Literal["unread", "open", "done"]


class Offsets:
    """Messages finish in any order; only the position up to which all are done may be committed."""

    __slots__ = ("_last", "_open", "committable")

    def __init__(self, start: int | None = None) -> None:
        self.committable = start
        """The last position up to which everything is done; None if it is not known yet."""
        self._last = start
        self._open: OrderedDict[int, int | None] = OrderedDict()

    def take(self, positions: Iterable[int]) -> None:
        """Register positions as open, in the order of the partition."""
        for position in positions:
            self._open[position] = self._last
            self._last = position

    def finish(self, position: int) -> bool:
        """Mark a position as done; returns whether the committable position has moved."""
        open_ = self._open
        if position not in open_:
            return False
        is_first = next(iter(open_)) == position
        del open_[position]
        if is_first:
            self.committable = open_[next(iter(open_))] if open_ else self._last
        return is_first

    def finish_all(self, positions: Iterable[int]) -> None:
        """Mark many positions as done."""
        open_ = self._open
        for position in positions:
            open_.pop(position, None)
        self.committable = open_[next(iter(open_))] if open_ else self._last

    def state_of(self, position: int) -> PositionState:
        """What has happened to a position."""
        if position in self._open:
            return "open"
        return "unread" if self._last is None or position > self._last else "done"

    def done_beyond(self, after: int | None, more: Container[int] = ()) -> list[Span]:
        """The done ranges after a position up to which everything is done; positions in `more` count as done."""
        spans: list[Span] = []
        for position, before in self._open.items():
            if position in more:
                if before is None:
                    after = position - 1  # The very first: the position before it is not known.
                continue
            if before is not None and before != after:
                spans.append((after, before))
            after = position
        if self._last is not None and self._last != after:
            spans.append((after, self._last))
        return spans
