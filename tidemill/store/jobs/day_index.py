"""Which day's partition of the history holds which ids, so that a page reads one or two of them and not a month.

A day that is over does not change any more: the lowest and highest id in it are looked up once. Today and its
neighbours, and the partition that catches what has no day, may get rows at any time: they are always read.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta
from weakref import WeakKeyDictionary

import msgspec

from tidemill.store.database import Database
from tidemill.store.jobs.history_partitions import list_partitions

_DAY = re.compile(r"job_history_(\d{4})(\d{2})(\d{2})\Z")
_FRESH = 30.0


class Day(msgspec.Struct, frozen=True):
    """A day that is over, and the ids in it."""

    name: str
    low: int
    high: int


class Days:
    """The partitions of one database, looked up again every half a minute."""

    def __init__(self) -> None:
        self.open: tuple[str, ...] = ()
        self.over: tuple[Day, ...] = ()
        """The highest ids first."""
        self._good_until = 0.0

    def forget(self) -> None:
        """Look everything up again: a partition that was known here is gone."""
        self._good_until = 0.0
        self.over = ()

    async def refresh(self, database: Database) -> None:
        """Look again, if it is time to."""
        if time.monotonic() < self._good_until:
            return
        names = await list_partitions(database)
        first = datetime.now(UTC).date() - timedelta(days=1)
        last = first + timedelta(days=2)
        known = {day.name: day for day in self.over}
        over = [name for name in names if (day := _day(name)) is not None and day < first]
        known |= {day.name: day for day in await _look_up(database, [name for name in over if name not in known])}
        self.over = tuple(sorted((known[name] for name in over if name in known), key=lambda day: -day.high))
        self.open = tuple(name for name in names if (day := _day(name)) is None or first <= day <= last)
        self._good_until = time.monotonic() + _FRESH

    def candidates(self, before: int | None) -> tuple[Day, ...]:
        """Days that may hold ids below this one, the highest first."""
        return self.over if before is None else tuple(day for day in self.over if day.low < before)


_known: WeakKeyDictionary[Database, Days] = WeakKeyDictionary()


def days_of(database: Database) -> Days:
    """The days of a database, shared by everything in this process that reads its history."""
    return _known.setdefault(database, Days())


async def _look_up(database: Database, names: list[str]) -> list[Day]:
    if not names:
        return []
    parts = [f"SELECT '{name}' AS name, min(id) AS low, max(id) AS high FROM tidemill.{name}" for name in names]
    rows = await database.fetch(" UNION ALL ".join(parts))
    return [Day(row["name"], row["low"], row["high"]) for row in rows if row["low"] is not None]


def _day(name: str) -> date | None:
    match = _DAY.match(name)
    return None if match is None else date(int(match[1]), int(match[2]), int(match[3]))
