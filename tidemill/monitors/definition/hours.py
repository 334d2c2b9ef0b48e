"""Hours of the week in which something is expected to happen: `Hours("Mon-Fri 08:00-15:30", timezone="Europe/Paris")`.

Intervals are separated by commas; days without a time mean the whole day. Dates in `closed` have no hours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill.core.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_STRETCH = re.compile(r"([a-z]{3})(?:-([a-z]{3}))?(?:\s+(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2}))?")


class Hours:
    """Weekly hours in a time zone."""

    def __init__(self, text: str, *, timezone: str = "UTC", closed: Iterable[date | str] = ()) -> None:
        self.text = text
        self.timezone = timezone
        self._closed = {date.fromisoformat(day) if isinstance(day, str) else day for day in closed}
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ConfigError(f"hours: there is no time zone {timezone!r}; write it as in Europe/Paris") from error
        self._stretches = [stretch for part in text.split(",") for stretch in _read(part.strip().lower(), text)]

    def __repr__(self) -> str:
        return f"Hours({self.text!r}, timezone={self.timezone!r})"

    def around(self, moment: float) -> tuple[float, float] | None:
        """The interval that contains a time, as its start and end, or None outside of the hours."""
        here = datetime.fromtimestamp(moment, self._zone)
        for back in (0, 1):
            day = here.date() - timedelta(days=back)
            for start, end in self._of_day(day):
                if start <= moment < end:
                    return start, end
        return None

    def around_or_next(self, moment: float) -> tuple[float, float] | None:
        """The interval that contains a time, or the first one after it; None if there is none for a year."""
        here = datetime.fromtimestamp(moment, self._zone).date()
        for ahead in range(-1, 370):
            for start, end in sorted(self._of_day(here + timedelta(days=ahead))):
                if end > moment:
                    return start, end
        return None

    def _of_day(self, day: date) -> Iterable[tuple[float, float]]:
        if day in self._closed:
            return
        for weekday, start, end in self._stretches:
            if weekday == day.weekday():
                last = day if end > start else day + timedelta(days=1)
                yield self._second(day, start), self._second(last, end)

    def _second(self, day: date, moment: time) -> float:
        return datetime.combine(day, moment, tzinfo=self._zone).timestamp()


def _read(part: str, text: str) -> list[tuple[int, time, time]]:
    found = _STRETCH.fullmatch(part)
    if found is None or found[1] not in DAYS or (found[2] or found[1]) not in DAYS:
        raise ConfigError(f"hours {text!r} cannot be read: write them as in 'Mon-Fri 08:00-15:30, Sat 09:00-12:00'")
    first, last = DAYS.index(found[1]), DAYS.index(found[2] or found[1])
    days = range(first, last + 1) if first <= last else [*range(first, 7), *range(last + 1)]
    try:
        start = time(int(found[3]), int(found[4])) if found[3] else time(0)
        end = _end(int(found[5]), int(found[6])) if found[3] else time(0)
    except ValueError as error:
        raise ConfigError(f"hours {text!r}: {error}") from error
    return [(day, start, end) for day in days]


def _end(hour: int, minute: int) -> time:
    return time(0) if (hour, minute) == (24, 0) else time(hour, minute)
