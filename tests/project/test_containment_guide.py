"""The guide of containment shows the table that the tests of `tests/containment` hold."""

from __future__ import annotations

from pathlib import Path

from tests.support.containment_table import GROUPS, IMPOSSIBLE, MISBEHAVIOURS, PLACES, guide_table

GUIDE = Path(__file__).parents[2] / "docs" / "containment.md"


def test_the_guide_shows_the_table_that_is_tested() -> None:
    assert guide_table() in GUIDE.read_text()


def test_every_misbehaviour_is_tested_in_every_place_where_it_can_happen() -> None:
    assert sorted(how for group in GROUPS.values() for how in group) == sorted(MISBEHAVIOURS)
    assert {(place, how) for place, how in IMPOSSIBLE if place not in PLACES or how not in MISBEHAVIOURS} == set()
