"""Runs that repeat another: what is carried over, and what is done again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dags import Walk
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import EndRun, Started
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.runner.rerun import rerun_failed, rerun_from

CHAIN = Dag(
    "d",
    [
        node("a", "t", args={"day": ref("run.day")}),
        node("b", "t", args={"x": ref("a.x")}, on_failure="continue"),
        node("c", "t", args={"y": ref("b.y"), "x": ref("a.x")}, deps=["b"]),
        node("d", "t", deps=["a"]),
    ],
)


def failed() -> Walk:
    return Walk(CHAIN).start(day="monday").done("a", {"x": 1}).fail("b").done("d", "kept")


def again(dag: Dag, state: Any) -> Walk:
    walk = Walk(dag, state)
    walk.post(Started(500.0, None))
    assert walk.program.restore(walk.program.snapshot(walk.state)) == walk.state
    return walk


def test_only_what_failed_and_what_depends_on_it_is_done_again() -> None:
    old = failed()
    before = old.program.snapshot(old.state)
    walk = again(CHAIN, rerun_failed(old.program, old.state))
    assert walk.running == ["b"]
    assert walk.given("b") == {"x": 1}
    walk.done("b", {"y": 2})
    assert walk.given("c") == {"y": 2, "x": 1}
    walk.done("c", "new")
    assert walk.ends == [EndRun("succeeded", {"c": "new", "d": "kept"}, None)]
    assert walk.begun == ["b", "c"]
    assert old.program.snapshot(old.state) == before
    assert [name for name, node in walk.state.nodes.items() if node.carried] == ["a", "d"]


def test_a_run_is_repeated_from_a_node_with_edited_input() -> None:
    old = failed()
    walk = again(CHAIN, rerun_from(old.program, old.state, "a", edited={"day": "sunday", "of": ref("run.day")}))
    assert walk.running == ["a"]
    assert walk.given("a") == {"day": "sunday", "of": "monday"}
    walk.done("a", {"x": 7})
    assert walk.running == ["b", "d"]
    assert walk.given("b") == {"x": 7}


def test_a_run_is_repeated_from_a_node_as_it_was() -> None:
    old = Walk(CHAIN).start(day="monday").done("a", {"x": 1}).done("b", {"y": 1}).done("d").done("c", "c")
    walk = again(CHAIN, rerun_from(old.program, old.state, "c"))
    assert walk.running == ["c"]
    assert walk.given("c") == {"y": 1, "x": 1}
    assert walk.done("c", "c2").ends == [EndRun("succeeded", {"c": "c2", "d": None}, None)]


def test_a_repeated_run_may_have_other_arguments() -> None:
    old = failed()
    walk = Walk(CHAIN, rerun_from(old.program, old.state, "a"))
    walk.post(Started(500.0, {"day": "friday"}))
    assert walk.given("a") == {"day": "friday"}


def test_an_answer_is_given_again_without_asking() -> None:
    dag = Dag("d", [input_node("a", prompt="?", schema={"type": "number"}), node("b", "t", args={"x": ref("a")})])
    old = Walk(dag).start()
    old.submit("a", 1)
    old.done("b")
    walk = again(dag, rerun_from(old.program, old.state, "a", edited=2))
    assert walk.given("b") == {"x": 2}
    assert walk.state.nodes["a"].note == "answered when the rerun was started"
    with pytest.raises(
        ConfigError, match='node \'a\': the answer does not fit the schema: "x" is not of type "number"'
    ):
        rerun_from(old.program, old.state, "a", edited="x")
    assert again(dag, rerun_from(old.program, old.state, "a")).statuses == {"a": "waiting", "b": "pending"}


def test_of_a_failed_map_only_the_items_that_did_not_succeed_are_done_again() -> None:
    dag = Dag("d", [node("a", "t"), node("each", "t", map=ref("a"), args={"x": ref("item")}, max_concurrency=2)])
    old = Walk(dag).start().done("a", ["p", "q", "r", "s"]).done("each", "P").fail("each")
    walk = again(dag, rerun_failed(old.program, old.state))
    assert [work.input["x"] for work in walk.works.values()] == ["q", "r"]
    walk.done("each", "Q").done("each", "R").done("each", "S")
    assert walk.ends == [EndRun("succeeded", {"each": ["P", "Q", "R", "S"]}, None)]


def test_a_map_whose_list_is_made_again_begins_from_its_first_item() -> None:
    dag = Dag("d", [node("a", "t"), node("each", "t", map=ref("a"), args={"x": ref("item")})])
    old = Walk(dag).start().done("a", ["p", "q"]).done("each", "P").fail("each")
    walk = again(dag, rerun_from(old.program, old.state, "a")).done("a", ["z"])
    assert [work.input["x"] for work in walk.works.values()] == ["z"]


def test_what_was_skipped_stays_skipped_and_counts_as_such() -> None:
    dag = Dag("d", [node("a", "t", skip_if={"$value": True}), node("b", "t"), node("c", "t", deps=["a", "b"])])
    old = Walk(dag).start().fail("b")
    walk = again(dag, rerun_failed(old.program, old.state)).done("b")
    assert walk.running == ["c"]


def test_a_sub_dag_is_repeated_in_part_or_with_other_arguments() -> None:
    inner = Dag(
        "inner", [node("a", "t", args={"x": ref("run.x")}), node("b", "t", args={"y": ref("a"), "x": ref("run.x")})]
    )
    dag = Dag("d", [sub_dag("s", inner, args={"x": 1}), node("after", "t", args={"b": ref("s.b")})])
    old = Walk(dag).start().done("s/a", "A").fail("s/b")
    walk = again(dag, rerun_failed(old.program, old.state))
    assert walk.running == ["s/b"]
    assert walk.given("s/b") == {"y": "A", "x": 1}
    assert walk.done("s/b", "B").given("after") == {"b": "B"}
    walk = again(dag, rerun_from(old.program, old.state, "s", edited={"x": 2}))
    assert walk.given("s/a") == {"x": 2}


def test_a_run_can_be_repeated_after_it_was_cancelled_anywhere() -> None:
    old = Walk(CHAIN).start(day="monday").done("a", {"x": 1}).cancel()
    walk = again(CHAIN, rerun_failed(old.program, old.state))
    assert walk.running == ["b", "d"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda old: rerun_from(old.program, old.state, "zz"), "there is no node 'zz' in dag 'd'"),
        (
            lambda old: rerun_from(old.program, old.state, "b", edited=[1]),
            "node 'b': arguments must be an object",
        ),
        (
            lambda old: rerun_from(old.program, old.state, "b", edited={"x": ref("c.x")}),
            "node 'b': args.x.$from: 'c.x' does not always end before it",
        ),
        (
            lambda old: rerun_from(old.program, old.state, "b", edited={"x": {"$form": 1}}),
            "node 'b': args.x: $form is not an operator",
        ),
        (
            lambda old: rerun_from(old.program, old.state, "b", edited={"x": object()}),
            "node 'b': the edited input: this value cannot be stored as JSON",
        ),
        (
            lambda old: rerun_failed(old.program, Walk(CHAIN).state),
            "this run has not ended yet; cancel it or let it end first",
        ),
        (
            lambda old: rerun_failed(Walk(Dag("d", [node("z", "t")])).program, old.state),
            "dag 'd' has changed since this run",
        ),
    ],
)
def test_what_cannot_be_repeated_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(failed())
    assert str(error.value).startswith(told)


def test_a_run_in_which_nothing_failed_has_nothing_to_do_again() -> None:
    old = Walk(Dag("d", [node("a", "t")])).start().done("a")
    with pytest.raises(ConfigError, match="there is nothing to rerun"):
        rerun_failed(old.program, old.state)
