"""Which daily partition of the history has which ids, so that a page reads one or two partitions and not a month.

A past day no longer changes: its lowest and highest id are looked up once. Today, its neighbours and the default
partition may get rows at any time: they are always read.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from weakref import WeakKeyDictionary

import msgspec

from tidemill.core.clock import SYSTEM_CLOCK
from tidemill.store.database import Database
from tidemill.store.jobs.history.partitions import list_partitions

_DAY = re.compile(r"job_history_(\d{4})(\d{2})(\d{2})\Z")
_FRESH = 30.0


class Day(msgspec.Struct, frozen=True):
    """A past day, and the range of its ids."""

    name: str
    low: int
    high: int


class Days:
    """The partitions of one database, looked up again every half minute."""

    def __init__(self) -> None:
        self.open: tuple[str, ...] = ()
        self.over: tuple[Day, ...] = ()
        """Highest ids first."""
        self._good_until = 0.0

    def forget(self) -> None:
        """Look everything up again: a known partition has been dropped."""
        self._good_until = 0.0
        self.over = ()

    async def refresh(self, database: Database) -> None:
        """Look the partitions up again, if that is due."""
        now = SYSTEM_CLOCK.now()
        if 0 <= self._good_until - now < _FRESH:
            return
        names = await list_partitions(database)
        first = datetime.fromtimestamp(now, UTC).date() - timedelta(days=1)
        last = first + timedelta(days=2)
        known = {day.name: day for day in self.over}
        over = [name for name in names if (day := _day(name)) is not None and day < first]
        known |= {day.name: day for day in await _look_up(database, [name for name in over if name not in known])}
        self.over = tuple(sorted((known[name] for name in over if name in known), key=lambda day: -day.high))
        self.open = tuple(name for name in names if (day := _day(name)) is None or first <= day <= last)
        self._good_until = now + _FRESH

    def candidates(self, before: int | None) -> tuple[Day, ...]:
        """Days that may have ids below this one, highest first."""
        return self.over if before is None else tuple(day for day in self.over if day.low < before)


_known: WeakKeyDictionary[Database, Days] = WeakKeyDictionary()


def days_of(database: Database) -> Days:
    """The days of a database, shared by all readers of its history in this process."""
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
