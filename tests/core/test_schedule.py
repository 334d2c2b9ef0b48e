from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support.examples import examples
from tidemill.core.errors import ConfigError
from tidemill.core.schedule import (
    Catchup,
    Cron,
    Every,
    Schedule,
    describe,
    fires_between,
    jittered,
    latest_fire,
    next_fire,
    parse_schedule,
    plan_fires,
    preview,
)

DAY = 86400.0
MONTH = 30 * DAY
NOON = datetime(2026, 5, 6, 12, tzinfo=UTC).timestamp()

EXPRESSIONS = [
    "* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "15 1,2,3 * * 0", "*/20 2 * * *",
    "0 9 * * 1-5", "0 0 L * *", "0 0 29 2 *", "*/10 * * * * *", "5 30 2 * * *", "* * 1 3 *", "@weekly",
]  # fmt: skip
ZONES = ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu"]

moments = st.floats(min_value=1.5e9, max_value=2.2e9)
crons = st.builds(Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES))
intervals = st.builds(Every, st.floats(0.01, 1e7), st.floats(-1e9, 3e9))
schedules = st.one_of(crons, intervals)


@given(schedules, moments)
def test_the_next_fire_is_after_the_moment_and_nothing_is_between(schedule: Schedule, after: float) -> None:
    fires = preview(schedule, after, 4)
    assert after < fires[0] < fires[1] < fires[2] < fires[3]
    for earlier, later in zip([after, *fires], fires, strict=False):
        between = earlier + (later - earlier) / 2
        assert next_fire(schedule, between) == later


@given(schedules)
def test_a_schedule_survives_being_stored_as_json(schedule: Schedule) -> None:
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule


def test_a_fire_is_never_its_own_successor() -> None:
    assert next_fire(Cron("0 12 * * *"), NOON) == NOON + DAY
    assert next_fire(Cron("0 12 * * *"), NOON - 0.001) == NOON
    assert next_fire(Every(10), NOON) == NOON + 10
    assert next_fire(Every(10), NOON - 0.001) == NOON


def test_six_fields_begin_with_seconds() -> None:
    assert preview(Cron("*/20 * * * * *"), NOON, 3) == [NOON + 20, NOON + 40, NOON + 60]


def test_an_interval_keeps_the_phase_of_its_anchor() -> None:
    assert preview(Every(3600, anchor=NOON + 60), NOON, 2) == [NOON + 60, NOON + 3660]
    assert next_fire(Every(3600, anchor=NOON + 60), NOON - 7200) == NOON - 7200 + 60


def test_fires_between_include_the_end_and_not_the_beginning() -> None:
    assert fires_between(Every(10), NOON, NOON + 30, 100) == [NOON + 10, NOON + 20, NOON + 30]
    assert fires_between(Every(10), NOON, NOON + 30, 2) == [NOON + 10, NOON + 20]


@given(schedules, moments, st.floats(0, 2 * DAY))
@examples(50)
def test_the_latest_fire_is_the_last_of_all_those_between(schedule: Schedule, after: float, span: float) -> None:
    fires = fires_between(schedule, after, after + span, 300)
    if len(fires) < 300:
        assert latest_fire(schedule, after, after + span) == (fires[-1] if fires else None)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (parse_schedule(every="5m"), "every 5 minutes"),
        (parse_schedule(every="1h"), "every hour"),
        (parse_schedule(every="90s"), "every 90 seconds"),
        (parse_schedule(every=0.5), "every 0.5 seconds"),
        (parse_schedule(every="36h"), "every 36 hours"),
        (Cron("0 9 * * 1-5", "Europe/Paris"), "at 09:00 on Monday through Friday (Europe/Paris)"),
        (Cron("@daily"), "at 00:00 every day (UTC)"),
    ],
)
def test_a_schedule_is_described_in_words(schedule: Schedule, words: str) -> None:
    assert describe(schedule) == words


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "needs cron"),
        ({"cron": "@daily", "every": "1d"}, "not both"),
        ({"cron": ""}, "wrong number of fields"),
        ({"cron": "* * * *"}, "wrong number of fields"),
        ({"cron": "@sometimes"}, "wrong number of fields"),
        ({"cron": "61 * * * *"}, "bad minute"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": "*/5 2 * 3 0L", "timezone": "Europe/Paris"}, "never matches"),
        ({"cron": "@daily", "timezone": "Mars/Base"}, "not a time zone"),
        ({"cron": "@daily", "timezone": ""}, "not a time zone"),
        ({"cron": "@daily", "timezone": "../etc/passwd"}, "not a time zone"),
        ({"cron": "@daily", "timezone": "America"}, "not a time zone"),
        ({"every": "sometimes"}, "every: 'sometimes'"),
        ({"every": 0}, "too short"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused_with_the_reason(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_schedule(**wrong)


def test_skip_fires_what_is_slightly_late_and_passes_over_what_is_very_late() -> None:
    plan = plan_fires(Cron("*/10 * * * *"), last_fire=NOON - 3600, now=NOON + 5, catchup="skip")
    assert plan.fire == (NOON,)
    assert (plan.missed, plan.missed_first, plan.missed_last) == (5, NOON - 3000, NOON - 600)
    assert plan.next == NOON + 600


def test_late_by_exactly_the_grace_is_still_on_time() -> None:
    hourly = Every(3600)
    on_time = plan_fires(hourly, last_fire=NOON - 60, now=NOON + 30, catchup="skip", grace=30)
    assert (on_time.fire, on_time.missed) == ((NOON,), 0)
    late = plan_fires(hourly, last_fire=NOON - 60, now=NOON + 30.01, catchup="skip", grace=30)
    assert (late.fire, late.missed) == ((), 1)
    at_once = plan_fires(hourly, last_fire=NOON - 60, now=NOON, catchup="skip", grace=0)
    assert at_once.fire == (NOON,)


def test_one_fires_only_the_latest_however_late_it_is() -> None:
    plan = plan_fires(Cron("0 12 * * *"), last_fire=NOON - 4 * DAY, now=NOON + 9 * 3600, catchup="one")
    assert plan.fire == (NOON,)
    assert (plan.missed, plan.missed_first, plan.missed_last) == (3, NOON - 3 * DAY, NOON - DAY)
    assert plan.next == NOON + DAY


def test_all_fires_everything_up_to_the_limit_and_leaves_the_rest_due() -> None:
    first = plan_fires(Every(10), last_fire=NOON, now=NOON + 55, catchup="all", limit=3)
    assert first.fire == (NOON + 10, NOON + 20, NOON + 30)
    assert (first.missed, first.next) == (0, NOON + 40)
    rest = plan_fires(Every(10), last_fire=first.through, now=NOON + 55, catchup="all", limit=3)
    assert rest.fire == (NOON + 40, NOON + 50)
    assert rest.next == NOON + 60


@pytest.mark.parametrize("catchup", ["skip", "one", "all"])
def test_nothing_is_due_before_its_time_or_when_the_clock_went_back(catchup: Catchup) -> None:
    for now in (NOON + 5, NOON, NOON - MONTH):
        plan = plan_fires(Every(10), last_fire=NOON, now=now, catchup=catchup)
        assert (plan.fire, plan.missed, plan.next) == ((), 0, NOON + 10)
        assert plan.through == max(NOON, now)


def test_an_unknown_catchup_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="'skip', 'one', 'all'"):
        plan_fires(Every(10), last_fire=0, now=1, catchup="some")  # type: ignore[arg-type]


@given(
    schedules,
    moments,
    st.lists(st.one_of(st.floats(0, 100), st.floats(-DAY, 3 * DAY)), min_size=1, max_size=8),
    st.sampled_from(["skip", "one", "all"]),
    st.integers(1, 20),
)
@examples(150)
def test_every_fire_is_decided_exactly_once_whenever_the_scheduler_looks(
    schedule: Schedule, start: float, steps: list[float], catchup: Catchup, limit: int
) -> None:
    now = through = start
    fired: list[float] = []
    decided = 0
    exact = True
    for step in steps:
        now += step
        plan = plan_fires(schedule, last_fire=through, now=now, catchup=catchup, limit=limit)
        assert all(through < fire <= now for fire in plan.fire)
        assert plan.next > plan.through >= through
        assert plan.next == next_fire(schedule, plan.through)
        through = plan.through
        fired.extend(plan.fire)
        decided += len(plan.fire) + plan.missed
        exact = exact and plan.missed_is_exact
    assert fired == sorted(set(fired))
    everything = fires_between(schedule, start, through, 500)
    if len(everything) < 500:
        assert set(fired) <= set(everything)
        assert decided == len(everything) if exact else decided < len(everything)
        if catchup == "all":
            assert fired == everything


@pytest.mark.parametrize("catchup", ["skip", "one"])
def test_a_month_of_missed_seconds_is_counted_without_visiting_them(catchup: Catchup) -> None:
    started = time.process_time()
    interval = plan_fires(Every(1), last_fire=NOON, now=NOON + MONTH, catchup=catchup)
    assert interval.missed + len(interval.fire) == MONTH
    cron = plan_fires(Cron("* * * * * *", "Europe/Paris"), last_fire=NOON, now=NOON + MONTH, catchup=catchup)
    assert (cron.missed, cron.missed_is_exact) == (1000, False)
    assert cron.fire == interval.fire
    assert cron.fire[-1] == NOON + MONTH
    assert cron.missed_last == cron.fire[0] - 1
    assert time.process_time() - started < 10.0


@given(moments, st.floats(0, DAY), st.text())
def test_jitter_delays_a_fire_by_less_than_its_length_and_always_the_same(
    fire: float, jitter: float, seed: str
) -> None:
    due = jittered(fire, jitter, seed)
    assert due == jittered(fire, jitter, seed)
    assert fire <= due
    assert due < fire + jitter or due == fire


def test_schedules_with_different_names_are_spread_by_jitter() -> None:
    assert len({jittered(NOON, 60, f"schedule-{n}") for n in range(100)}) == 100
