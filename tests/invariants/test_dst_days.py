"""On the days when clocks change, a daily job runs once and a frequent one runs evenly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tidemill.core.schedule import Cron, fires_between, next_fire

DAY = 86400
PARIS, NEW_YORK, LORD_HOWE = "Europe/Paris", "America/New_York", "Australia/Lord_Howe"

# The day, how long it is in hours, and what the wall does on it.
SPRING = {
    PARIS: ("2026-03-29", 23.0),  # 02:00 -> 03:00
    NEW_YORK: ("2026-03-08", 23.0),  # 02:00 -> 03:00
    LORD_HOWE: ("2026-10-04", 23.5),  # 02:00 -> 02:30
}
AUTUMN = {
    PARIS: ("2026-10-25", 25.0),  # 03:00 -> 02:00
    NEW_YORK: ("2026-11-01", 25.0),  # 02:00 -> 01:00
    LORD_HOWE: ("2026-04-05", 24.5),  # 02:00 -> 01:30
}
CHANGES = [(zone, *day) for days in (SPRING, AUTUMN) for zone, day in days.items()]


def fires_on(day: str, expr: str, zone: str) -> list[float]:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    until = midnight + timedelta(days=1)
    return fires_between(Cron(expr, zone), midnight.timestamp() - 1, until.timestamp() - 1, 100_000)


def walls_on(day: str, expr: str, zone: str) -> list[str]:
    """The fires of a day as its wall clocks show them, with the offset where it tells passes apart."""
    return [
        f"{datetime.fromtimestamp(fire, ZoneInfo(zone)):%H:%M:%S%z}"[:-2].replace(":00+", "+").replace(":00-", "-")
        for fire in fires_on(day, expr, zone)
    ]


@pytest.mark.parametrize(("zone", "day", "hours"), CHANGES)
@pytest.mark.parametrize("expr", [f"{minute} {hour} * * *" for hour in range(5) for minute in (0, 15, 30, 59)])
def test_a_daily_job_runs_exactly_once_on_every_day(zone: str, day: str, hours: float, expr: str) -> None:
    assert len(fires_on(day, expr, zone)) == 1
    assert len(fires_on(day, f"0 {expr}", zone)) == 1


@pytest.mark.parametrize(("zone", "day", "hours"), CHANGES)
@pytest.mark.parametrize(("expr", "seconds"), [("*/5 * * * *", 300), ("*/30 * * * *", 1800), ("*/20 * * * * *", 20)])
def test_a_frequent_job_runs_evenly_through_the_whole_day(
    zone: str, day: str, hours: float, expr: str, seconds: int
) -> None:
    fires = fires_on(day, expr, zone)
    assert len(fires) == hours * 3600 / seconds
    assert {later - earlier for earlier, later in pairwise(fires)} == {seconds}


def test_an_hourly_job_runs_once_for_every_real_hour() -> None:
    assert [len(fires_on(day, "0 * * * *", PARIS)) for day, _ in (SPRING[PARIS], AUTUMN[PARIS])] == [23, 25]


@pytest.mark.parametrize(
    ("zone", "expr", "walls"),
    [
        (PARIS, "30 2 * * *", ["03:00+02"]),
        (PARIS, "0 30 2 * * *", ["03:00+02"]),
        (PARIS, "0,30 2 * * *", ["03:00+02"]),
        (PARIS, "30 1,2,3 * * *", ["01:30+01", "03:00+02", "03:30+02"]),
        (PARIS, "0 2,3 * * *", ["03:00+02"]),
        (PARIS, "*/20 2 * * *", []),
        (NEW_YORK, "30 2 * * *", ["03:00-04"]),
        (LORD_HOWE, "15 2 * * *", ["02:30+11"]),
        (LORD_HOWE, "45 2 * * *", ["02:45+11"]),
        (LORD_HOWE, "*/15 2 * * *", ["02:30+11", "02:45+11"]),
    ],
)
def test_times_in_the_skipped_hour_become_one_run_right_after_it(zone: str, expr: str, walls: list[str]) -> None:
    assert walls_on(SPRING[zone][0], expr, zone) == walls


@pytest.mark.parametrize(
    ("zone", "expr", "walls"),
    [
        (PARIS, "30 2 * * *", ["02:30+02"]),
        (PARIS, "0 30 2 * * *", ["02:30+02"]),
        (PARIS, "0,30 2,3 * * *", ["02:00+02", "02:30+02", "03:00+01", "03:30+01"]),
        (PARIS, "*/30 2 * * *", ["02:00+02", "02:30+02", "02:00+01", "02:30+01"]),
        (NEW_YORK, "30 1 * * *", ["01:30-04"]),
        (NEW_YORK, "0 2 * * *", ["02:00-05"]),
        (LORD_HOWE, "45 1 * * *", ["01:45+11"]),
        (LORD_HOWE, "*/15 2 * * *", ["02:00+10", "02:15+10", "02:30+10", "02:45+10"]),
        (LORD_HOWE, "*/15 1 * * *", ["01:00+11", "01:15+11", "01:30+11", "01:45+11", "01:30+10", "01:45+10"]),
    ],
)
def test_times_in_the_repeated_hour_run_in_its_first_pass_only_unless_by_real_time(
    zone: str, expr: str, walls: list[str]
) -> None:
    assert walls_on(AUTUMN[zone][0], expr, zone) == walls


@pytest.mark.parametrize(("zone", "day", "hours"), CHANGES)
@pytest.mark.parametrize("expr", ["30 1 * * *", "30 2 * * *", "*/15 * * * *", "*/15 1,2 * * *", "5 1,2 * * * *"])
def test_the_next_fire_does_not_depend_on_where_the_search_begins(zone: str, day: str, hours: float, expr: str) -> None:
    fires = fires_on(day, expr, zone)
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()
    for minutes in range(int(hours * 60)):
        moment = midnight + minutes * 60 + 30
        later = [fire for fire in fires if fire > moment]
        if later:
            assert next_fire(Cron(expr, zone), moment) == later[0]


@pytest.mark.parametrize("zone", [PARIS, NEW_YORK, LORD_HOWE, "Africa/Cairo", "America/Santiago"])
@pytest.mark.parametrize("expr", ["*/15 * * * *", "*/20 1,2 * * *", "7 * * * 0", "0 */3 * * *"])
def test_a_job_by_real_time_runs_exactly_when_the_wall_matches(zone: str, expr: str) -> None:
    assert len(days_with_a_change(zone)) == 2
    for start in days_with_a_change(zone):
        end = start + 2 * DAY
        expected = [second for second in range(start, end, 60) if wall_matches(expr, zone, second)]
        assert fires_between(Cron(expr, zone), start - 1, end - 1, 10_000) == expected


def days_with_a_change(zone: str) -> list[int]:
    """The beginnings, in UTC, of the days of 2026 in which the clocks of a zone change."""
    new_year = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    offsets = [
        (start, datetime.fromtimestamp(start, ZoneInfo(zone)).utcoffset())
        for start in range(new_year, new_year + 365 * DAY, DAY)
    ]
    return [day for (day, before), (_, after) in pairwise(offsets) if before != after]


def wall_matches(expr: str, zone: str, second: int) -> bool:
    """The four expressions above, read independently of any cron library."""
    wall = datetime.fromtimestamp(second, ZoneInfo(zone))
    return {
        "*/15 * * * *": wall.minute % 15 == 0,
        "*/20 1,2 * * *": wall.hour in (1, 2) and wall.minute % 20 == 0,
        "7 * * * 0": wall.isoweekday() == 7 and wall.minute == 7,
        "0 */3 * * *": wall.hour % 3 == 0 and wall.minute == 0,
    }[expr]
