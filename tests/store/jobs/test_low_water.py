"""Where the next claim starts looking."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from tidemill.store.jobs.claims.claims import LowWater

START = datetime(2024, 1, 1, tzinfo=UTC)
Row = tuple[str, int, datetime, int]


def row(queue: str, priority: int, seconds: int, job_id: int) -> Row:
    return queue, priority, START + timedelta(seconds=seconds), job_id


rows = st.lists(
    st.builds(row, st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(0, 5), st.integers(1, 1000)), max_size=20
)


def test_the_first_look_is_from_the_front() -> None:
    water = LowWater(["a", "b"])
    due, ids = water.marks(["b", "a"], now=1.0)
    assert water.from_front
    assert len(due) == len(ids) == 20
    assert set(ids) == {0}
    assert all(moment < START for moment in due)


def test_a_claim_starts_where_the_last_one_ended_per_queue_and_priority() -> None:
    water = LowWater(["a", "b"])
    water.marks(["a", "b"], now=1.0)
    water.claimed([row("a", 5, 1, 10), row("a", 5, 1, 11), row("b", 9, 3, 12)], took=0.001, now=1.0)
    assert not water.from_front
    due, ids = water.marks(["b", "a"], now=1.005)
    assert (due[9], ids[9]) == (START + timedelta(seconds=3), 12)
    assert (due[15], ids[15]) == (START + timedelta(seconds=1), 11)
    assert sum(ids) == 23


@given(rows, rows)
def test_marks_never_go_back_between_looks_from_the_front(first: list[Row], second: list[Row]) -> None:
    water = LowWater(["a", "b"])
    water.marks(["a", "b"], now=1.0)
    water.claimed(first, took=0.01, now=1.0)
    before = list(zip(*water.marks(["a", "b"], now=1.01), strict=True))
    water.claimed(second, took=0.01, now=1.01)
    after = list(zip(*water.marks(["a", "b"], now=1.02), strict=True))
    assert all(later >= earlier for earlier, later in zip(before, after, strict=True))


def test_the_longer_a_look_from_the_front_takes_the_rarer_it_gets() -> None:
    water = LowWater(["a"], share=0.1)
    water.marks(["a"], now=0.0)
    water.claimed([row("a", 5, 1, 1)], took=2.0, now=0.0)
    water.marks(["a"], now=19.9)
    assert not water.from_front
    water.marks(["a"], now=20.1)
    assert water.from_front


def test_a_quick_look_from_the_front_is_soon_repeated() -> None:
    water = LowWater(["a"], share=0.1)
    water.marks(["a"], now=0.0)
    water.claimed([], took=0.001, now=0.0)
    water.marks(["a"], now=0.009)
    assert not water.from_front
    water.marks(["a"], now=0.011)
    assert water.from_front


def test_the_first_claim_after_a_scan_that_found_nothing_starts_at_the_marks_and_the_next_at_the_front() -> None:
    water = LowWater(["a"], share=0.1)
    water.marks(["a"], now=0.0)
    water.claimed([row("a", 5, 1, 7)], took=0.001, now=0.0)
    water.marks(["a"], now=1.0)
    water.claimed([], took=0.001, now=1.0)
    assert water.current(["a"])[1] == [0] * 10  # A job that is due earlier is not overlooked while the worker waits.
    assert water.marks(["a"], now=2.0)[1][5] == 7
    assert not water.from_front
    water.claimed([], took=0.001, now=2.0)
    assert water.marks(["a"], now=2.1)[1] == [0] * 10
    assert water.from_front


def test_a_scan_of_some_of_the_queues_says_nothing_about_the_others() -> None:
    water = LowWater(["a", "b"], share=0.1)
    water.marks(["a", "b"], now=0.0)
    water.claimed([row("b", 5, 1, 7)], took=0.001, now=0.0)
    water.marks(["a"], now=1.0)
    water.claimed([], took=0.001, now=1.0)
    assert water.marks(["b"], now=2.0)[1] == [0] * 10
    assert water.from_front


def test_looking_at_the_marks_does_not_move_them() -> None:
    water = LowWater(["a"])
    water.marks(["a"], now=0.0)
    water.claimed([row("a", 5, 1, 7)], took=0.001, now=0.0)
    assert water.current(["a"])[1][5] == 7
    assert not water.from_front


def test_a_reset_forgets_all_marks() -> None:
    water = LowWater(["a"])
    water.marks(["a"], now=0.0)
    water.claimed([row("a", 5, 1, 7)], took=5.0, now=0.0)
    water.reset()
    assert water.marks(["a"], now=0.1)[1] == [0] * 10
