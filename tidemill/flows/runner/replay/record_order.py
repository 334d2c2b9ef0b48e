"""The order in which the tasks of a step did what is in its record. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.flows.reducer.record import RecordedOperation

END = 1 << 62
"""The position behind the end of the record."""


class RecordOrder:
    """Which operations of a record have been done again."""

    __slots__ = ("_done", "_first", "_record")

    def __init__(self, record: Sequence[RecordedOperation]) -> None:
        self._record = record
        self._done = bytearray(len(record))
        self._first = 0

    @property
    def is_over(self) -> bool:
        return self._first == len(self._record)

    def is_turn(self, lane: str, position: int) -> bool:
        """Return whether the other lanes have done all that is recorded before a position."""
        done, record = self._done, self._record
        return all(done[n] or record[n].lane == lane for n in range(self._first, min(position, len(record))))

    def do(self, position: int) -> None:
        """An operation has been done again."""
        self._done[position] = 1
        done, count = self._done, len(self._done)
        while self._first < count and done[self._first]:
            self._first += 1

    def end_lane(self, lane: str) -> None:
        """A lane has ended: what is left of its record will not be done."""
        for n in range(self._first, len(self._record)):
            if self._record[n].lane == lane:
                self.do(n)

    def skip_to(self, position: int) -> str:
        """Wait no more for what is left before a position; returns the first of it, in words."""
        missing = ""
        for n in range(self._first, min(position, len(self._record))):
            if not self._done[n]:
                each = self._record[n]
                missing = missing or f"{each.kind} {each.key} of task {each.lane or 'root'}"
                self.do(n)
        return missing


def in_words(kind: str, key: str) -> str:
    """An operation as errors name it."""
    return f"{kind}({key})" if key and key != kind else kind
