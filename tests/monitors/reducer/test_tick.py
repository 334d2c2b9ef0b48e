"""The decisions around a tick: its order, its pauses, the cursor, shares, hours, what stays in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.watched import Heat, Pages, event, heat_monitor
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.monitors import Hours, Monitor, Webhook, sustained
from tidemill.monitors.reducer.cursor import SourceCursor, moved
from tidemill.monitors.reducer.lateness import Lateness
from tidemill.monitors.reducer.poll_pace import PollLimits, after_failure, after_success, start
from tidemill.monitors.reducer.state import AttributeDict, read_state, write_state
from tidemill.monitors.reducer.tick import Facts, stages, wanted_shares
from tidemill.monitors.runner.state_cache import StateCache
from tidemill.sources.base import read_event

# -- the order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "order"),
    [
        (Facts(leads=True, shares=3), ("reset", "roster", "ingest", "evaluate", "triggers", "sleep")),
        (Facts(shares=3), ("reset", "evaluate", "triggers", "sleep")),
        (Facts(partitioned=True, shares=3), ("reset", "ingest", "evaluate", "triggers", "sleep")),
        (Facts(), ("reset", "sleep")),
        (Facts(paused=True, leads=True, shares=3), ("reset", "sleep")),
        (Facts(current=False, leads=True, shares=3), ("reset", "sleep")),
    ],
)
def test_the_stages_come_in_order_for_those_who_take_part(facts: Facts, order: tuple[str, ...]) -> None:
    assert stages(facts) == order


@given(st.sets(st.integers(1, 100), min_size=1, max_size=10), st.integers(1, 64))
def test_every_share_has_exactly_one_owner_and_nobody_much_more_than_others(members: set[int], shares: int) -> None:
    parts = [wanted_shares(sorted(members), me, shares) for me in members]
    assert sorted(share for part in parts for share in part) == list(range(shares))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert wanted_shares(sorted(members), 1000, shares) == []


# -- pauses ---------------------------------------------------------------------------------------


def test_pauses_grow_while_nothing_happens_and_shrink_at_once() -> None:
    limits = PollLimits()
    pace, pauses = start(limits), []
    for _ in range(10):
        pace = after_success(pace, limits, active=False)
        pauses.append(pace.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
    assert after_success(pace, limits, active=True).pause == 0.5


def test_failures_double_the_pause_up_to_its_limit_and_five_are_unhealthy() -> None:
    limits = PollLimits()
    pace, seen = start(limits), []
    for _ in range(12):
        pace = after_failure(pace, limits, "down", seed="m")
        seen.append((pace.pause, pace.healthy))
    assert [healthy for _, healthy in seen[:6]] == [True] * 4 + [False] * 2
    assert 0.8 <= seen[0][0] <= 1.0
    assert all(24.0 <= pause <= 30.0 for pause, _ in seen[6:])
    assert after_success(pace, limits, active=False) == start(limits)


# -- the cursor -----------------------------------------------------------------------------------

moments = st.integers(0, 1000).map(float)


@given(st.lists(st.lists(moments, max_size=5), max_size=10), st.floats(0, 1000))
def test_the_cursor_never_goes_back_and_never_past_now(pages: list[list[float]], now: float) -> None:
    cursor = SourceCursor()
    for number, page in enumerate(pages):
        before = cursor
        cursor = moved(cursor, [read_event(event(f"{number}-{i}", at)) for i, at in enumerate(page)], now)
        assert before.at is None or (cursor.at is not None and cursor.at >= before.at)
        assert cursor.at is None or cursor.at <= now


def test_the_overlap_is_what_was_declared_or_what_lateness_asks_for_within_its_limit() -> None:
    for late, wanted in ((0.0, 2.0), (20.0, 30.0), (500.0, 60.0)):
        lateness = Lateness([(minute * 60.0, late) for minute in range(3)])
        assert lateness.overlap(180.0, least=2.0, most=60.0) == wanted


# -- hours ----------------------------------------------------------------------------------------

MONDAY_8 = 1_767_600_000.0  # 5 January 2026, 08:00 UTC


def test_hours_know_the_stretch_that_a_moment_lies_in() -> None:
    hours = Hours("Mon-Fri 08:00-12:00, Sat 22:00-02:00", closed=["2026-01-06"])
    assert hours.around(MONDAY_8) == (MONDAY_8, MONDAY_8 + 4 * 3600)
    assert hours.around(MONDAY_8 + 4 * 3600) is None
    assert hours.around(MONDAY_8 + 86_400) is None  # closed
    saturday_night = MONDAY_8 + 5 * 86_400 + 17 * 3600  # Sunday, 01:00
    assert hours.around(saturday_night) == (saturday_night - 3 * 3600, saturday_night + 3600)


def test_hours_follow_the_clock_of_their_zone() -> None:
    hours = Hours("Mon 08:00-09:00", timezone="America/New_York")
    assert hours.around(MONDAY_8) is None
    assert hours.around(MONDAY_8 + 5 * 3600) == (MONDAY_8 + 5 * 3600, MONDAY_8 + 6 * 3600)
    assert Hours("Mon-Sun").around(MONDAY_8) == (MONDAY_8 - 8 * 3600, MONDAY_8 + 16 * 3600)


# -- memory and states ----------------------------------------------------------------------------


def test_states_leave_memory_when_there_is_no_room_and_stale_ones_are_not_given() -> None:
    cache = StateCache(10_000)
    for number in range(1000):
        cache.put(f"e{number}", 1, b"x" * 100)
        cache.get("e0", 1)
    assert cache.size <= 10_000
    assert len(cache) < 50
    assert cache.get("e0", 1) == b"x" * 100  # it was used all the time
    assert cache.get("e0", 2) is None
    cache.clear()
    assert (len(cache), cache.size) == (0, 0)


def test_a_bag_is_a_dict_with_attributes_and_comes_back_as_it_was() -> None:
    bag = AttributeDict()
    bag.runs = [{"change": 0.5}]
    assert bag.nothing is None
    again = read_state(None, write_state(bag))
    assert again == bag
    assert again.runs[0].change == 0.5
    del again.runs
    assert "runs" not in again


# -- declaring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fold": object}, "not a fold"),
        ({"roster": "closed"}, "not one of open, listed"),
        ({"triggers": [sustained("x", when=lambda s, now: True)] * 2}, "two triggers are called 'x'"),
        ({"notify": [Webhook(url="http://a"), Webhook(url="http://b")]}, "two channels are called"),
        ({"idle": "soon"}, "not a length of time"),
        ({"fold": type("None", (Heat,), {"window": 0})}, "holds nothing"),
    ],
)
def test_a_monitor_that_makes_no_sense_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        heat_monitor(Pages(), **options)


def test_an_application_knows_its_monitors_by_name() -> None:
    app = App("x")
    watch: Monitor = app.monitor(heat_monitor(Pages()))
    assert app.monitors.require(None) is watch
    with pytest.raises(ConfigError, match="two monitors are called 'heat'"):
        app.monitor(heat_monitor(Pages()))
    with pytest.raises(ConfigError, match="there is no monitor 'cold'; this application declares: heat"):
        app.monitors.require("cold")
