"""How a run of a dag goes: what starts when, what is skipped, what a failure does, what comes out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.dags import Walk, shown
from tidemill.core.errors import PayloadError
from tidemill.core.expressions.refs import Refs
from tidemill.core.ticks import Completed, EndRun, Resumed, RunWork, Started, StopWork
from tidemill.dags import Dag, input_node, node, ref
from tidemill.dags.reducer.events import NodeChanged, NodeEnded, NodeFailure, RunFailure
from tidemill.dags.reducer.journal import decode_tick, encode_tick
from tidemill.dags.reducer.reducer import DagProgram

DIAMOND = Dag(
    "diamond",
    [
        node("top", "t", args={"day": ref("$.run.day")}, queue="fetch"),
        node("left", "t", deps=["top"], args={"rows": {"$from": "top.rows"}}),
        node("right", "t", deps=["top"]),
        node("bottom", "t", deps=["left", "right"], args={"all": [ref("left"), ref("right"), ref("top.rows")]}),
    ],
)


def test_a_node_starts_when_all_that_it_depends_on_is_done() -> None:
    walk = Walk(DIAMOND).start(day="monday")
    assert walk.running == ["top"]
    walk.done("top", {"rows": 3})
    assert walk.running == ["left", "right"]
    walk.done("right", "r")
    assert walk.running == ["left"]
    walk.done("left", "l")
    assert walk.running == ["bottom"]
    walk.done("bottom", {"sum": 1})
    assert walk.ends == [EndRun("succeeded", {"bottom": {"sum": 1}}, None)]
    assert set(walk.statuses.values()) == {"succeeded"}


def test_work_says_where_it_goes_and_with_what() -> None:
    walk = Walk(DIAMOND).start(day="monday")
    (work,) = walk.works.values()
    assert work == RunWork(1, "top", {"day": "monday"}, queue="fetch")
    step = walk.program.step_of(walk.state, 1)
    assert step is not None
    assert step.spec is DIAMOND.nodes[0]
    assert walk.program.item_of(walk.state, 1) is None
    assert walk.program.step_of(walk.state, 7) is None


def test_refs_are_read_when_the_node_starts_and_not_before() -> None:
    walk = Walk(DIAMOND).start(day="monday").done("top", {"rows": 3})
    assert walk.given("left") == {"rows": 3}
    walk.done("left", "l").done("right", "r")
    assert walk.given("bottom") == {"all": ["l", "r", 3]}


def test_a_ref_that_leads_nowhere_fails_the_node_that_has_it() -> None:
    walk = Walk(DIAMOND).start(day="monday").done("top", {"row": 3})
    assert walk.statuses["left"] == "failed"
    told = "args.rows: top.rows: top has no field 'rows'; its fields: row"
    assert walk.state.nodes["left"].error == NodeFailure("bad_ref", told)
    assert walk.ends[0].error.message == f"node 'left' failed: bad_ref: {told}"


def test_a_run_without_an_argument_that_is_read_fails_and_says_so() -> None:
    walk = Walk(DIAMOND).start()
    assert (
        walk.ends[0].error.message
        == "node 'top' failed: bad_ref: args.day: run.day: run has no field 'day'; its fields: none"
    )


def test_arguments_that_are_no_object_are_refused() -> None:
    walk = Walk(DIAMOND)
    walk.post(Started(0.0, [1]))
    assert walk.ends == [EndRun("failed", None, RunFailure("bad_input", "the arguments of a run must be an object"))]
    assert set(walk.statuses.values()) == {"cancelled"}
    whole = Walk(Dag("d", [node("a", "t", args={"$from": "run.x"})])).start(x=5)
    assert (
        whole.ends[0].error.message
        == "node 'a' failed: bad_ref: args: arguments must be an object, but this is a number"
    )


def test_a_declared_result_is_made_of_refs() -> None:
    dag = Dag("d", [node("a", "t"), node("b", "t")], result={"x": ref("a.x"), "day": ref("run.day")})
    walk = Walk(dag).start(day="monday").done("a", {"x": 1}).done("b")
    assert walk.ends == [EndRun("succeeded", {"x": 1, "day": "monday"}, None)]
    walk = Walk(dag).start(day="monday").done("a", {}).done("b")
    assert walk.ends == [
        EndRun("failed", None, RunFailure("bad_ref", "result.x: a.x: a has no field 'x'; its fields: none"))
    ]


def test_a_host_brings_its_own_language_of_refs() -> None:
    class Shouting:
        def resolve(self, expression: Any, context: Any, place: Any = ()) -> Any:
            return {key: f"{context['run'][value]}!" for key, value in expression.items()}

        def sources(self, expression: Any, place: Any = ()) -> Any:
            return iter(())

    walk = Walk(Dag("d", [node("a", "t", args={"x": "day"})]), refs=Shouting()).start(day="monday")
    assert walk.given("a") == {"x": "monday!"}
    walk = Walk(Dag("d", [node("a", "t", args={"$up": "x"})]), refs=Refs({"$up": lambda x: {"y": x}})).start()
    assert walk.given("a") == {"y": "x"}


# -- results --------------------------------------------------------------------------------------


def test_a_finished_result_is_never_overwritten() -> None:
    walk = Walk(DIAMOND).start(day="monday").done("top", {"rows": 3})
    before = walk.program.snapshot(walk.state)
    for ended in (NodeEnded("succeeded", result=msgspec.Raw(b'{"rows":4}')), NodeEnded("failed")):
        assert walk.program.reduce(walk.state, Completed(9.0, 1, ended)) == []
    assert walk.program.snapshot(walk.state) == before


def test_work_that_nobody_began_changes_nothing() -> None:
    walk = Walk(DIAMOND).start(day="monday")
    before = walk.program.snapshot(walk.state)
    assert walk.program.reduce(walk.state, Completed(9.0, 77, NodeEnded("succeeded"))) == []
    assert walk.program.snapshot(walk.state) == before


def test_a_result_that_is_too_large_fails_the_node_and_says_what_to_do() -> None:
    walk = Walk(Dag("d", [node("a", "t")]), result_limit=100).start().done("a", "x" * 99)
    assert walk.state.nodes["a"].error == NodeFailure(
        "too_large",
        "the result has 101 bytes as JSON, but a run keeps at most 100; "
        "store large data elsewhere, and return a reference to it",
    )
    assert Walk(Dag("d", [node("a", "t")]), result_limit=101).start().done("a", "x" * 99).ends[0].state == "succeeded"
    assert Walk(Dag("d", [node("a", "t")])).start().done("a", "x" * 256 * 1024).ends[0].error.kind == "node_failed"


def test_a_result_that_is_not_json_fails_the_node() -> None:
    walk = Walk(Dag("d", [node("a", "t")])).start()
    walk.end(1, NodeEnded("succeeded", result=msgspec.Raw(b"{oops")))
    error = walk.state.nodes["a"].error
    assert error is not None
    assert (error.kind, error.message[:25]) == ("bad_result", "the result is not JSON: J")


# -- skipping -------------------------------------------------------------------------------------


def skipping(**last: Any) -> Dag:
    return Dag(
        "d",
        [
            node("a", "t"),
            node("b", "t", skip_if={"$eq": [ref("a.answer"), "no"]}),
            node("c", "t", deps=["b"], args={"x": {"$from": "b.deep.down"}, "y": ref("b.x", default=7)}, **last),
        ],
    )


def test_a_node_is_skipped_when_its_condition_holds() -> None:
    walk = Walk(skipping()).start().done("a", {"answer": "no"})
    assert walk.state.nodes["b"].note == 'its skip_if is true: {"$eq":[{"$from":"a.answer"},"no"]}'
    assert walk.begun == ["a"]
    assert Walk(skipping()).start().done("a", {"answer": "yes"}).running == ["b"]


def test_skipping_spreads_to_a_node_all_of_whose_deps_were_skipped() -> None:
    walk = Walk(skipping()).start().done("a", {"answer": "no"})
    assert walk.statuses == {"a": "succeeded", "b": "skipped", "c": "skipped"}
    assert walk.state.nodes["c"].note == "all its dependencies were skipped"
    assert walk.ends == [EndRun("succeeded", {}, None)]


def test_a_node_may_run_after_what_was_skipped_and_reads_null_from_it() -> None:
    walk = Walk(skipping(skip_with="none")).start().done("a", {"answer": "no"})
    assert walk.running == ["c"]
    assert walk.given("c") == {"x": None, "y": 7}


@pytest.mark.parametrize(("skip_with", "status"), [("all", "running"), ("any", "skipped"), ("none", "running")])
def test_with_one_of_two_deps_skipped_a_node_does_as_it_is_told(skip_with: Any, status: str) -> None:
    dag = Dag(
        "d",
        [
            node("a", "t"),
            node("b", "t", skip_if={"$value": True}),
            node("c", "t", deps=["a", "b"], skip_with=skip_with),
        ],
    )
    walk = Walk(dag).start().done("a")
    assert walk.statuses["c"] == status
    if status == "skipped":
        assert walk.state.nodes["c"].note == "one of its dependencies was skipped"


def test_a_condition_in_cel_decides_about_skipping() -> None:
    dag = Dag("d", [node("a", "t"), node("b", "t", skip_if="a.rows == 0 || run.force == false")])
    assert Walk(dag).start(force=True).done("a", {"rows": 0}).statuses["b"] == "skipped"
    assert Walk(dag).start(force=True).done("a", {"rows": 1}).statuses["b"] == "running"
    walk = Walk(dag).start(force=True).done("a", {})
    assert walk.ends[0].error.message == (
        "node 'b' failed: bad_ref: skip_if: 'a.rows == 0 || run.force == false' cannot be evaluated: "
        'Key not found in map : "rows"'
    )


def test_a_condition_that_is_neither_true_nor_false_fails_the_node() -> None:
    walk = Walk(Dag("d", [node("a", "t", skip_if=ref("run.x"))])).start(x="yes")
    assert (
        walk.ends[0].error.message
        == "node 'a' failed: bad_ref: skip_if: the condition must be true or false, but is 'yes'"
    )


# -- failing --------------------------------------------------------------------------------------


def two_branches(policy: Any) -> Dag:
    return Dag(
        "d",
        [
            node("a", "t", on_failure=policy),
            node("a2", "t", deps=["a"]),
            node("a3", "t", deps=["a2"]),
            node("b", "t"),
            node("b2", "t", deps=["b"]),
            node("both", "t", deps=["a3", "b2"], skip_with="none"),
        ],
    )


def test_a_failure_ends_the_run_and_stops_what_is_under_way() -> None:
    walk = Walk(two_branches("fail_run")).start()
    walk.fail("a")
    assert [c for c in walk.commands if isinstance(c, StopWork)] == [StopWork(2)]
    failure = RunFailure("node_failed", "node 'a' failed: ValueError: no luck", ("a",))
    assert walk.ends == [EndRun("failed", None, failure)]
    assert walk.statuses == {
        "a": "failed",
        "a2": "cancelled",
        "a3": "cancelled",
        "b": "cancelled",
        "b2": "cancelled",
        "both": "cancelled",
    }
    assert walk.state.nodes["b"].note == "the run ended because 'a' failed"
    assert walk.program.reduce(walk.state, Completed(9.0, 2, NodeEnded("succeeded"))) == []


def test_with_continue_the_others_go_on_and_the_run_fails_at_its_end() -> None:
    walk = Walk(two_branches("continue")).start().fail("a")
    assert walk.statuses["a2"] == walk.statuses["a3"] == walk.statuses["both"] == "blocked"
    assert walk.state.nodes["a3"].note == "it depends on 'a2', which did not succeed"
    assert (walk.running, walk.ends) == (["b"], [])
    walk.done("b").done("b2", 5)
    failure = RunFailure("nodes_failed", "node 'a' failed: ValueError: no luck", ("a",))
    assert walk.ends == [EndRun("failed", None, failure)]
    assert walk.state.nodes["b2"].result == 5


def test_many_failures_are_told_in_short() -> None:
    walk = Walk(Dag("d", [node(f"n{i}", "t", on_failure="continue") for i in range(8)])).start()
    for i in range(8):
        walk.fail(f"n{i}")
    assert walk.ends[0].error.nodes == tuple(f"n{i}" for i in range(8))
    assert walk.ends[0].error.message.endswith("; node 'n4' failed: ValueError: no luck; and 3 more")


@pytest.mark.parametrize(
    ("ended", "status", "error"),
    [
        (NodeEnded("failed"), "failed", NodeFailure("failed", "the job failed")),
        (NodeEnded("cancelled", note="by ann"), "cancelled", NodeFailure("cancelled", "by ann")),
        (NodeEnded("expired"), "failed", NodeFailure("expired", "the job expired before it ran")),
        (NodeEnded("failed", error=NodeFailure("E", "m", "tb"), note="n"), "failed", NodeFailure("E", "m", "tb")),
    ],
)
def test_however_a_job_ends_badly_the_node_says_so(ended: NodeEnded, status: str, error: NodeFailure) -> None:
    walk = Walk(Dag("d", [node("a", "t")])).start().end(1, ended)
    assert (walk.statuses["a"], walk.state.nodes["a"].error) == (status, error)
    assert walk.ends[0].state == "failed"


# -- cancelling and being taken up ----------------------------------------------------------------


def test_cancelling_reaches_nodes_in_every_state() -> None:
    dag = Dag(
        "d",
        [
            node("done", "t"),
            node("skipped", "t", skip_if={"$value": True}),
            node("runs", "t"),
            node("maps", "t", map=[1, 2, 3], max_concurrency=2),
            input_node("asks", prompt="?", timeout=60),
            input_node("asks_for_ever", prompt="?"),
            node("waits", "t", deps=["runs"]),
        ],
    )
    walk = Walk(dag).start().done("done")
    assert walk.running == ["runs", "maps", "maps"]
    commands = walk.cancel("enough").commands
    assert [c.work for c in commands if isinstance(c, StopWork)] == [2, 3, 4]
    assert walk.timers == {}
    assert walk.statuses == {
        "done": "succeeded",
        "skipped": "skipped",
        **dict.fromkeys(("runs", "maps", "asks", "asks_for_ever", "waits"), "cancelled"),
    }
    assert walk.ends == [EndRun("cancelled", None, RunFailure("cancelled", "enough"))]
    assert walk.state.nodes["waits"].note == "the run was cancelled: enough"
    assert (walk.state.works, walk.state.open) == ({}, 0)


def test_a_run_is_cancelled_before_it_starts() -> None:
    walk = Walk(DIAMOND).cancel("")
    assert walk.ends == [EndRun("cancelled", None, RunFailure("cancelled", "no reason was given"))]
    assert walk.start(day="monday").begun == []


def test_a_new_owner_starts_nothing_again() -> None:
    walk = Walk(DIAMOND).start(day="monday")
    before = walk.program.snapshot(walk.state)
    assert walk.post(Resumed(5.0)) == []
    assert walk.program.snapshot(walk.state) == before
    assert walk.done("top", {"rows": 1}).running == ["left", "right"]


def test_a_run_starts_once() -> None:
    walk = Walk(DIAMOND).start(day="monday")
    assert walk.post(Started(3.0, {"day": "sunday"})) == []
    assert walk.state.run == {"day": "monday"}


# -- what is shown and what is kept ---------------------------------------------------------------


def test_every_change_of_a_node_is_shown_unless_nobody_wants_it() -> None:
    walk = Walk(Dag("d", [node("a", "t")])).start().done("a", note="quick")
    assert shown(walk.commands, NodeChanged) == [
        NodeChanged("a", "running", 100.0),
        NodeChanged("a", "succeeded", 101.0, "quick"),
    ]
    quiet = Walk(Dag("d", [node("a", "t")]), narrate=False).start().done("a")
    assert [type(command) for command in quiet.commands] == [RunWork, EndRun]


def test_a_snapshot_of_another_definition_is_refused() -> None:
    data = Walk(DIAMOND).program.snapshot(Walk(DIAMOND).state)
    with pytest.raises(PayloadError, match="run it with the definition that it was started with"):
        DagProgram(Dag("diamond", [node("a", "t")])).restore(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[]", "this is not the snapshot of a run"),
        (b"oops", "this is not the snapshot of a run"),
        (b'{"format": 99}', "this snapshot has format 99, but this version of Tidemill reads only 1"),
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(PayloadError, match=told):
        DagProgram(DIAMOND).restore(data)


def test_the_journal_gives_back_the_ticks_that_it_was_given() -> None:
    walk = Walk(Dag("d", [node("a", "t"), input_node("b", prompt="?", timeout=9), input_node("c", prompt="?")]))
    walk.start(x=[1, None]).done("a", {"x": 1}, job=7)
    walk.submit("c", {"y": [1]}, key="k")
    walk.elapse("input:b").cancel()
    walk.post(Resumed(1.0))
    assert [decode_tick(encode_tick(tick)) for tick in walk.journal] == walk.journal
    with pytest.raises(PayloadError):
        decode_tick(b'{"type":"completed","at":1,"work":1,"outcome":{"type":"node_ended","state":"odd"}}')
