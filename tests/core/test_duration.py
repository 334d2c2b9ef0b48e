from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from tidemill.core.duration import format_duration, jitter_fraction, parse_duration, parse_rate
from tidemill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (0, 0.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("0.25", 0.25),
        ("500ms", 0.5),
        ("2m", 120.0),
        ("1h30m", 5400.0),
        (" 1H 30m ", 5400.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("2w", 1209600.0),
        ("1d 2h 3m 4s 5ms", 93784.005),
        (timedelta(minutes=2), 120.0),
    ],
)
def test_a_duration_may_be_written_in_any_of_the_usual_ways(written: str, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    ["", " ", "soon", "-1", "-2m", "1m1m", "30m1h", "5 parsecs", "1e3", "nan", "inf", "m", ".", "9" * 400,
     "٣s", -1, -0.5, math.nan, math.inf, 10**400, True, None, [1], timedelta(seconds=-1)],
)  # fmt: skip
def test_what_is_not_a_duration_is_refused_with_the_accepted_forms(written: object) -> None:
    with pytest.raises(ConfigError, match=r"backoff: .*'1h30m'"):
        parse_duration(written, what="backoff")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (0.0001, "<1ms"),
        (0.34, "340ms"),
        (0.9996, "1s"),
        (4.23, "4.2s"),
        (59.97, "1m"),
        (90, "1m 30s"),
        (120, "2m"),
        (3599.7, "1h"),
        (5400, "1h 30m"),
        (86399, "1d"),
        (3 * 86400 + 4 * 3600 + 5, "3d 4h"),
        (86400 * 400, "400d"),
        (-120, "-2m"),
        (math.inf, "forever"),
    ],
)
def test_a_duration_is_shown_to_people_in_at_most_two_units(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


@given(st.floats(min_value=0.001, max_value=1e9))
def test_what_is_shown_to_people_can_be_written_back_and_is_about_right(seconds: float) -> None:
    shown = format_duration(seconds)
    assert len(shown.split()) <= 2
    assert parse_duration(shown) == pytest.approx(seconds, rel=0.06, abs=0.0006)


@pytest.mark.parametrize(
    ("written", "per_second"),
    [("100/s", 100), ("30/m", 0.5), ("36 / h", 0.01), ("86400/d", 1), ("10", 10), (10, 10), (0.5, 0.5)],
)
def test_a_rate_is_a_number_per_unit_of_time(written: str, per_second: float) -> None:
    assert parse_rate(written) == pytest.approx(per_second)


@pytest.mark.parametrize("written", ["", "fast", "0", "0/s", 0, -1, "-1/s", "5/y", "1/", math.inf, math.nan, True])
def test_what_is_not_a_rate_is_refused_with_the_accepted_forms(written: str) -> None:
    with pytest.raises(ConfigError, match="'100/s'"):
        parse_rate(written)


@given(st.lists(st.one_of(st.integers(), st.text(), st.floats(allow_nan=False))))
def test_a_jitter_fraction_depends_on_its_seed_only_and_stays_below_one(
    seed: list[str | int | float],
) -> None:
    assert 0 <= jitter_fraction(*seed) < 1
    assert jitter_fraction(*seed) == jitter_fraction(*seed)


def test_jitter_fractions_are_spread_evenly() -> None:
    fractions = [jitter_fraction(seed) for seed in range(1000)]
    tenths = [sum(low <= fraction * 10 < low + 1 for fraction in fractions) for low in range(10)]
    assert min(tenths) > 60
    assert max(tenths) < 140
