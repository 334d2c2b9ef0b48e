"""What a failed attempt has written is taken back, and nothing else: the state is as if it had never run."""

from __future__ import annotations

import copy
import time
from collections import Counter, deque
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.simulation.test_flow_folds import program
from tests.support.examples import examples
from tidemill.flows import StartEvent
from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.snapshot import encode_state
from tidemill.flows.encoding.values import pack, unpack
from tidemill.flows.reducer.state.diff import changes, same
from tidemill.flows.reducer.state.flow_state import FlowState, PendingWrites, Work
from tidemill.flows.reducer.state.merge import merged
from tidemill.flows.reducer.state.paths import MISSING, write_path, write_paths
from tidemill.flows.reducer.state.undo import (
    before_kept_writes,
    drop_kept_writes,
    keep_writes,
    undo_writes,
    write,
    write_for_good,
)
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


def test_a_value_inside_a_value_that_outlives_a_failure_is_undone_by_itself() -> None:
    state = FlowState(store=holding({}))
    outer, middle, inner = new_work(1), new_work(2), new_work(3)
    write(state, outer, (("x", {}),))
    write(state, middle, (("x.y", {}),))
    write(state, inner, (("x.y.z", 0),))
    undo_writes(state, outer)
    undo_writes(state, inner)
    assert state.store.x == {"y": {}}


def test_what_was_made_from_a_write_is_as_if_it_had_never_been_written() -> None:
    state = FlowState(store=holding({"n": 1, "names": ["a"], "by": {"a": {"n": 1}}}), copies=True)
    early, late, blind = new_work(1), new_work(2), new_work(3)
    write(state, early, (("n", 11), ("names", ["a", "b"]), ("by", {"a": {"n": 11}, "b": {}})), edits=True)
    made = (("n", 111), ("names", ["a", "b", "c"]), ("by", {"a": {"n": 111}, "b": {}, "c": {}}))
    write(state, late, made, edits=True)
    keep_writes(state, late)
    write(state, blind, (("set", 1),))
    undo_writes(state, early)
    assert len(early.kept_writes) == 3
    drop_kept_writes(state, early)
    undo_writes(state, blind)
    assert plain(state.store) == {"n": 101, "names": ["a", "c"], "by": {"a": {"n": 101}, "c": {}}}
    assert state.drafts == PendingWrites()


@pytest.mark.parametrize(
    ("old", "new", "built", "expected"),
    [
        (5, 0, 8, 3),
        (1.5, 0.5, 4.0, 3.0),
        (Decimal("2.5"), Decimal(1), Decimal("4.5"), Decimal(3)),
        (True, False, True, False),
        (True, False, False, False),
        ("a", "", "b", "b"),
        ([1, 2], [1], [1, 2, 3], [1, 3]),
        ([2, 1], [1], [2, 1, 3], [1, 3]),
        ([1], [1, 2], [1, 3], [1, 2, 3]),
        ([5, 0], [0, 0], [5, 3], [0, 3]),
        ([1, 1], [1], [1, 1, 1], [1, 1]),
        ((1, 2), (1,), (1, 2, 3), (1, 3)),
        (deque([1, 2]), deque([1]), deque([1, 2, 3]), deque([1, 3])),
        ({1, 2}, {1}, {1, 2, 3}, {1, 3}),
        ({"a": 1}, {}, {"a": 1, "b": 1}, {"b": 1}),
        ({"a": 2}, {}, {"a": 5}, {"a": 3}),
        ({}, {"a": 1}, {"b": 1}, {"b": 1, "a": 1}),
        (Counter(a=2), Counter(), Counter(a=3, b=1), Counter(a=1, b=1)),
        (5, MISSING, 8, 3),
        ([1], MISSING, [1, 2], [2]),
        (MISSING, 5, 8, 8),
        (5, 0, MISSING, MISSING),
        (5, 0, "text", "text"),
        ({"a": 1}, 3, [1], [1]),
    ],
)
def test_a_difference_is_applied_to_what_was_made_from_a_value(old: Any, new: Any, built: Any, expected: Any) -> None:
    before = copy.copy(built)
    assert merged(old, new, built) == expected
    assert built is MISSING or built == before


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


@pytest.mark.parametrize(
    "value",
    [
        timedelta(days=1),
        datetime(2024, 3, 31, 2, 30, tzinfo=UTC),
        Decimal("1.10"),
        UUID(int=5),
        PurePosixPath("/a"),
        frozenset({1, 2}),
        1 + 2j,
    ],
)
def test_values_that_were_restored_are_the_same_and_undone_by_element(value: Any) -> None:
    first, again, third = (unpack(pack(value)) for _ in range(3))
    assert first is not again
    assert same({"x": first}, {"x": again})
    assert merged([first, 1], [1], [again, 1, 2]) == [1, 2], "equal values of another process are found"
    assert merged({"x": first, "n": 3}, {"x": again, "n": 0}, {"x": third, "n": 5}) == {"x": first, "n": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.1"), Decimal("1.10")),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
        (object(), object()),
    ],
)
def test_values_that_are_only_equal_are_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)


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


class Editing(RuleBasedStateMachine):
    """Several steps edit the same values; each fails, dies with the others or gives up at any time, and runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.state = program().begin()
        self.state.store, self.state.copies = DictState(), True
        self.done: dict[int, int] = {}  # how many edits each worker has made in this attempt
        self.given_up: set[int] = set()
        self.ended: set[int] = set()

    @rule(worker=st.integers(1, 4))
    def a_step_edits(self, worker: int) -> None:
        if worker in self.ended | self.given_up:
            return
        work = self.state.works.setdefault(worker, new_work(worker))
        count = self.done[worker] = self.done.get(worker, 0) + 1
        if count > 3:
            keep_writes(self.state, self.state.works.pop(worker))
            self.ended.add(worker)
            return
        store = before_kept_writes(self.state.store, work.kept_writes) if work.kept_writes else self.state.store
        edited = copy_data(store)
        self.edit(edited, worker, count)
        write(self.state, work, changes(store, edited), edits=True)

    def edit(self, state: Any, worker: int, count: int) -> None:
        mark = f"{worker} {count}"
        if count != 2:
            state["sum"] = state.get("sum", 0) + worker
            state["marks"] = [*state.get("marks", []), mark]
        if count != 1:
            state["names"] = {**state.get("names", {}), mark: {"of": worker}}
            state["counts"] = {**state.get("counts", {}), "all": state.get("counts", {}).get("all", 0) + 1}

    @rule(worker=st.integers(1, 4))
    def a_step_fails_and_is_tried_again(self, worker: int) -> None:
        if worker in self.state.works:
            undo_writes(self.state, self.state.works[worker])
            self.done[worker] = 0

    @rule(worker=st.integers(1, 4))
    def a_step_gives_up(self, worker: int) -> None:
        if worker in self.state.works:
            work = self.state.works.pop(worker)
            undo_writes(self.state, work)
            drop_kept_writes(self.state, work)
            self.given_up.add(worker)

    @rule()
    def their_process_dies(self) -> None:
        self.it_is_restored()
        undo_writes(self.state, *self.state.works.values())
        self.done |= dict.fromkeys(self.state.works, 0)

    @rule()
    def it_is_restored(self) -> None:
        self.state = program().restore(program().snapshot(self.state))
        self.state.copies = True

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        if not self.state.works:
            assert self.state.drafts == PendingWrites()

    def teardown(self) -> None:
        """Each worker that has not given up ends well: each of its edits is there once."""
        for worker in list(self.state.works):
            while worker not in self.ended:
                self.a_step_edits(worker)
        told = DictState()
        for worker in self.ended:
            for count in (1, 2, 3):
                self.edit(told, worker, count)
        found, expected = filled(plain(self.state.store)), filled(plain(told))
        for each in (found, expected):
            each["marks"] = sorted(each.get("marks", []))
            if not each.get("sum"):
                each.pop("sum", None)
            if not each.get("counts", {}).get("all"):
                each.pop("counts", None)
        assert found == expected
        assert self.state.drafts == PendingWrites()


TestEditing = Editing.TestCase
