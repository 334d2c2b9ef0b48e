"""Lanes share what a queue has room for: by weight, without idle room, whatever the turns are like."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, strategies as st

from tests.support.examples import examples
from tidemill.core.jobs.fair_lanes import SPREAD, FairLanes


class Jobs:
    """A model of the table: what a claim of some lanes finds."""

    def __init__(self, waiting: dict[tuple[int, str | None], int]) -> None:
        self.waiting = Counter(waiting)

    def claim(self, lanes: FairLanes, room: int) -> Counter[tuple[int, str | None]]:
        offers, left, got = lanes.offer(room), room, Counter[tuple[int, str | None]]()
        for lane, share in offers:
            name = lane.priority, lane.key
            taken = min(share, left, self.waiting[name])
            got[name] += taken
            self.waiting[name] -= taken
            left -= taken
        lanes.claimed(offers, got, room)
        return got


lanes_of_jobs = st.dictionaries(
    st.tuples(st.sampled_from([1, 5]), st.sampled_from("abcdefgh")), st.integers(1, 60), min_size=1
)


@given(lanes_of_jobs, st.integers(1, 30), st.dictionaries(st.sampled_from("abc"), st.integers(1, 5)))
def test_every_job_is_claimed_urgent_ones_first_and_without_idle_turns(
    waiting: dict[tuple[int, str | None], int], room: int, weights: dict[str, int]
) -> None:
    jobs, lanes, turns = Jobs(waiting), FairLanes(), 0
    lanes.weights = weights
    for priority, key in waiting:
        lanes.wake(priority, key)
    while jobs.waiting.total():
        got = jobs.claim(lanes, room)
        is_urgent_left = any(count for (priority, _), count in jobs.waiting.items() if priority == 5)
        assert not (is_urgent_left and any(count for (priority, _), count in got.items() if priority == 1))
        turns += 1
    assert turns <= sum(waiting.values()) / room + 3 * len(waiting) + 3
    for _ in range(6):
        jobs.claim(lanes, 1)
    assert not lanes.has_work


@examples(50)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=30), st.integers(1, 60), st.integers(0, 10**6))
def test_busy_lanes_get_their_weights(shares: list[int], most: int, seed: int) -> None:
    weights = {f"lane {n}": weight for n, weight in enumerate(shares)}
    jobs, lanes, chance = Jobs({(5, key): 10**9 for key in weights}), FairLanes(), random.Random(seed)
    lanes.weights = weights
    for key in weights:
        lanes.wake(5, key)
    got = jobs.claim(lanes, most)  # The largest room decides how long a round is.
    for _ in range(500):
        got += jobs.claim(lanes, chance.randint(1, most))
    per_weight = [got[5, key] / weight for key, weight in weights.items()]
    quantum = -(-most // min(len(weights), SPREAD))
    assert max(per_weight) - min(per_weight) <= 2 * quantum


def test_a_new_lane_goes_before_the_old_ones_but_only_once_per_round() -> None:
    jobs, lanes = Jobs({(5, f"old {n}"): 1000 for n in range(50)}), FairLanes()
    for n in range(50):
        lanes.wake(5, f"old {n}")
    for _ in range(20):
        jobs.claim(lanes, 10)
    jobs.waiting[5, "new"] = 1
    lanes.wake(5, "new")
    assert +jobs.claim(lanes, 1) == {(5, "new"): 1}
    served = Counter[tuple[int, str | None]]()
    for _ in range(100):  # It has one more job whenever its last one has started.
        jobs.waiting[5, "new"] = 1
        lanes.wake(5, "new")
        served += jobs.claim(lanes, 1)
    assert served[5, "new"] < 20


def test_a_lane_that_is_woken_during_a_claim_is_visited_again() -> None:
    lanes = FairLanes()
    lanes.wake(5, "a")
    for _ in range(2):
        offers = lanes.offer(10)
        lanes.wake(5, "a")  # the notification of a job that the claim could not see
        lanes.claimed(offers, Counter(), 10)
    assert lanes.has_work


def test_a_lane_sleeps_until_its_first_job_is_due() -> None:
    lanes = FairLanes()
    lanes.wake_at(5, "a", 20.0)
    lanes.wake_at(5, "a", 10.0)
    lanes.wake_due(9.0)
    assert not lanes.has_work
    assert lanes.next_at == 10.0
    lanes.wake_due(10.0)
    assert lanes.has_work


def test_claimed_jobs_of_lanes_start_in_turn() -> None:
    lanes = FairLanes()
    lanes.weights = {"b": 2}
    order = lanes.in_turn({(5, "a"): ["a1", "a2", "a3"], (5, "b"): ["b1", "b2", "b3", "b4"], (9, "c"): ["c"]})
    assert order == ["c", "a1", "b1", "b2", "a2", "b3", "b4", "a3"]


def test_lanes_that_are_empty_are_forgotten() -> None:
    jobs, lanes = Jobs({(5, "a"): 1}), FairLanes()
    lanes.wake(5, "a")
    for _ in range(3):
        jobs.claim(lanes, 5)
    assert lanes.has_keys
    lanes.forget_unseen()
    assert not lanes.has_keys


def test_a_lane_that_a_claim_has_emptied_is_not_visited_again_before_it_is_woken() -> None:
    jobs, lanes = Jobs({(5, f"lane {n}"): 3 for n in range(100)}), FairLanes()
    for n in range(100):
        lanes.wake(5, f"lane {n}")
    visits = Counter[str | None]()
    while lanes.has_work:
        offers = lanes.offer(1000)
        visits.update(lane.key for lane, _ in offers)
        got = Counter({(lane.priority, lane.key): jobs.waiting[lane.priority, lane.key] for lane, _ in offers})
        lanes.claimed(offers, got, 1000)
        jobs.waiting.subtract(got)
    assert set(visits.values()) == {1}
    lanes.wake(5, "lane 7")
    assert [lane.key for lane, _ in lanes.offer(1000)] == ["lane 7"]


def test_a_turn_visits_as_many_lanes_as_fill_its_room_by_what_they_have_given() -> None:
    for each, room in ((1, 600), (1000, 600)):
        jobs, lanes = Jobs({(5, f"lane {n}"): each for n in range(5000)}), FairLanes()
        for n in range(5000):
            lanes.wake(5, f"lane {n}")
        for _ in range(3):
            got = jobs.claim(lanes, room)
        assert got.total() == room
        assert len(lanes.offer(room)) <= max(2 * SPREAD, 2 * room // each)
