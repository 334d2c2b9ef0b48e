"""How far back a poll reads: as late as events usually are, and no further for a single straggler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemill.monitors.reducer.lateness import MARGIN, REMEMBERED, Lateness


def a_minute(lateness: Lateness, start: float, late: Sequence[float], new: int) -> float:
    """A minute of two polls with so many new events, some of them late; returns when it ended."""
    lateness.observe(new, new, late)
    lateness.end_poll(start)
    lateness.end_poll(start + 60.0)
    return start + 60.0


def overlap(lateness: Lateness, now: float) -> float:
    return lateness.overlap(now, least=2.0, most=600.0)


@pytest.mark.parametrize("new", [1, 10, 100_000])
def test_one_straggler_changes_nothing(new: int) -> None:
    lateness = Lateness()
    now = a_minute(lateness, 0.0, [1920.0], new)
    assert overlap(lateness, now) == 2.0
    now = a_minute(lateness, now, [], new)
    assert overlap(lateness, now) == 2.0


def test_a_machine_that_sends_an_hour_of_events_at_once_changes_nothing() -> None:
    lateness, now = Lateness(), 0.0
    for late in ([], [float(each) for each in range(3600)], []):
        now = a_minute(lateness, now, late, 4000)
    assert overlap(lateness, now) == 2.0


def test_events_that_are_late_minute_after_minute_widen_the_overlap_up_to_its_bound() -> None:
    lateness, now = Lateness(), 0.0
    for _ in range(3):
        now = a_minute(lateness, now, [40.0] * 30, 100)
    assert overlap(lateness, now) == 40.0 * MARGIN
    for _ in range(3):
        now = a_minute(lateness, now, [4000.0] * 30, 100)
    assert overlap(lateness, now) == 600.0


def test_one_in_a_hundred_may_be_later_than_usual() -> None:
    lateness, now = Lateness(), 0.0
    for _ in range(5):
        now = a_minute(lateness, now, [1920.0, 30.0, 30.0], 199)
    assert overlap(lateness, now) == 30.0 * MARGIN


def test_the_overlap_shrinks_again_with_punctual_events_and_in_a_long_silence() -> None:
    lateness, now = Lateness(), 0.0
    for _ in range(3):
        now = a_minute(lateness, now, [40.0], 1)
    assert overlap(lateness, now) == 60.0
    assert overlap(lateness, now + 3600.0) == 2.0
    for _ in range(REMEMBERED - 2):
        now = a_minute(lateness, now, [], 10)
    assert overlap(lateness, now) == 2.0


def test_minutes_without_events_are_not_counted_as_punctual() -> None:
    lateness, now = Lateness(), 0.0
    for _ in range(3):
        now = a_minute(lateness, now, [40.0], 1)
        for _ in range(10):
            now = a_minute(lateness, now, [], 0)
    assert overlap(lateness, now) == 60.0


def test_the_cost_of_a_minute_is_counted() -> None:
    lateness = Lateness()
    lateness.observe(500, 10, [])
    lateness.observe(200, 5, [])
    lateness.end_poll(0.0)
    assert lateness.end_poll(60.0)
    found = lateness.costs
    assert (found.polls, found.pages, found.records, found.read_again, found.seconds) == (2, 2, 700, 685, 60.0)
