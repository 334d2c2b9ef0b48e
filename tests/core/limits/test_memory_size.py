"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ConfigError
from tidemill.core.limits.memory_size import format_memory, parse_memory


@pytest.mark.parametrize(
    ("written", "meant"),
    [(0, 0), (1500, 1500), ("1500", 1500), ("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), (" 90 mb ", 90 * 10**6)],
)
def test_memory_may_be_written_as_bytes_or_with_a_unit(written: str | int, meant: int) -> None:
    assert parse_memory(written) == meant


@pytest.mark.parametrize("nonsense", ["", "much", "-1", "2 XB", "1,5GB", -5, True, float("nan"), float("inf"), None])
def test_nonsense_is_an_error_that_says_what_may_be_written(nonsense: object) -> None:
    with pytest.raises(ConfigError, match=r"memory of model x: .* is not an amount of memory; write .*'2GB'"):
        parse_memory(nonsense, what="memory of model x")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (999, "999 B"), (90_868_376, "90.9 MB"), (2 * 10**9, "2 GB"), (1500, "1.5 kB")]
)
def test_memory_is_shown_in_the_unit_that_fits(size: int, shown: str) -> None:
    assert format_memory(size) == shown
