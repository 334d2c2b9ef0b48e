"""How a worker shares its room between queues, and how much it takes ahead."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from tidemill.engine.worker.queue_sharing import MOST_DRY, JobPrefetch, share_slots

QUEUES = ["a", "b", "c", "d", "e"]
queue_lists = st.lists(st.sampled_from(QUEUES), min_size=1, unique=True)
dry_sets = st.sets(st.sampled_from(QUEUES))


@given(st.integers(-5, 500), queue_lists, dry_sets, st.integers(0, 1000))
def test_a_worker_never_asks_for_more_than_its_room_and_one_per_dry_queue(
    room: int, queues: list[str], dry: set[str], turn: int
) -> None:
    wanted = share_slots(room, queues, dry, turn)
    assert set(wanted) <= set(queues)
    assert all(share >= 1 for share in wanted.values())
    assert sum(wanted.values()) <= max(0, room) + len(dry & set(queues))


@given(st.integers(1, 500), queue_lists, dry_sets, st.integers(0, 1000))
def test_all_room_is_used_and_flowing_queues_differ_by_one_at_most(
    room: int, queues: list[str], dry: set[str], turn: int
) -> None:
    wanted = share_slots(room, queues, dry, turn)
    flowing = [queue for queue in queues if queue not in dry] or queues
    shares = [wanted.get(queue, 0) for queue in flowing]
    assert sum(shares) == room
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 50), queue_lists, st.integers(0, 1000))
def test_over_as_many_turns_as_queues_each_gets_the_same(room: int, queues: list[str], turn: int) -> None:
    total: Counter[str] = Counter()
    for later in range(len(queues)):
        total.update(share_slots(room, queues, set(), turn + later))
    assert set(total.values()) == {room}


@given(st.integers(1, 500), queue_lists, st.integers(0, 1000))
def test_a_dry_queue_is_still_looked_at(room: int, queues: list[str], turn: int) -> None:
    wanted = share_slots(room, queues, {queues[0]}, turn)
    assert wanted.get(queues[0], 0) >= 1


@given(st.integers(1, 500), st.integers(1, 400), st.integers(0, 1000))
def test_of_many_dry_queues_a_few_are_looked_at_each_time_and_all_in_turn(room: int, count: int, turn: int) -> None:
    dry = {f"dry{number}" for number in range(count)}
    queues = [*sorted(dry), "flowing"]
    asked: set[str] = set()
    for later in range(-(-count // MOST_DRY) + 1):
        wanted = share_slots(room, queues, dry, turn + later)
        assert wanted["flowing"] == room
        assert len(wanted) <= MOST_DRY + 1
        asked |= wanted.keys()
    assert asked == set(queues)


@given(st.integers(1, 20), st.integers(1, 400), st.integers(0, 1000))
def test_more_queues_than_slots_are_all_looked_at_soon(room: int, count: int, turn: int) -> None:
    queues = [f"queue{number}" for number in range(count)]
    turns = -(-count // room) + 1
    assert {queue for later in range(turns) for queue in share_slots(room, queues, set(), turn + later)} == set(queues)


def test_no_room_asks_for_nothing() -> None:
    assert share_slots(0, QUEUES, set(), 0) == {}
    assert share_slots(-3, QUEUES, set(QUEUES), 0) == {}


# Taking ahead


def test_nothing_is_taken_ahead_before_anything_has_finished() -> None:
    assert JobPrefetch().extra == 0


def test_fast_jobs_are_taken_ahead_and_never_more_than_the_most() -> None:
    appetite = JobPrefetch(window=0.05, most=100)
    now = 0.0
    appetite.finished(0, now)
    for _ in range(50):
        now += 0.01
        appetite.finished(1000, now)
    assert appetite.extra == 100


def test_slow_jobs_are_left_to_others() -> None:
    appetite = JobPrefetch()
    now = 0.0
    for _ in range(20):
        now += 1.0
        appetite.finished(1, now)
    assert appetite.extra == 0


def test_appetite_grows_in_steps_and_falls_at_once() -> None:
    appetite = JobPrefetch(window=1.0, most=10_000)
    appetite.finished(0, 0.0)
    appetite.finished(1000, 1.0)
    first = appetite.extra
    appetite.finished(1000, 2.0)
    assert 0 < first < appetite.extra <= 1000
    appetite.finished(10, 3.0)
    assert appetite.extra == 10


def test_jobs_that_were_held_and_did_not_start_end_the_appetite() -> None:
    appetite = JobPrefetch(window=1.0)
    appetite.finished(0, 0.0)
    appetite.finished(500, 1.0)
    assert appetite.extra > 0
    appetite.slow_down()
    assert appetite.extra == 0


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 10)), max_size=30))
def test_appetite_is_never_negative_nor_above_the_most(steps: list[tuple[int, float]]) -> None:
    appetite, now = JobPrefetch(most=300), 0.0
    for count, passed in steps:
        now += passed
        appetite.finished(count, now)
        assert 0 <= appetite.extra <= 300
