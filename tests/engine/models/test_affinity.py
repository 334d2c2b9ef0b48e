"""Which model a worker serves next: few loads, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from tidemill.engine.models.affinity import choose_heads
from tidemill.store.jobs.claims.model_claims import Head

PATIENCE = 30.0
LONG = 1000.0

heads_lists = st.lists(
    st.builds(
        Head,
        st.sampled_from(["q", "r"]),
        st.integers(0, 9),
        st.sampled_from([None, "a", "b", "c"]),
        st.floats(0, 100),
    ),
    unique_by=lambda head: head[:3],
    max_size=20,
)
model_sets = st.sets(st.sampled_from(["a", "b", "c"]))


def room_for(most: int):  # type: ignore[no-untyped-def]
    return lambda model, others: len({model, *others}) <= most


def chosen(
    heads: list[Head], warm: Iterable[str] = (), needed: Iterable[str] = (), most: int = 1, stint: float = LONG
) -> list[Head]:
    return choose_heads(heads, warm=set(warm), needed=set(needed), fits=room_for(most), patience=PATIENCE, stint=stint)


def head(model: str | None, waited: float, priority: int = 5, queue: str = "q") -> Head:
    return Head(queue, priority, model, waited)


def test_the_loaded_model_goes_before_older_jobs_of_others() -> None:
    assert chosen([head("a", 1), head("b", 20)], warm="a")[0].model == "a"


def test_nothing_loaded_means_first_come_first_served() -> None:
    assert chosen([head("a", 1), head("b", 20), head("c", 10)]) == [head("b", 20)]


def test_jobs_without_a_model_are_as_good_as_those_of_the_loaded_one() -> None:
    assert chosen([head("a", 1), head(None, 2), head("b", 20)], warm="a") == [head(None, 2), head("a", 1)]


def test_a_job_that_was_passed_over_for_longer_than_the_patience_goes_first() -> None:
    assert chosen([head("a", 100), head("b", 31), head("c", 40)], warm="a") == [head("c", 40)]


def test_a_worker_that_has_just_changed_models_stays_with_the_new_one() -> None:
    assert chosen([head("a", 100), head("b", 90), head("c", 80)], warm="a", stint=29.0) == [head("a", 100)]


def test_a_passed_over_job_whose_model_must_wait_for_jobs_in_hand_stops_all_others_with_models() -> None:
    waiting = [head("a", 1), head("b", 31), head(None, 5)]
    assert chosen(waiting, warm="a", needed="a") == [head(None, 5)]
    assert chosen(waiting, warm="a") == [head("b", 31)]


def test_a_job_whose_model_does_not_fit_beside_those_in_hand_is_left_for_others() -> None:
    assert chosen([head("b", 20)], warm="a", needed="a") == []
    assert chosen([head("b", 20)], warm="a", needed="a", most=2) == [head("b", 20)]


def test_with_room_for_both_models_the_older_job_goes_first() -> None:
    assert chosen([head("a", 1), head("b", 2)], warm="a", most=2) == [head("b", 2), head("a", 1)]


def test_a_higher_priority_goes_first_whatever_its_model() -> None:
    assert chosen([head("a", 20, priority=5), head("b", 1, priority=6)], warm="a")[0] == head("b", 1, priority=6)


def test_a_higher_priority_that_cannot_be_taken_yet_is_not_overtaken_by_a_lower_one() -> None:
    assert chosen([head("a", 20, priority=5), head("b", 1, priority=6)], warm="a", needed="a") == []


@given(heads_lists, model_sets, st.floats(0, 100), st.integers(1, 3))
def test_an_idle_worker_always_takes_something(heads: list[Head], warm: set[str], stint: float, most: int) -> None:
    assert bool(chosen(heads, warm=sorted(warm)[:most], most=most, stint=stint)) == bool(heads)


@given(heads_lists, model_sets, model_sets, st.floats(0, 100), st.integers(1, 3))
def test_whatever_is_taken_fits_together_and_keeps_to_the_priorities(
    heads: list[Head], warm: set[str], needed: set[str], stint: float, most: int
) -> None:
    needed = set(sorted(needed)[:most])
    picked = chosen(heads, warm=warm, needed=needed, most=most, stint=stint)
    assert len({one.model for one in picked if one.model} | needed) <= most
    assert len(picked) == len(set(picked))
    for queue in ("q", "r"):
        priorities = [one.priority for one in picked if one.queue == queue]
        assert priorities == sorted(priorities, reverse=True)


class Day:
    """A worker with room for one model, and a queue that it works through in simulated time."""

    def __init__(self, *, work: float = 0.1, load: float = 2.0, patience: float = PATIENCE) -> None:
        self.now = 0.0
        self.work, self.load, self.patience = work, load, patience
        self.queue: list[tuple[float, str]] = []
        self.loads = 0
        self.warm: str | None = None
        self.changed_at = -LONG
        self.waits: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    def serve_one(self) -> None:
        first: dict[str, float] = {}
        for due, model in self.queue:
            first[model] = min(due, first.get(model, due))
        heads = [head(model, self.now - due) for model, due in first.items()]
        warm = {self.warm} if self.warm else set()
        stint = self.now - self.changed_at
        best = choose_heads(heads, warm=warm, needed=set(), fits=room_for(1), patience=self.patience, stint=stint)[0]
        assert best.model is not None
        self.queue.remove((first[best.model], best.model))
        if best.model != self.warm:
            self.loads += 1
            self.now += self.load
            self.warm, self.changed_at = best.model, self.now
        self.waits[best.model].append(self.now - first[best.model])
        self.now += self.work


def test_a_long_queue_costs_one_load_a_patience_and_not_one_a_job() -> None:
    day = Day()
    day.queue = [(0.0, model) for _ in range(2000) for model in "abc"]
    while day.queue:
        day.serve_one()
    assert day.now < 6000 * day.work * 1.15
    assert day.loads <= day.now / PATIENCE + 3


@pytest.mark.parametrize("seed", range(10))
def test_a_rare_job_is_served_within_the_patience_however_busy_the_other_model_is(seed: int) -> None:
    chance, day = random.Random(seed), Day()
    rare_due = 0.0
    for _ in range(20_000):
        while sum(model == "a" for _, model in day.queue) < 5:
            day.queue.append((day.now, "a"))
        if day.now >= rare_due:
            day.queue.append((rare_due, "b"))
            rare_due = day.now + chance.uniform(1, 100)
        day.serve_one()
    assert len(day.waits["b"]) > 20
    assert max(day.waits["b"]) <= PATIENCE + 2 * day.load + 2 * day.work


@pytest.mark.parametrize("seed", range(5))
def test_no_model_starves_among_others_that_are_always_busy(seed: int) -> None:
    chance, day = random.Random(seed), Day()
    for _ in range(20_000):
        while len(day.queue) < 9:
            day.queue.append((day.now, chance.choice("aaabbc")))
        day.serve_one()
    bound = PATIENCE + 2 * (PATIENCE + day.load) + 2 * day.load + 9 * day.work
    assert all(max(waits) <= bound for waits in day.waits.values())
