"""What a dag refuses to be, and where it says so."""

# ruff: noqa: E501 - what is told stands beside what is wrong

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.dags import whole
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.expressions.refs import Refs
from tidemill.dags import Dag, DagError, input_node, node, ref, sub_dag
from tidemill.dags.definition.model import TaskNode
from tidemill.dags.definition.plan import DagPlan
from tidemill.dags.reducer.reducer import DagProgram


def test_a_dag_is_the_same_after_json_and_back() -> None:
    dag = whole()
    assert Dag.from_json(dag.to_json()) == dag
    assert Dag.from_json(dag.to_json()).to_json() == dag.to_json()


def test_the_version_is_that_of_the_definition() -> None:
    assert DagProgram(whole()).version == DagProgram(Dag.from_json(whole().to_json())).version
    one, other = (Dag("d", [node("a", "t", args={"x": x})]) for x in (1, 2))
    assert DagProgram(one).version != DagProgram(other).version


def test_without_deps_a_node_depends_on_what_it_reads() -> None:
    steps = DagPlan(whole(), Refs()).steps
    assert steps["approve"].deps == ("extract",)
    assert steps["each"].deps == ("extract",)
    assert steps["extract"].deps == ()
    assert steps["report/run"].deps == ("each", "approve")
    assert steps["report/a"].deps == ("report/run",)
    assert steps["report"].deps == ("report/a", "report/b")


def test_a_condition_counts_as_reading() -> None:
    dag = Dag("d", [node("a", "t"), node("b", "t", skip_if="a.x == 1"), node("c", "t", skip_if={"$eq": [ref("b"), 1]})])
    steps = DagPlan(dag, Refs()).steps
    assert (steps["b"].deps, steps["c"].deps) == (("a",), ("b",))


A = node("a", "t")


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([], "dag 'd': nodes: a dag needs at least one node"),
        ([A, A], "dag 'd': nodes[1].name: two nodes have the name 'a': this one and nodes[0]"),
        (
            [node("a.b", "t")],
            "dag 'd': nodes[0].name: 'a.b' is not a valid node name: use letters, digits, _ and -, and begin with a letter",
        ),
        (
            [node("run", "t")],
            "dag 'd': nodes[0].name: 'run' is a reserved name in refs; choose another name for the node",
        ),
        (
            [A, node("b", "t", deps=["aa"])],
            "dag 'd': nodes[1].deps[0]: node 'b' depends on 'aa', which is not a node of this dag; did you mean 'a'?",
        ),
        ([A, node("b", "t", deps=["a", "a"])], "dag 'd': nodes[1].deps[1]: node 'b' lists its dependency 'a' twice"),
        ([node("a", "t", deps=["a"])], "dag 'd': nodes[0].deps[0]: node 'a' depends on itself"),
        ([node("a", "t", args={"x": ref("a.x")})], "dag 'd': nodes[0].args.x.$from: node 'a' reads its own result"),
        (
            [
                node("a", "t", deps=["c"]),
                node("b", "t", deps=["a"]),
                node("c", "t", deps=["b"]),
                node("d", "t", deps=["c"]),
            ],
            "dag 'd': nodes[0].deps: these nodes depend on each other in a cycle: a -> c -> b -> a",
        ),
        (
            [node("a", "t", args={"x": ref("b.x")}), node("b", "t", deps=["a"])],
            "dag 'd': nodes[0].deps: these nodes depend on each other in a cycle: a -> b -> a",
        ),
        (
            [A, node("b", "t", args={"list": [{"$from": "c.x"}]})],
            "dag 'd': nodes[1].args.list[0].$from: node 'b' reads 'c.x', but 'c' is not a node of this dag",
        ),
        (
            [A, node("b", "t", deps=[], args={"x": ref("a.x")})],
            "dag 'd': nodes[1].args.x.$from: node 'b' reads 'a.x', but does not depend on 'a'; add 'a' to its deps",
        ),
        (
            [A, input_node("b", prompt="{{$.c.x}}")],
            "dag 'd': nodes[1].prompt: node 'b' reads 'c.x', but 'c' is not a node of this dag",
        ),
        (
            [input_node("b", prompt="{{x}}")],
            "dag 'd': nodes[0].prompt: node 'b': '{{x}}' does not begin with '$.'; write {{$.node.field}}",
        ),
        (
            [node("b", "t", skip_if="c.x == 1")],
            "dag 'd': nodes[0].skip_if: node 'b': 'c.x == 1' is not a valid condition: at character 2: undeclared reference to 'c.x'",
        ),
        (
            [node("b", "t", args={"x": ref("item.x")})],
            "dag 'd': nodes[0].args.x.$from: node 'b' reads 'item', which is only available in the args of a node with map",
        ),
        (
            [node("b", "t", map=ref("index"))],
            "dag 'd': nodes[0].map.$from: node 'b' reads 'index', which is only available in the args of a node with map",
        ),
        (
            [node("b", "t", max_concurrency=2)],
            "dag 'd': nodes[0].max_concurrency: node 'b': max_concurrency is only for nodes with map",
        ),
        ([node("b", "t", tolerate=2)], "dag 'd': nodes[0].tolerate: node 'b': tolerate is only for nodes with map"),
        (
            [node("b", "t", map=[1], max_concurrency=0)],
            "dag 'd': nodes[0].max_concurrency: node 'b': max_concurrency=0 would start no items; use 1 or more",
        ),
        (
            [node("b", "t", map=[1], tolerate=-1)],
            "dag 'd': nodes[0].tolerate: node 'b': tolerate=-1 is not a number of items; use 0 or more",
        ),
        ([node("b", "t", priority=10)], "dag 'd': nodes[0].priority: node 'b': priority 10 is outside 0 to 9"),
        (
            [node("b", "t", budget=0)],
            "dag 'd': nodes[0].budget: node 'b': a budget of 0 seconds is too short: it must be above 0",
        ),
        (
            [node("b", "t", queue=" q")],
            "dag 'd': nodes[0].queue: node 'b': ' q' is not a queue name: use 1 to 200 printable characters, no space at the ends",
        ),
        (
            [node("b", "")],
            "dag 'd': nodes[0].task: node 'b': '' is not a task name: use 1 to 200 printable characters, no space at the ends",
        ),
        (
            [input_node("b", prompt="?", timeout=0)],
            "dag 'd': nodes[0].timeout: node 'b': a timeout of 0 seconds is too short: it must be above 0",
        ),
        (
            [input_node("b", prompt="?", default=1)],
            "dag 'd': nodes[0].default: node 'b': a default needs a timeout, after which it is used; add a timeout",
        ),
        (
            [input_node("b", prompt="?", schema={"type": "number"}, timeout=1, default="x")],
            "dag 'd': nodes[0].default: node 'b': the default does not fit the schema: \"x\" is not of type \"number\"",
        ),
        (
            [TaskNode(name="b", task="t", on_failure="explode")],  # pyright: ignore[reportArgumentType]
            "dag 'd': nodes[0].on_failure: node 'b': 'explode' is neither 'fail_run' nor 'continue'",
        ),
        (
            [TaskNode(name="b", task="t", skip_with="some")],  # pyright: ignore[reportArgumentType]
            "dag 'd': nodes[0].skip_with: node 'b': 'some' is not 'all', 'any' or 'none'",
        ),
        (["a"], "dag 'd': nodes[0]: 'a' is not a node; create one with node(), input_node() or sub_dag()"),
    ],
)
def test_a_dag_that_cannot_work_is_refused_with_the_place(nodes: list[Any], told: str) -> None:
    with pytest.raises(DagError) as error:
        Dag("d", nodes)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "objekt"}, "this is not a JSON Schema: at type: "),
        ({"properties": {"a": {"pattern": "("}}}, "this is not a JSON Schema: at properties.a.pattern: "),
        ({"$ref": "file:///etc/passwd"}, "is outside the schema"),
        ({"$ref": "http://example.com/x.json"}, "is outside the schema"),
    ],
)
def test_a_schema_that_is_none_or_reads_elsewhere_is_refused(schema: Any, told: str) -> None:
    with pytest.raises(DagError) as error:
        Dag("d", [input_node("a", prompt="?", schema=schema)])
    assert str(error.value).startswith("dag 'd': nodes[0].schema: node 'a': ")
    assert told in str(error.value)


def test_the_result_may_read_any_node_and_nothing_else() -> None:
    assert Dag("d", [A], result=ref("a.x")).result == {"$from": "a.x"}
    with pytest.raises(DagError) as error:
        Dag("d", [A], result={"x": [ref("b.x")]})
    assert str(error.value) == "dag 'd': result.x[0].$from: the result reads 'b.x', but 'b' is not a node of this dag"


def test_a_name_of_a_dag_is_printable() -> None:
    with pytest.raises(DagError, match="name: ' d' is not a dag name"):
        Dag(" d", [A])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: node("a", "t", deps="b"), "node 'a': deps='b' is a single string; write a list, such as ['extract']"),  # pyright: ignore[reportArgumentType]
        (lambda: node("a", 5), "node 'a': Expected `str`, got `int` - at `$.task`"),  # pyright: ignore[reportArgumentType]
        (
            lambda: node("a", "t", args={"x": object()}),
            "node 'a': this value cannot be stored as JSON: a object has no JSON form",
        ),
        (lambda: node("a", "t", budget="soon"), "node 'a': budget: 'soon' is not a length of time"),
        (lambda: node("a", "t", retry={"tries": 3}), "node 'a': this is not a retry policy: got an unexpected keyword"),
        (lambda: node("a", "t", retry={"backoff": "ten"}), "node 'a': retry backoff: 'ten' is not a length of time"),
        (lambda: node("a", "t", retry=0), "node 'a': retry max_attempts: 0 is not a whole number from 1 to 32767"),
        (lambda: node("a", "t", on_failure="explode"), "node 'a': Invalid enum value 'explode' - at `$.on_failure`"),  # pyright: ignore[reportArgumentType]
        (lambda: sub_dag("a", {}), "node 'a': dag is a dict, not a Dag"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_node_that_is_wrongly_made_is_refused_by_name(make: Any, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value).startswith(told)


def test_what_is_no_dag_is_not_read_as_one() -> None:
    with pytest.raises(PayloadError, match="this is not a dag: "):
        Dag.from_json(b'{"name": "d"}')


def test_trouble_inside_a_sub_dag_is_told_from_outside_when_the_language_is_known() -> None:
    inner = Dag("inner", [node("a", "t", args={"x": {"$upper": "x"}})])
    outer = Dag("outer", [node("b", "t"), sub_dag("s", inner)])
    with pytest.raises(DagError) as error:
        DagProgram(outer)
    assert str(error.value).startswith("dag 'outer': nodes[1].dag.nodes[0].args.x: node 'a': $upper is not an operator")
    assert DagProgram(outer, refs=Refs({"$upper": str.upper})).version


def test_a_dag_of_ten_thousand_nodes_is_checked_in_time() -> None:
    nodes = [node("n0", "t")]
    nodes += [node(f"n{i}", "t", deps=[f"n{i - 1}"], args={"x": ref("n0.x")}) for i in range(1, 10_000)]
    assert len(DagPlan(Dag("long", nodes), Refs()).steps) == 10_000


def test_a_node_that_is_given_a_task_in_place_of_its_name_says_the_name() -> None:
    def pack() -> None: ...

    with pytest.raises(ConfigError, match="node 'first': task= takes the name of a task, 'pack', not the task"):
        node("first", cast(Any, pack))
