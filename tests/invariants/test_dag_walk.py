"""Whatever the dag, and in whatever order its nodes end: the walk keeps its promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support.dags import Walk
from tests.support.examples import examples
from tidemill.core.program import fold
from tidemill.core.ticks import Completed, Resumed, RunWork, Started
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.reducer.events import FINAL, NodeEnded, NodeFailure
from tidemill.dags.reducer.journal import decode_tick, encode_tick
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.runner.rerun import rerun_failed

thorough = examples(150)


@st.composite
def dags(draw: st.DrawFn, policies: tuple[Any, ...] = ("fail_run", "continue"), depth: int = 2) -> Dag:
    """Dags of all kinds of nodes, with conditions, policies, maps, inputs and sub-dags."""
    nodes: list[Any] = []
    for index in range(draw(st.integers(1, 7))):
        name = f"n{index}"
        deps = draw(st.lists(st.sampled_from([n.name for n in nodes]), unique=True, max_size=3)) if nodes else []
        common: dict[str, Any] = {
            "deps": deps,
            "on_failure": draw(st.sampled_from(policies)),
            "skip_if": {"$value": True} if draw(st.integers(0, 6)) == 0 else None,
            "skip_with": draw(st.sampled_from(["all", "any", "none"])),
        }
        args = {"seen": [ref(dep) for dep in deps]}
        kind = draw(st.sampled_from(["task", "task", "task", "map", "input", "dag"]))
        if kind == "dag" and depth:
            nodes.append(sub_dag(name, draw(dags(policies, depth - 1)), args=args, **common))
        elif kind == "input":
            default = {"default": "as usual"} if draw(st.booleans()) else {}
            nodes.append(input_node(name, prompt="?", timeout=60, **default, **common))
        elif kind == "map":
            items = list(range(draw(st.integers(0, 4))))
            most = draw(st.none() | st.integers(1, 2))
            tolerate = draw(st.integers(0, 2))
            args = {**args, "item": ref("item")}
            nodes.append(node(name, "t", map=items, args=args, max_concurrency=most, tolerate=tolerate, **common))
        else:
            nodes.append(node(name, "t", args=args, **common))
    return Dag("d", nodes)


def fate(command: RunWork, broken: set[str]) -> NodeEnded:
    """How a piece of work ends: by its node and its item, whenever it runs."""
    if f"{command.name}/{command.input.get('item', '')}" in broken or command.name in broken:
        return NodeEnded("failed", error=NodeFailure("Bad", "broken"))
    return NodeEnded("succeeded", result=msgspec.Raw(msgspec.json.encode({"of": command.name, **command.input})))


def walk_to_the_end(dag: Dag, broken: set[str], choose: Callable[[int], int], **options: Any) -> Walk:
    """A run in which whatever can happen next happens in the order that `choose` says."""
    walk = Walk(dag, **options)
    walk.post(Started(0.0, {"day": "monday"}))
    return go_on(walk, broken, choose)


def go_on(walk: Walk, broken: set[str], choose: Callable[[int], int]) -> Walk:
    for _ in range(2000):
        assert_sound(walk)
        if walk.state.status != "running":
            return walk
        can: list[Any] = [*sorted(walk.works), *sorted(walk.timers)]
        assert can, "the run has not ended, and nothing can happen any more"
        what = can[choose(len(can))]
        if isinstance(what, int):
            walk.end(what, fate(walk.works[what], broken))
        elif what.removeprefix("input:") in broken:
            walk.elapse(what)
        else:
            walk.submit(what.removeprefix("input:"), "answered")
    raise AssertionError("the run does not end")


def assert_sound(walk: Walk) -> None:
    """What holds after every tick."""
    state, steps = walk.state, walk.program.plan.steps
    assert state.open == sum(node.status not in FINAL for node in state.nodes.values())
    assert set(state.works) == set(walk.works)
    for name, found in state.nodes.items():
        if found.status in ("running", "waiting", "succeeded"):
            dep_states = {state.nodes[dep].status for dep in steps[name].deps}
            assert dep_states <= {"succeeded", "skipped"}, f"{name} began before what it depends on"
        if found.items is not None and found.status == "running":
            most = getattr(steps[name].spec, "max_concurrency", None)
            assert most is None or len(found.items.working) <= most
    for prefix, scope in walk.program.plan.scopes.items():
        if scope.enter is not None and scope.leave is not None:
            inside = {state.nodes[name].status for name in walk.program.plan.within(prefix)}
            if state.nodes[scope.leave].status in FINAL:
                assert inside <= FINAL, f"{scope.leave} ended before what is inside of it"
            if state.nodes[scope.enter].status == "skipped":
                assert inside <= {"skipped", "pending", "cancelled"}, f"{scope.leave} is skipped only in part"


def outcome(walk: Walk) -> dict[str, Any]:
    return {name: (node.status, node.result) for name, node in walk.state.nodes.items()}


names = st.sets(st.sampled_from([f"n{i}" for i in range(7)] + [f"n{i}/n{j}" for i in range(4) for j in range(4)]))


@thorough
@given(dags(), names, st.data())
def test_every_run_ends_once_with_every_node_in_a_final_state(dag: Dag, broken: set[str], data: st.DataObject) -> None:
    walk = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    assert len(walk.ends) == 1
    assert set(walk.statuses.values()) <= FINAL
    assert (walk.works, walk.timers, walk.state.works, walk.state.open) == ({}, {}, {}, 0)
    assert (walk.ends[0].state == "succeeded") == (set(walk.statuses.values()) <= {"succeeded", "skipped"})


@thorough
@given(dags(policies=("continue",)), names, st.data())
def test_the_order_in_which_nodes_end_does_not_matter(dag: Dag, broken: set[str], data: st.DataObject) -> None:
    one = walk_to_the_end(dag, broken, lambda count: 0)
    other = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    assert outcome(other) == outcome(one)
    assert (other.ends[0].state, other.ends[0].result) == (one.ends[0].state, one.ends[0].result)


@thorough
@given(dags(), names, st.data())
def test_whether_a_run_succeeds_does_not_depend_on_the_order(dag: Dag, broken: set[str], data: st.DataObject) -> None:
    one = walk_to_the_end(dag, broken, lambda count: count - 1)
    other = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    assert (other.ends[0].state, other.ends[0].result) == (one.ends[0].state, one.ends[0].result)


@examples(60)
@given(dags(), names, st.data())
def test_a_run_restored_after_any_tick_goes_on_as_if_nothing_had_been(
    dag: Dag, broken: set[str], data: st.DataObject
) -> None:
    walk = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    program = DagProgram(Dag.from_json(dag.to_json()))
    journal = [decode_tick(encode_tick(tick)) for tick in walk.journal]
    assert program.snapshot(fold(program, journal)) == program.snapshot(walk.state)
    live = program.begin()
    for tick in journal:
        restored = program.restore(program.snapshot(live))
        assert restored == live
        assert program.reduce(restored, tick) == program.reduce(live, tick)
        assert restored == live
        before = program.snapshot(live)
        assert program.reduce(live, Resumed(tick.at)) == []
        assert program.snapshot(live) == before


@thorough
@given(dags(), names, st.integers(0, 12), st.data())
def test_cancelling_at_any_time_ends_everything(dag: Dag, broken: set[str], after: int, data: st.DataObject) -> None:
    walk = Walk(dag)
    if after:
        walk.post(Started(0.0, {}))
    for _ in range(after - 1):
        if walk.works and walk.state.status == "running":
            what = data.draw(st.sampled_from(sorted(walk.works)))
            walk.end(what, fate(walk.works[what], broken))
    done = {name: node.result for name, node in walk.state.nodes.items() if node.status == "succeeded"}
    ended = bool(walk.ends)
    walk.cancel()
    assert (walk.works, walk.timers, walk.state.works, walk.state.open) == ({}, {}, {}, 0)
    assert set(walk.statuses.values()) <= FINAL
    assert len(walk.ends) == 1
    assert ended or walk.ends[0].state == "cancelled"
    assert {name: walk.state.nodes[name].result for name in done} == done


@thorough
@given(dags(), names, st.data())
def test_what_failed_is_done_again_until_all_is_done_and_nothing_twice(
    dag: Dag, broken: set[str], data: st.DataObject
) -> None:
    old = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    if old.ends[0].state == "succeeded":
        return
    done = {name for name, node in old.state.nodes.items() if node.status in ("succeeded", "skipped")}
    walk = Walk(dag, rerun_failed(old.program, old.state))
    walk.post(Started(1000.0, None))
    go_on(walk, set(), lambda count: data.draw(st.integers(0, count - 1)))
    assert walk.ends[0].state == "succeeded"
    assert not done & set(walk.begun)
    healthy = walk_to_the_end(dag, set(), lambda count: 0)
    if not any(node.note.endswith("tolerated") or "default" in node.note for node in old.state.nodes.values()):
        assert outcome(walk) == outcome(healthy)


@thorough
@given(dags(), names, st.data())
def test_an_outcome_that_comes_twice_counts_once(dag: Dag, broken: set[str], data: st.DataObject) -> None:
    walk = walk_to_the_end(dag, broken, lambda count: data.draw(st.integers(0, count - 1)))
    twice = Walk(dag)
    for tick in walk.journal:
        twice.program.reduce(twice.state, tick)
        before = twice.program.snapshot(twice.state)
        if isinstance(tick, Completed):
            changed = Completed(tick.at, tick.work, NodeEnded("succeeded", result=msgspec.Raw(b'"other"')))
            assert twice.program.reduce(twice.state, changed) == []
            assert twice.program.snapshot(twice.state) == before
    assert twice.program.snapshot(twice.state) == walk.program.snapshot(walk.state)


# -- cost -----------------------------------------------------------------------------------------


class Counted(dict[str, Any]):
    """A dictionary that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        Counted.looks += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)

    def items(self) -> Any:
        Counted.looks += len(self)
        return super().items()

    def values(self) -> Any:
        Counted.looks += len(self)
        return super().values()

    def __iter__(self) -> Any:
        Counted.looks += len(self)
        return super().__iter__()


def looks_per_end(dag: Dag) -> int:
    """The most looks at nodes that the end of any node but the last one takes."""
    walk = Walk(dag)
    walk.start()
    walk.state.nodes = Counted(walk.state.nodes)
    walk.program.plan.steps = Counted(walk.program.plan.steps)
    most = 0
    while len(walk.state.works) and walk.state.open > 1:
        work = next(iter(walk.works))
        name = walk.works[work].name
        followers = max(1, len(walk.program.plan.steps[name].followers))
        Counted.looks = 0
        walk.end(work, NodeEnded("succeeded"))
        most = max(most, Counted.looks // followers)
    return most


def chain(length: int) -> Dag:
    return Dag("chain", [node(f"n{i}", "t", deps=[f"n{i - 1}"] if i else []) for i in range(length)])


def ladder(length: int) -> Dag:
    """Pairs of nodes, each of which depends on both of the pair before."""
    nodes = [node("a0", "t"), node("b0", "t")]
    for i in range(1, length // 2):
        nodes += [node(f"{side}{i}", "t", deps=[f"a{i - 1}", f"b{i - 1}"]) for side in "ab"]
    return Dag("ladder", nodes)


def wide(width: int) -> Dag:
    middle = [node(f"n{i}", "t", deps=["first"]) for i in range(width - 2)]
    return Dag("wide", [node("first", "t"), *middle, node("last", "t", deps=[each.name for each in middle])])


@pytest.mark.parametrize("shape", [chain, ladder, wide])
def test_the_end_of_a_node_costs_by_what_follows_it_and_not_by_the_size_of_the_dag(shape: Any) -> None:
    small, large = looks_per_end(shape(20)), looks_per_end(shape(10_000))
    assert large <= small
    assert large < 20


def test_a_chain_of_ten_thousand_skipped_or_blocked_nodes_is_no_trouble() -> None:
    nodes = [node("n0", "t", on_failure="continue")]
    nodes += [node(f"n{i}", "t", deps=[f"n{i - 1}"]) for i in range(1, 10_000)]
    blocked = Walk(Dag("d", nodes)).start().fail("n0")
    assert set(list(blocked.statuses.values())[1:]) == {"blocked"}
    skipped = Walk(Dag("d", [node("n0", "t", skip_if={"$value": True}), *nodes[1:]])).start()
    assert set(skipped.statuses.values()) == {"skipped"}
