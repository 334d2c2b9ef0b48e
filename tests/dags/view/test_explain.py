"""Why a node is where it is, a run as a tree, and pictures of both."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support.dags import Walk, whole
from tidemill.core.errors import NotFoundError
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.runner.rerun import rerun_failed
from tidemill.dags.view.drawing import FILLS, draw_dag, draw_dag_svg
from tidemill.dags.view.explain import explain, tree
from tidemill.dags.view.view import DagView, NodeView, nodes_of

INNER = Dag("inner", [node("x", "t"), node("y", "t", deps=["x"])])
DAG = Dag(
    "d",
    [
        node("a", "t", on_failure="continue"),
        node("b", "t", deps=["a"]),
        node("c", "t", deps=["b"]),
        input_node("ask", prompt="Really {{$.run.x}}?", timeout=60),
        node("never", "t", skip_if={"$value": True}),
        node("each", "t", map=[1, 2, 3], max_concurrency=1, tolerate=1),
        sub_dag("sub", INNER),
        node("last", "t", deps=["ask", "each", "sub"]),
    ],
)


def nodes(walk: Walk) -> list[NodeView]:
    return nodes_of(DagView(row={"state": "running"}, program=walk.program, state=walk.state, now=0.0))


def told(walk: Walk, name: str) -> str:
    return explain(walk.program, walk.state, name)


def test_every_node_says_why_it_is_where_it_is() -> None:
    walk = Walk(DAG)
    assert told(walk, "last") == "'last' waits for the run to start"
    walk.start(x=1).fail("a").done("each").fail("each")
    assert told(walk, "a") == "'a' failed: ValueError: no luck; the other nodes continue"
    assert told(walk, "b") == "'b' never runs: it depends on 'a', and 'a' failed: ValueError: no luck"
    assert told(walk, "c") == "'c' never runs: it depends on 'a' (through 'b'), and 'a' failed: ValueError: no luck"
    assert told(walk, "ask") == "'ask' waits for an answer, until 1970-01-01 00:02:40 UTC: Really 1?"
    assert told(walk, "never") == "'never' was skipped: its skip_if is true: {\"$value\":true}"
    assert told(walk, "each") == "'each' is running: 2 of 3 items done, 1 failed, 1 running, 0 not started"
    assert told(walk, "sub/x") == "'sub/x' has a job that waits in its queue or runs (work 3)"
    assert told(walk, "sub/y") == "'sub/y' waits for 'sub/x' (running)"
    assert told(walk, "sub") == "'sub' waits for its own nodes: 'sub/x' (running), 'sub/y' (waiting for other nodes)"
    assert told(walk, "last") == (
        "'last' waits for 'ask' (waiting for an answer), 'each' (running), 'sub' (waiting for other nodes)"
    )
    walk.submit("ask", 1, by="ann")
    assert told(walk, "ask") == "'ask' is done: answered by ann"
    walk.cancel("enough")
    assert told(walk, "last") == "'last' was cancelled: the run was cancelled: enough"
    again = Walk(DAG, rerun_failed(walk.program, walk.state))
    assert told(again, "ask") == "'ask' is done: answered by ann (carried over from the run that this one reruns)"


def test_a_failure_says_what_it_ends() -> None:
    walk = Walk(Dag("d", [node("a", "t"), sub_dag("s", INNER, on_failure="continue")])).start().fail("s/x")
    assert told(walk, "s/x") == "'s/x' failed: ValueError: no luck; which ends its sub-dag"
    walk.fail("a")
    assert told(walk, "a") == "'a' failed: ValueError: no luck; which ends the run"


def test_a_node_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(NotFoundError, match="there is no node 'zz' in dag 'd'"):
        told(Walk(DAG), "zz")


def test_a_run_is_a_tree_with_progress() -> None:
    walk = Walk(DAG).start(x=1).fail("a").done("each").done("sub/x")
    rows = tree(walk.program, walk.state)
    assert [f"{row.branch}{row.label}" for row in rows] == [
        "├─ a",
        "├─ b",
        "├─ c",
        "├─ ask",
        "├─ never",
        "├─ each",
        "├─ sub",
        "│  ├─ x",
        "│  └─ y",
        "└─ last",
    ]
    found = {row.node: row for row in rows}
    assert (found["each"].status, found["each"].done, found["each"].total) == ("running", 1, 3)
    assert (found["sub"].status, found["sub"].done, found["sub"].total) == ("running", 1, 2)
    assert (found["ask"].status, found["ask"].note) == ("waiting", "Really 1?")
    assert (found["a"].note, found["last"].status) == ("no luck", "pending")


def test_a_dag_is_drawn_as_mermaid_text() -> None:
    assert draw_dag(Dag("d", [node("a", "t"), input_node("q", prompt="{{$.a}}"), sub_dag("s", INNER, deps=["q"]),
                              node("m", "t", map=ref("s.y"))])).splitlines() == [
        "flowchart TD",
        '    n0["a"]',
        '    n1{{"q ?"}}',
        '    subgraph n5["s"]',
        '        n3["x"]',
        '        n4["y"]',
        "    end",
        '    n6[["m *"]]',
        "    n0 --> n1",
        "    n1 --> n5",
        "    n3 --> n4",
        "    n5 --> n6",
    ]  # fmt: skip


def test_a_run_is_drawn_in_the_colours_of_its_nodes() -> None:
    walk = Walk(DAG).start(x=1).fail("a").done("each")
    text = draw_dag(DAG, nodes(walk))
    assert "    class n0 failed" in text
    assert "    class n1 blocked" in text
    assert f"    classDef waiting fill:{FILLS['waiting']},stroke:#64748b,color:#0f172a" in text
    assert '[["each 1/3"]]' in text


def test_a_dag_is_drawn_as_svg_with_every_node_below_what_it_depends_on() -> None:
    walk = Walk(DAG).start(x=1).fail("a")
    picture = ElementTree.fromstring(draw_dag_svg(DAG, nodes(walk)))
    space = "{http://www.w3.org/2000/svg}"
    boxes = dict(zip([text.text for text in picture.iter(f"{space}text")], picture.iter(f"{space}rect"), strict=True))
    assert set(boxes) == {"a", "b", "c", "ask ?", "never", "each 0/3", "sub/x", "sub/y", "sub", "last"}
    height = {name: int(box.attrib["y"]) for name, box in boxes.items()}
    assert height["a"] < height["b"] < height["c"]
    assert height["sub/x"] < height["sub/y"] < height["sub"] < height["last"]
    assert boxes["a"].attrib["fill"] == FILLS["failed"]
    assert len([path for path in picture.iter(f"{space}path") if "marker-end" in path.attrib]) == 7
    assert ElementTree.fromstring(draw_dag_svg(whole())) is not None
