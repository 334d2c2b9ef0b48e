"""What a failed attempt has written is taken back, and nothing else: the state is as if it had never run."""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.simulation.test_flow_folds import program
from tests.support.examples import examples
from tidemill.flows import StartEvent
from tidemill.flows.encoding.snapshot import encode_state
from tidemill.flows.reducer.state import FlowState, PendingWrites, Work
from tidemill.flows.reducer.state_diff import changes, same
from tidemill.flows.reducer.state_paths import MISSING, write_path, write_paths
from tidemill.flows.reducer.state_undo import keep_writes, undo_writes, write, write_for_good
from tidemill.flows.runner.state_store import DictState

NAMES = "abc"
names = st.sampled_from(NAMES)
leaves = st.integers(0, 3)
#: Paths of three names at most; what is not at the end of such a path is a dict.
writes = st.one_of(
    st.tuples(names, st.dictionaries(names, st.dictionaries(names, leaves, max_size=2), max_size=2)),
    st.tuples(st.tuples(names, names).map(".".join), st.dictionaries(names, leaves, max_size=2)),
    st.tuples(st.tuples(names, names, names).map(".".join), leaves),
)
acts = st.lists(writes, min_size=1, max_size=3)
anywhere = st.tuples(st.lists(names, min_size=1, max_size=3).map(".".join), st.one_of(leaves, st.just({})))


def new_work(number: int) -> Work:
    return Work(number, "work", StartEvent(), (), (), StartEvent, 0.0)


class Drafting(RuleBasedStateMachine):
    """Several attempts write at once, and end as they like; the outside writes too."""

    def __init__(self) -> None:
        super().__init__()
        self.state = program().begin()
        self.state.store = DictState()
        self.attempts: dict[int, int] = {}  # the attempt that each worker is at, if any
        self.begun = 0
        self.history: list[tuple[int, str, Any]] = []
        self.failed: set[int] = set()

    @rule(worker=st.integers(1, 4), act=acts)
    def an_attempt_writes(self, worker: int, act: list[tuple[str, Any]]) -> None:
        if worker not in self.attempts:
            self.begun += 1
            self.attempts[worker] = self.begun
            self.state.works[worker] = new_work(worker)
        write(self.state, self.state.works[worker], copy.deepcopy(tuple(act)))
        self.history += [(self.attempts[worker], path, value) for path, value in act]

    @rule(change=writes)
    def the_outside_writes(self, change: tuple[str, Any]) -> None:
        write_for_good(self.state, copy.deepcopy((change,)))
        self.history.append((0, *change))

    @rule(worker=st.integers(1, 4))
    def an_attempt_ends_well(self, worker: int) -> None:
        if self.attempts.pop(worker, None) is not None:
            keep_writes(self.state, self.state.works.pop(worker))

    @rule(worker=st.integers(1, 4))
    def an_attempt_fails(self, worker: int) -> None:
        if (attempt := self.attempts.pop(worker, None)) is not None:
            self.failed.add(attempt)
            undo_writes(self.state, self.state.works.pop(worker))

    @rule()
    def it_is_restored(self) -> None:
        self.state = program().restore(program().snapshot(self.state))

    def told(self) -> FlowState:
        """The state without what failed attempts have written."""
        state = FlowState(store=DictState())
        for who, path, value in self.history:
            if who not in self.failed:
                write_path(state, path, copy.deepcopy(value))
        return state

    @invariant()
    def the_state_is_what_the_others_have_written(self) -> None:
        assert filled(plain(self.state.store)) == filled(plain(self.told().store))

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        if not self.attempts:
            assert self.state.drafts == PendingWrites()


TestDrafting = Drafting.TestCase
TestDrafting.settings = examples(150, stateful_step_count=20)


def holding(data: dict[str, Any]) -> DictState:
    return DictState(**{"_data": data})


def filled(value: Any) -> Any:
    """A value without empty dicts: those that were made on the way to another step's value may stay."""
    if not isinstance(value, dict):
        return value
    inner = {name: filled(each) for name, each in value.items()}
    return {name: each for name, each in inner.items() if each != {}}


def plain(store: Any) -> Any:
    return dict(store.items())


def test_a_later_write_of_another_step_outlives_a_failure() -> None:
    state = FlowState(store=holding({"x": 0}))
    early, late = new_work(1), new_work(2)
    write(state, early, (("x", 1),))
    write(state, late, (("x", 1),))
    undo_writes(state, early)
    assert state.store.x == 1
    undo_writes(state, late)
    assert state.store.x == 0, "what came back is not the failed attempt's value"


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["write", "keep_writes", "fail"]), anywhere), max_size=25))
def test_writes_that_lose_their_place_do_no_harm(deeds: list[tuple[int, str, tuple[str, Any]]]) -> None:
    """A dict becomes a number while a step writes into it: its write is lost, and nothing else."""
    state = FlowState(store=holding({"kept": 1}))
    works = {number: new_work(number) for number in (1, 2, 3)}
    for number, deed, change in deeds:
        if deed == "write":
            with suppress(AttributeError):  # The step that writes through a number is told so.
                write(state, works[number], copy.deepcopy((change,)))
        else:
            (keep_writes if deed == "keep_writes" else undo_writes)(state, works[number])
    for work in works.values():
        undo_writes(state, work)
    assert state.store.kept == 1
    assert state.drafts == PendingWrites()


def test_writes_cost_what_they_overlap() -> None:
    """Thousands of attempts at once, each with a name of its own and one that they share."""

    def seconds(count: int) -> float:
        state = FlowState(store=DictState())
        began = time.process_time()
        works = [new_work(number) for number in range(count)]
        for work in works:
            write(state, work, ((f"part{work.id}", 1), ("last", work.id), (f"parts.{work.id}", 1)))
        for work in works:
            (keep_writes if work.id % 2 else undo_writes)(state, work)
        assert state.drafts == PendingWrites()
        return time.process_time() - began

    few = max(min(seconds(500) for _ in range(3)), 0.001)
    assert min(seconds(4000) for _ in range(3)) < 30 * few, "8 times as many cost about 8 times as much, not 64"


# -- edits ----------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "y"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
)
states = st.dictionaries(st.sampled_from(["a", "b", "get", "items", "x.y", ""]), anything, max_size=4)


@given(states, states)
def test_an_edit_writes_what_has_changed_and_gives_the_edited_state(before: Any, after: Any) -> None:
    one, other = holding(copy.deepcopy(before)), holding(copy.deepcopy(after))
    state = FlowState(store=one)
    found = changes(one, other)
    write_paths(state, found)
    assert same(plain(state.store), plain(other)) or sorted(plain(state.store)) == sorted(plain(other))
    assert all(same(plain(state.store)[name], value) for name, value in plain(other).items())


@pytest.mark.parametrize(("before", "after"), [(1, True), (1, 1.0), (0, False), ([1], [True]), ({"k": 1}, {"k": 1.0})])
def test_a_change_of_type_is_a_change(before: Any, after: Any) -> None:
    assert changes(holding({"x": before}), holding({"x": after})) == (("x", after),)


def test_an_edit_of_one_value_writes_one_value() -> None:
    big = holding({"log": list(range(1000)), "n": 1})
    edited = copy.deepcopy(big)
    edited.n = 2
    assert changes(big, edited) == (("n", 2),)
    del edited._data["log"]
    assert changes(big, edited) == (("n", 2), ("log", MISSING))
    assert changes(big, copy.deepcopy(big)) == ()


def test_the_snapshot_of_a_state_with_drafts_says_everything() -> None:
    state = program().begin()
    state.store = holding({"x": 0})
    work = state.works[1] = new_work(1)
    write(state, work, (("x", 1), ("new.deep", 2)))
    restored = program().restore(program().snapshot(state))
    assert encode_state(restored) == encode_state(state)
    undo_writes(restored, restored.works[1])
    assert plain(restored.store) == {"x": 0}
