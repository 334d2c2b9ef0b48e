"""A dag file is read to its end: everything that is wrong with it is told at once, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.dags import Walk, whole
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import format_path
from tidemill.core.expressions.refs import Refs
from tidemill.dags import Dag, DagError, node, parse_dag, sub_dag
from tidemill.dags.definition.files import located, problems_in
from tidemill.dags.view.explain import explain

BAD = """\
nam: nightly
result: {$from: lod}
nodes:
  - {name: extract, task: etl.extract, queue: "", args: {day: {$form: run.day}}}
  - name: approve
    prompt: "Load {{$.extrac.rows}} rows?"
    schema: {type: objekt}
    timeout: -1s
    default: {answer: no}
  - name: load
    task: etl.load
    deps: [aprove, load]
    bugdet: 10m
    priority: 12
    retry: {tries: 3}
    skip_if: approve.answer =
  - {name: sub, dag: {name: inner, nodes: [{name: a, task: t, deps: [b]}, {name: c, prompt: x, task: y}]}}
  - {name: sub2, dag: inner.yaml, on_failure: never}
  - {name: sub3, dag: nowhere.yaml}
  - 5
  - {name: extract, task: 5}
"""

INNER = "name: inner\nnodes:\n  - {name: a, task: t, deps: [b]}\n  - {name: c, task: t, tolerate: 1}\n"


def places(problems: list[DagError]) -> list[tuple[str, int | None, str]]:
    return [(Path(each.file or "").name, each.line, format_path(each.place)) for each in problems]


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "inner.yaml").write_text(INNER)
    assert places(problems_in(tmp_path / "bad.yaml")) == [
        ("bad.yaml", 1, ""),
        ("bad.yaml", 2, "result.$from"),
        ("bad.yaml", 4, "nodes[0].queue"),
        ("bad.yaml", 4, "nodes[0].args.day"),
        ("bad.yaml", 6, "nodes[1].prompt"),
        ("bad.yaml", 7, "nodes[1].schema"),
        ("bad.yaml", 8, "nodes[1].timeout"),
        ("bad.yaml", 9, "nodes[1].default"),
        ("bad.yaml", 10, "nodes[2]"),
        ("bad.yaml", 12, "nodes[2].deps[0]"),
        ("bad.yaml", 12, "nodes[2].deps[1]"),
        ("bad.yaml", 14, "nodes[2].priority"),
        ("bad.yaml", 15, "nodes[2].retry"),
        ("bad.yaml", 16, "nodes[2].skip_if"),
        ("bad.yaml", 17, "nodes[3].dag.nodes[1]"),
        ("bad.yaml", 17, "nodes[3].dag.nodes[0].deps[0]"),
        ("bad.yaml", 18, "nodes[4].on_failure"),
        ("bad.yaml", 19, "nodes[5].dag"),
        ("bad.yaml", 20, "nodes[6]"),
        ("bad.yaml", 21, "nodes[7].task"),
        ("bad.yaml", 21, "nodes[7].name"),
        ("inner.yaml", 3, "nodes[0].deps[0]"),
        ("inner.yaml", 4, "nodes[1].tolerate"),
    ]


def test_the_first_problem_is_the_one_that_loading_raises(tmp_path: Path) -> None:
    for text in (
        BAD,
        "name: d\nnodes:\n  - {name: a, task: t, deps: [b]}\n  - {name: b, task: t, deps: [a]}\n",
        "name: d\nnodes:\n  - {name: a, task: t}\n  - {name: b, task: t, deps: [], args: {x: {$from: a.x}}}\n",
        "name: ' d'\nnodes:\n  - {name: a, task: t}\n",
        "name: d\nnodes: 5\n",
        "- 1\n",
        "",
        "a: [",
    ):
        (tmp_path / "d.yaml").write_text(text)
        found = [str(each) for each in problems_in(tmp_path / "d.yaml")]
        with pytest.raises(DagError) as raised:
            parse_dag(text, file=str(tmp_path / "d.yaml"))
        assert str(raised.value) in found


def test_a_file_that_can_work_has_no_problems(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_bytes(whole().to_json())
    assert problems_in(tmp_path / "whole.json") == []


def test_problems_of_a_hosts_own_language_depend_on_its_resolver(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("name: d\nnodes:\n  - {name: a, task: t, args: {x: {$upper: {$from: run.x}}}}\n")
    assert [each.line for each in problems_in(tmp_path / "d.yaml")] == [3]
    assert problems_in(tmp_path / "d.yaml", refs=Refs({"$upper": str.upper})) == []


def test_a_file_that_is_not_there_is_no_problem_of_the_dag_but_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no dag file .*nowhere\.yaml"):
        problems_in(tmp_path / "nowhere.yaml")


def test_what_others_find_wrong_gets_the_line_of_its_place(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("name: d\nnodes:\n  - name: a\n    task: t\n")
    (found,) = located(tmp_path / "d.yaml", [DagError(("nodes", 0, "task"), "nobody knows it")])
    assert str(found) == f"{tmp_path / 'd.yaml'}:4: nodes[0].task: nobody knows it"


INNER_DAG = Dag("inner", [node("x", "t"), node("y", "t", deps=["x"])])


def test_a_sub_dag_after_a_failed_node_is_blocked_and_the_others_go_on() -> None:
    dag = Dag(
        "d",
        [
            node("a", "t", on_failure="continue"),
            sub_dag("s", INNER_DAG, deps=["a"]),
            node("after", "t", deps=["s"]),
            node("other", "t"),
        ],
    )
    walk = Walk(dag).start().fail("a")
    states = {name: each.status for name, each in walk.state.nodes.items()}
    assert states.pop("other") == "running"
    assert states.pop("a") == "failed"
    assert set(states.values()) == {"blocked"}
    assert walk.state.status == "running"
    cause = "and 'a' failed: ValueError: no luck"
    assert explain(walk.program, walk.state, "s") == f"'s' never runs: it depends on 'a', {cause}"
    assert explain(walk.program, walk.state, "s/x") == f"'s/x' never runs: it depends on 'a', {cause}"
    assert explain(walk.program, walk.state, "s/y") == (f"'s/y' never runs: it depends on 'a' (through 's/x'), {cause}")
    walk.done("other")
    assert walk.state.status == "failed"
    assert walk.state.error is not None
    assert walk.state.error.nodes == ("a",)


def test_nodes_of_a_sub_dag_that_has_not_begun_wait_for_what_it_waits_for() -> None:
    walk = Walk(Dag("d", [node("a", "t"), sub_dag("s", INNER_DAG, deps=["a"])])).start()
    assert explain(walk.program, walk.state, "s") == "'s' waits for 'a' (running)"
    assert explain(walk.program, walk.state, "s/x") == "'s/x' waits for 'a' (running)"
    assert explain(walk.program, walk.state, "s/y") == "'s/y' waits for 's/x' (waiting for other nodes)"
