"""Time as it is passed in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from tidemill.core.clock import SYSTEM_CLOCK, VirtualClock


def test_a_virtual_clock_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(100.0)
    assert (clock.now(), clock.now(), clock.monotonic()) == (100.0, 100.0, 100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 102.5)


@given(st.floats(max_value=-1e-9, allow_nan=False))
def test_a_virtual_clock_does_not_go_back(seconds: float) -> None:
    clock = VirtualClock(5.0)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(seconds)
    assert clock.now() == 5.0


def test_the_system_clock_is_the_clock_of_the_system() -> None:
    before = time.time()
    assert before <= SYSTEM_CLOCK.now() <= time.time()
    assert SYSTEM_CLOCK.monotonic() <= SYSTEM_CLOCK.monotonic()
