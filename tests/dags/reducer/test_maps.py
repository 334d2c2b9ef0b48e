"""Maps and sub-dags: many pieces of work in one node, and many nodes in one."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.support.dags import Walk, shown
from tidemill.core.ticks import EndRun, RunWork, StopWork
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.reducer.events import NodeChanged, NodeEnded, NodeFailure


def mapped(**options: Any) -> Dag:
    return Dag(
        "d",
        [
            node("list", "t"),
            node("each", "t", map=ref("list.files"), args={"file": ref("item.name"), "n": ref("index")}, **options),
            node("sum", "t", args={"all": ref("each")}),
        ],
    )


def files(count: int) -> dict[str, Any]:
    return {"files": [{"name": f"f{index}"} for index in range(count)]}


def test_a_map_has_one_work_for_each_item_and_joins_the_results_in_order() -> None:
    walk = Walk(mapped()).start().done("list", files(3))
    assert [work.input for work in walk.works.values()] == [{"file": f"f{i}", "n": i} for i in range(3)]
    assert [walk.program.item_of(walk.state, work) for work in sorted(walk.works)] == [0, 1, 2]
    for work, result in ((4, "c"), (2, "a"), (3, "b")):
        walk.end(work, _ok(result))
    assert walk.given("sum") == {"all": ["a", "b", "c"]}


def test_at_most_so_many_items_run_at_a_time() -> None:
    walk = Walk(mapped(max_concurrency=2)).start().done("list", files(5))
    most = 0
    while "each" in walk.running:
        most = max(most, len(walk.works))
        walk.done("each", walk.given("each")["n"])
    assert most == 2
    assert walk.given("sum") == {"all": [0, 1, 2, 3, 4]}


def test_a_map_over_nothing_is_done_at_once() -> None:
    walk = Walk(mapped()).start().done("list", files(0))
    assert walk.given("sum") == {"all": []}


def test_a_map_over_what_a_skipped_node_would_have_given_is_over_nothing() -> None:
    dag = Dag(
        "d",
        [node("list", "t", skip_if={"$value": True}), node("each", "t", map=ref("list.files"), skip_with="none")],
    )
    assert Walk(dag).start().ends == [EndRun("succeeded", {"each": []}, None)]


def test_a_map_goes_over_ten_thousand_items_and_no_more() -> None:
    walk = Walk(mapped()).start().done("list", {"files": [{"name": "f"}] * 10_000})
    assert len(walk.works) == 10_000
    walk = Walk(mapped()).start().done("list", {"files": [{"name": "f"}] * 10_001})
    assert walk.state.nodes["each"].error == NodeFailure(
        "bad_ref", "map: the list has 10001 items, but a map takes at most 10000; group them"
    )


def test_a_map_over_no_list_fails() -> None:
    walk = Walk(mapped()).start().done("list", {"files": "x"})
    assert walk.state.nodes["each"].error == NodeFailure("bad_ref", "map: a map needs a list, but this is text")


def test_a_failed_item_fails_the_map_and_stops_the_others() -> None:
    walk = Walk(mapped()).start().done("list", files(3)).fail("each")
    assert walk.state.nodes["each"].error == NodeFailure("ValueError", "item 0: no luck")
    assert [c.work for c in walk.commands if isinstance(c, StopWork)] == [3, 4]
    assert walk.ends[0].error.message == "node 'each' failed: ValueError: item 0: no luck"


def test_so_many_failed_items_as_are_tolerated_are_null_in_the_result() -> None:
    walk = Walk(mapped(tolerate=1)).start().done("list", files(3)).fail("each").done("each", "b").done("each", "c")
    assert walk.given("sum") == {"all": [None, "b", "c"]}
    assert walk.state.nodes["each"].note == "1 of 3 items failed, which is tolerated"
    walk = Walk(mapped(tolerate=1)).start().done("list", files(3)).fail("each").fail("each", "worse")
    assert walk.state.nodes["each"].error == NodeFailure(
        "ValueError", "2 of 3 items failed, and at most 1 may fail; item 1: worse"
    )


def test_an_item_whose_refs_lead_nowhere_has_failed() -> None:
    walk = Walk(mapped(tolerate=1)).start().done("list", {"files": [{"name": "a"}, {}]}).done("each", "x")
    assert walk.given("sum") == {"all": ["x", None]}
    walk = Walk(mapped()).start().done("list", {"files": [{"name": "a"}, {}]})
    assert walk.state.nodes["each"].error == NodeFailure(
        "bad_ref", "item 1: args.file: item.name: item has no field 'name'; its fields: none"
    )
    assert walk.works == {}


def test_results_of_a_map_are_limited_one_by_one_and_together() -> None:
    walk = Walk(mapped(), result_limit=100).start().done("list", files(3)).done("each", "x" * 200)
    assert walk.statuses["each"] == "failed"
    walk = Walk(mapped(), join_limit=100).start().done("list", files(3)).done("each", "x" * 60).done("each", "x" * 60)
    error = walk.state.nodes["each"].error
    assert error is not None
    assert error.message.startswith(
        "the list of results, with 1 of 3 items done, has 124 bytes as JSON, but a run keeps at most 100; "
    )
    assert walk.works == {}


def test_progress_of_a_map_is_shown_at_most_a_hundred_times() -> None:
    walk = Walk(mapped()).start().done("list", files(1000))
    for _ in range(1000):
        walk.done("each", 1)
    told = [event for event in shown(walk.commands, NodeChanged) if event.node == "each"]
    assert len(told) == 1 + 99 + 1
    assert (told[50].done, told[50].total, told[-1].state) == (500, 1000, "succeeded")


def test_a_map_takes_a_literal_list_and_a_filtered_one() -> None:
    where = {"$ne": [ref("item.size"), 0]}
    dag = Dag(
        "d", [node("a", "t", map={"$filter": {"in": ref("run.files"), "where": where}}, args={"x": ref("item.size")})]
    )
    walk = Walk(dag).start(files=[{"size": 0}, {"size": 3}])
    assert [work.input for work in walk.works.values()] == [{"x": 3}]


# -- sub-dags -------------------------------------------------------------------------------------

INNER = Dag(
    "inner",
    [
        node("first", "t", args={"x": ref("run.x")}),
        node("second", "t", args={"y": ref("first.y"), "x": ref("run.x")}),
        node("aside", "t"),
    ],
)


def outer(inner: Dag = INNER, **options: Any) -> Dag:
    return Dag(
        "outer",
        [
            node("before", "t"),
            sub_dag("sub", inner, args={"x": ref("before.x")}, deps=["before"], **options),
            node("after", "t", args={"got": ref("sub.second", default=None)}, deps=["sub"]),
            node("other", "t"),
        ],
    )


def test_the_nodes_of_a_sub_dag_run_between_what_is_before_and_after_it() -> None:
    walk = Walk(outer()).start().done("before", {"x": 5})
    assert walk.running == ["other", "sub/first", "sub/aside"]
    assert walk.given("sub/first") == {"x": 5}
    walk.done("sub/first", {"y": 6})
    assert walk.given("sub/second") == {"y": 6, "x": 5}
    walk.done("sub/second", "s")
    assert walk.statuses["sub"] == "pending"
    walk.done("sub/aside", "a")
    assert walk.state.nodes["sub"].result == {"second": "s", "aside": "a"}
    assert walk.given("after") == {"got": "s"}


def test_a_sub_dag_gives_its_declared_result() -> None:
    inner = Dag("inner", [node("a", "t")], result=ref("a.x"))
    dag = Dag("d", [sub_dag("sub", inner)])
    assert Walk(dag).start().done("sub/a", {"x": 1}).ends == [EndRun("succeeded", {"sub": 1}, None)]
    walk = Walk(dag).start().done("sub/a", {})
    assert walk.ends[0].error.message == "node 'sub' failed: bad_ref: result: a.x: a has no field 'x'; its fields: none"


def test_a_skipped_sub_dag_is_skipped_with_all_its_nodes() -> None:
    inner = Dag("inner", [node("a", "t"), node("b", "t", deps=["a"], skip_with="none"), input_node("c", prompt="?")])
    walk = Walk(outer(inner, skip_if={"$value": True})).start().done("before", {"x": 1})
    assert {name: status for name, status in walk.statuses.items() if name.startswith("sub")} == dict.fromkeys(
        ("sub/run", "sub/a", "sub/b", "sub/c", "sub"), "skipped"
    )
    assert walk.statuses["after"] == "skipped"
    assert walk.state.nodes["sub/b"].note == "its sub-dag was skipped"


def test_sub_dags_are_skipped_within_sub_dags() -> None:
    inner = Dag("inner", [node("a", "t")])
    middle = Dag("middle", [sub_dag("deep", inner, skip_with="none"), node("b", "t")])
    walk = Walk(
        Dag("d", [sub_dag("sub", middle, skip_if="run.x == 1"), node("c", "t", deps=["sub"], skip_with="none")])
    )
    walk.start(x=1)
    assert walk.running == ["c"]
    assert walk.statuses["sub/deep/a"] == "skipped"


def test_a_failure_inside_ends_the_run_as_any_other_does() -> None:
    walk = Walk(outer()).start().done("before", {"x": 1}).fail("sub/first")
    assert walk.ends[0].error.message == "node 'sub/first' failed: ValueError: no luck"
    assert walk.statuses["other"] == "cancelled"


def test_a_failure_inside_ends_only_the_sub_dag_if_that_may_fail() -> None:
    walk = Walk(outer(on_failure="continue")).start().done("before", {"x": 1}).fail("sub/first")
    assert walk.running == ["other"]
    statuses = walk.statuses
    assert (statuses["sub/first"], statuses["sub/second"], statuses["sub/aside"]) == (
        "failed",
        "cancelled",
        "cancelled",
    )
    assert (statuses["sub"], statuses["after"]) == ("failed", "blocked")
    assert walk.state.nodes["sub/aside"].note == "the sub-dag 'sub' ended because 'sub/first' failed"
    walk.done("other")
    assert walk.ends[0].error.nodes == ("sub/first", "sub")


def test_a_node_that_may_fail_lets_the_rest_of_its_sub_dag_go_on() -> None:
    inner = Dag("inner", [node("a", "t", on_failure="continue"), node("b", "t", deps=["a"]), node("c", "t")])
    walk = Walk(outer(inner, on_failure="continue")).start().done("before", {"x": 1}).fail("sub/a")
    assert "sub/c" in walk.running
    assert walk.statuses["sub"] == "pending"
    walk.done("sub/c")
    assert walk.state.nodes["sub"].error == NodeFailure("nodes_failed", "node 'sub/a' failed: ValueError: no luck")
    assert walk.statuses["after"] == "blocked"


def test_a_sub_dag_ends_only_after_all_that_is_inside_of_it() -> None:
    inner = Dag("inner", [node("a", "t", on_failure="continue"), node("b", "t"), node("c", "t", deps=["a", "b"])])
    walk = Walk(Dag("d", [sub_dag("sub", inner)])).start().fail("sub/a")
    assert (walk.statuses["sub/c"], walk.statuses["sub"], walk.running) == ("blocked", "pending", ["sub/b"])
    assert walk.done("sub/b").statuses["sub"] == "failed"


def test_arguments_of_a_sub_dag_that_lead_nowhere_fail_it() -> None:
    walk = Walk(outer(on_failure="continue")).start().done("before", {}).done("other")
    assert walk.statuses["sub/run"] == "failed"
    assert {walk.statuses[name] for name in ("sub/first", "sub/second", "sub/aside", "after")} == {"blocked"}
    assert walk.statuses["sub"] == "failed"
    assert walk.ends[0].error.nodes == ("sub/run", "sub")


def test_a_failure_deep_inside_ends_the_nearest_sub_dag_that_may_fail() -> None:
    inner = Dag("inner", [node("a", "t"), node("b", "t")])
    middle = Dag("middle", [sub_dag("deep", inner), node("m", "t")])
    walk = Walk(Dag("d", [sub_dag("sub", middle, on_failure="continue"), node("o", "t")])).start().fail("sub/deep/a")
    assert walk.running == ["o"]
    assert walk.statuses["sub/deep"] == walk.statuses["sub/m"] == walk.statuses["sub/deep/b"] == "cancelled"
    assert walk.statuses["sub"] == "failed"
    assert len([c for c in walk.commands if isinstance(c, RunWork)]) == 4


def _ok(result: Any) -> Any:
    return NodeEnded("succeeded", result=msgspec.Raw(msgspec.json.encode(result)))
