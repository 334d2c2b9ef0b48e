"""Input nodes: who is asked, which answer counts, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.dags import Walk, shown
from tidemill.core.ticks import DropTimer, EndRun, SetTimer
from tidemill.dags import Dag, input_node, node
from tidemill.dags.reducer.events import InputRefused, InputTaken, InputWanted, NodeFailure, Submission
from tidemill.dags.reducer.inputs import AnswerCheck, check_submission

SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"enum": ["yes", "no"]}}}


def asking(**options: Any) -> Dag:
    return Dag(
        "d",
        [
            node("extract", "t"),
            input_node("approve", prompt="Load {{$.extract.rows}} rows for {{$.run.day}}?", schema=SCHEMA, **options),
            node("load", "t", deps=["approve"], skip_if={"$eq": [{"$from": "approve.answer"}, "no"]}),
        ],
    )


def asked(**options: Any) -> Walk:
    return Walk(asking(**options)).start(day="monday").done("extract", {"rows": 3})


def test_an_input_asks_with_what_is_known_by_then() -> None:
    walk = asked(timeout="1m")
    assert shown(walk.commands, InputWanted) == [
        InputWanted("approve", "Load 3 rows for monday?", 101.0, SCHEMA, due=161.0)
    ]
    assert SetTimer("input:approve", 161.0) in walk.commands
    assert (walk.statuses["approve"], walk.works) == ("waiting", {})


def test_an_answer_that_fits_is_the_result_and_the_run_goes_on() -> None:
    walk = asked(timeout="1m")
    commands = walk.submit("approve", {"answer": "yes"}, by="ann", key="k1")
    assert shown(commands, InputTaken) == [InputTaken("approve", {"answer": "yes"}, "ann", 102.0, "k1")]
    assert DropTimer("input:approve") in commands
    assert walk.running == ["load"]
    answered = walk.state.nodes["approve"].answered
    assert answered is not None
    assert (answered.by, answered.at, answered.key) == ("ann", 102.0, "k1")


def test_an_answer_decides_what_is_skipped() -> None:
    walk = asked()
    walk.submit("approve", {"answer": "no"})
    assert walk.statuses["load"] == "skipped"


def test_an_answer_that_does_not_fit_is_refused_and_the_node_waits_on() -> None:
    walk = asked()
    (refused,) = shown(walk.submit("approve", {"answer": "perhaps"}, by="bob", key="x"), InputRefused)
    assert refused == InputRefused(
        "approve",
        "bob",
        102.0,
        'the answer does not fit the schema: answer: "perhaps" is not one of "yes" or "no"',
        "x",
    )
    assert walk.statuses["approve"] == "waiting"
    assert shown(walk.submit("approve", {"answer": "yes"}, key="x"), InputTaken)


def test_the_same_submission_again_changes_and_says_nothing() -> None:
    walk = asked()
    walk.submit("approve", {"answer": "yes"}, key="k")
    before = walk.program.snapshot(walk.state)
    assert walk.submit("approve", {"answer": "yes"}, key="k") == []
    assert walk.program.snapshot(walk.state) == before
    verdict = check_submission(walk.program, walk.state, Submission("approve", {"answer": "yes"}, key="k"))
    assert verdict == AnswerCheck(True, repeated=True)


def test_the_same_submission_is_known_after_the_run_has_ended() -> None:
    walk = asked()
    walk.submit("approve", {"answer": "no"}, key="k")
    assert walk.ends
    assert walk.submit("approve", {"answer": "no"}, key="k") == []


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        ({"answer": "no"}, "k", "the key 'k' was used before with another answer, which was accepted"),
        ({"answer": "yes"}, "other", "node 'approve' was answered already by ann"),
        ({"answer": "yes"}, None, "node 'approve' was answered already by ann"),
    ],
)
def test_the_first_answer_counts_and_others_are_refused_with_the_reason(
    value: Any, key: str | None, reason: str
) -> None:
    walk = asked()
    walk.submit("approve", {"answer": "yes"}, key="k")
    (refused,) = shown(walk.submit("approve", value, by="bob", key=key), InputRefused)
    assert (refused.reason, refused.by) == (reason, "bob")
    assert walk.state.nodes["approve"].result == {"answer": "yes"}


@pytest.mark.parametrize(
    ("node_name", "reason"),
    [
        ("nobody", "there is no node 'nobody' in dag 'd'; its nodes are extract, approve, load"),
        ("extract", "node 'extract' is not an input node"),
        ("approve", "node 'approve' is not waiting for an answer yet: it waits for other nodes"),
    ],
)
def test_an_answer_to_what_does_not_ask_is_refused(node_name: str, reason: str) -> None:
    walk = Walk(asking()).start(day="monday")
    assert [event.reason for event in shown(walk.submit(node_name, {}), InputRefused)] == [reason]


def test_an_answer_after_the_end_is_refused_with_the_reason() -> None:
    walk = asked()
    walk.cancel("enough")
    (refused,) = shown(walk.submit("approve", {"answer": "yes"}), InputRefused)
    assert (
        refused.reason
        == "node 'approve' is no longer waiting for an answer: it was cancelled: the run was cancelled: enough"
    )


def test_an_answer_that_is_too_large_or_no_json_is_refused() -> None:
    dag = Dag("d", [input_node("a", prompt="?")])
    walk = Walk(dag, result_limit=10).start()
    (refused,) = shown(walk.submit("a", "x" * 20), InputRefused)
    assert refused.reason.startswith("the answer has 22 bytes as JSON, but a run keeps at most 10")
    assert check_submission(walk.program, walk.state, Submission("a", object())).reason.startswith(
        "this value cannot be stored"
    )
    assert walk.statuses["a"] == "waiting"


def test_after_the_timeout_the_default_counts() -> None:
    walk = asked(timeout="1m", default={"answer": "yes"}).elapse("input:approve")
    assert walk.now == 161.0
    assert walk.running == ["load"]
    assert walk.state.nodes["approve"].note == "the input timed out: the default is used"
    (refused,) = shown(walk.submit("approve", {"answer": "no"}), InputRefused)
    assert refused.reason == (
        "node 'approve' is no longer waiting for an answer: it has its answer: the input timed out: the default is used"
    )


def test_null_is_a_default_too() -> None:
    walk = Walk(Dag("d", [input_node("a", prompt="?", timeout=1, default=None)])).start().elapse("input:a")
    assert walk.ends == [EndRun("succeeded", {"a": None}, None)]


def test_after_the_timeout_without_a_default_the_node_fails() -> None:
    walk = asked(timeout="1m").elapse("input:approve")
    error = NodeFailure("input_timeout", "the input timed out, and there is no default")
    assert walk.state.nodes["approve"].error == error
    assert walk.ends[0].error.nodes == ("approve",)


def test_a_timeout_that_comes_after_the_answer_changes_nothing() -> None:
    walk = asked(timeout="1m")
    walk.submit("approve", {"answer": "yes"})
    walk.elapse("input:approve").elapse("input:nobody").elapse("something else")
    assert walk.state.nodes["approve"].result == {"answer": "yes"}


def test_several_inputs_wait_at_once_and_are_answered_in_any_order() -> None:
    walk = Walk(
        Dag("d", [input_node("a", prompt="a?"), input_node("b", prompt="b?"), input_node("c", prompt="c?")])
    ).start()
    assert [event.prompt for event in shown(walk.commands, InputWanted)] == ["a?", "b?", "c?"]
    for name in ("c", "a", "b"):
        walk.submit(name, name)
    assert walk.ends == [EndRun("succeeded", {"a": "a", "b": "b", "c": "c"}, None)]


def test_a_prompt_that_leads_nowhere_fails_the_node() -> None:
    walk = Walk(asking()).start(day="monday").done("extract", {})
    assert walk.ends[0].error.message == (
        "node 'approve' failed: bad_ref: prompt: extract.rows: extract has no field 'rows'; its fields: none"
    )
