"""Dags in JSON and YAML files: the same as in Python, and trouble with its line."""

# ruff: noqa: E501 - what is told stands beside what is wrong

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.dags import whole
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.refs import Refs
from tidemill.core.retry import retry
from tidemill.dags import Dag, DagError, input_node, load_dag, node, parse_dag, ref

YAML = """\
name: nightly
nodes:
  - {name: extract, task: etl.extract, queue: fetch, args: {day: {$from: run.day}}}
  - name: approve
    prompt: "Load {{$.extract.rows}} rows?"
    schema: {type: object}
    timeout: 2h
    default: {answer: no}
  - name: load
    task: etl.load
    deps: [approve]
    budget: 10m
    retry: {max_attempts: 3, backoff: 10s}
    skip_if: approve.answer == 'no'
    args: {since: 2024-01-01, on: yes, share: 1.5, none: ~, flag: true, octal: 010}
"""

JSON = """\
{"name": "nightly", "about": "tabs\\tand \\ud83d\\ude00",
\t"nodes": [
\t\t{"name": "extract",
\t\t "task": "etl.extract", "retry": 3},
\t\t{"name": "load", "task": "etl.load", "args": {"rows": {"$from": "extract.rows"}},
\t\t "deps": ["extract"]}
\t]}
"""


def test_a_yaml_file_says_the_same_as_python() -> None:
    assert parse_dag(YAML) == Dag(
        "nightly",
        [
            node("extract", "etl.extract", queue="fetch", args={"day": ref("run.day")}),
            input_node(
                "approve",
                prompt="Load {{$.extract.rows}} rows?",
                schema={"type": "object"},
                timeout="2h",
                default={"answer": "no"},
            ),
            node(
                "load",
                "etl.load",
                deps=["approve"],
                budget="10m",
                retry=retry(3, backoff="10s"),
                skip_if="approve.answer == 'no'",
                args={"since": "2024-01-01", "on": "yes", "share": 1.5, "none": None, "flag": True, "octal": 10},
            ),
        ],
    )


def test_a_json_file_says_the_same_as_python() -> None:
    dag = parse_dag(JSON, file="nightly.json")
    assert dag.about == "tabs\tand 😀"
    assert dag.nodes[0] == node("extract", "etl.extract", retry=3)
    assert dag.nodes[1] == node("load", "etl.load", args={"rows": ref("extract.rows")}, deps=["extract"])


def test_python_takes_a_retry_policy_as_files_do() -> None:
    assert node("a", "t", retry={"backoff": "10s"}) == node("a", "t", retry=retry(backoff="10s"))


def test_what_a_dag_writes_as_json_is_a_file_that_can_be_read() -> None:
    dag = whole()
    assert parse_dag(dag.to_json().decode(), file="whole.json") == dag
    assert parse_dag(dag.to_json().decode(), file="whole.yaml") == dag


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[approve]", "[aprove]", "n.yaml:11: nodes[2].deps[0]: node 'load' depends on 'aprove', which is not a node of this dag; did you mean 'approve'?"),
        ("10m", "soon", "n.yaml:12: nodes[2].budget: budget: 'soon' is not a length of time; write"),
        ("2h", "-1s", "n.yaml:7: nodes[1].timeout: timeout: '-1s' is not a length of time; write"),
        ("10s", "ten", "n.yaml:13: nodes[2].retry: retry backoff: 'ten' is not a length of time; write"),
        ("max_attempts", "tries", "n.yaml:13: nodes[2].retry: this is not a retry policy: got an unexpected keyword argument 'tries'"),
        ("{max_attempts: 3, backoff: 10s}", "[1]", "n.yaml:13: nodes[2].retry: a retry policy must be an object or a number of attempts, but this is a list"),
        ("etl.load", "5", "n.yaml:10: nodes[2].task: Expected `str`, got `int`"),
        ("budget: 10m", "bugdet: 10m", "n.yaml:9: nodes[2]: there is no field `bugdet`"),
        ("task: etl.load", "queue: q", "n.yaml:9: nodes[2]: a node must have either a task, a prompt or a dag, but this one has none of them"),
        ("deps: [approve]", "prompt: x", "n.yaml:9: nodes[2]: a node must have either a task, a prompt or a dag, but this one has task and prompt"),
        ("schema: {type: object}", "schema: {type: objekt}", "n.yaml:6: nodes[1].schema: node 'approve': this is not a JSON Schema: at type: "),
        ("{$from: run.day}", "{$form: run.day}", "n.yaml:3: nodes[0].args.day: node 'extract': $form is not an operator; did you mean $from?"),
        ("$.extract.rows", "$.extrac.rows", "n.yaml:5: nodes[1].prompt: node 'approve' reads 'extrac.rows', but 'extrac' is not a node of this dag; did you mean 'extract'?"),
        ("== 'no'", "=", "n.yaml:14: nodes[2].skip_if: node 'load': 'approve.answer =' is not a valid condition: at character 16: "),
        ("name: load", "name: extract", "n.yaml:9: nodes[2].name: two nodes have the name 'extract': this one and nodes[0]"),
        ("budget: 10m", "task: other", "n.yaml:12: nodes[2].task: the key 'task' appears twice"),
        ("nodes:", "nodes: [", "n.yaml:3: this is not YAML: while parsing a flow node expected the node content, but found '-'"),
        ("name: nightly", "nam: nightly", "n.yaml:1: there is no field `nam`"),
        ("name: nightly\n", "", "n.yaml:1: the field `name` is missing"),
        ("name: nightly", "name: nightly\nresult: {$from: lod}", "n.yaml:2: result.$from: the result reads 'lod', but 'lod' is not a node of this dag; did you mean 'load'?"),
        ("2024-01-01", "!!python/object:os.system x", "n.yaml:15: this is not YAML: could not determine a constructor for the tag"),
        ("2024-01-01", "!!float .nan", "n.yaml: this is more than plain data: "),
        ("share: 1.5", "{a: 1}: 1.5", "n.yaml:15: nodes[2].args: a key is not a string"),
    ],
)  # fmt: skip
def test_trouble_in_a_file_is_told_with_its_line(old: str, new: str, told: str) -> None:
    assert old in YAML
    with pytest.raises(DagError) as error:
        parse_dag(YAML.replace(old, new, 1), file="n.yaml")
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('["extract"]', '["extrac"]', "n.json:6: nodes[1].deps[0]: node 'load' depends on 'extrac', which is not a node of this dag; did you mean 'extract'?"),
        ('"retry": 3', '"task": "x"', "n.json:4: nodes[0].task: the key 'task' appears twice"),
        ('"retry": 3', '"retry": NaN', "n.json: this is not JSON: NaN is not a valid number in JSON"),
        ('"retry": 3', '"retry": ', "n.json:4: this is not JSON: Expecting value"),
        ('"extract.rows"', '"extrac.rows"', "n.json:5: nodes[1].args.rows.$from: node 'load' reads 'extrac.rows', but"),
    ],
)  # fmt: skip
def test_trouble_in_json_is_told_with_its_line(old: str, new: str, told: str) -> None:
    assert old in JSON
    with pytest.raises(DagError) as error:
        parse_dag(JSON.replace(old, new, 1), file="n.json")
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "d.yaml: the file is empty"),
        ("[]", "d.yaml:1: a dag must be an object with a name and nodes, but this is a list"),
        ("name: x", "d.yaml:1: a dag must have a list of nodes"),
        ("name: x\nnodes: 5", "d.yaml:2: nodes: a dag must have a list of nodes"),
        ("name: x\nnodes: [5]", "d.yaml:2: nodes[0]: a node must be an object, but this is a number"),
        ("name: x\nnodes: []", "d.yaml:2: nodes: a dag needs at least one node"),
        ("name: x\nnodes: [{name: a, dag: b.yaml}]", "d.yaml:2: nodes[0].dag: 'b.yaml' is another file, and this text is not in a file; write the dag inline"),
        ("a: \x01", "d.yaml: this is not YAML: "),
        ("&a [*a]", "d.yaml: "),
    ],
)  # fmt: skip
def test_what_is_no_dag_is_refused(text: str, told: str) -> None:
    with pytest.raises(DagError) as error:
        parse_dag(text, file="d.yaml")
    assert str(error.value).startswith(told)


def test_aliases_that_repeat_each_other_do_not_fill_the_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(DagError, match=r"its aliases .* may be nested"):
        parse_dag("\n".join(lines))


def test_a_json_file_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(DagError, match="nested too deeply"):
        parse_dag('{"name": "d", "nodes": ' + "[" * 100_000 + "]" * 100_000 + "}", file="d.json")


def test_a_sub_dag_is_written_in_place_or_in_a_file_beside(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("name: inner\nnodes:\n  - {name: a, task: t, args: {x: {$from: run.x}}}\n")
    (tmp_path / "outer.yaml").write_text("name: outer\nnodes:\n  - {name: s, dag: inner.yaml, args: {x: 1}}\n")
    (tmp_path / "same.json").write_text(
        '{"name": "outer", "nodes": [{"name": "s", "args": {"x": 1}, "dag": {"name": "inner", "nodes": '
        '[{"name": "a", "task": "t", "args": {"x": {"$from": "run.x"}}}]}}]}'
    )
    assert load_dag(tmp_path / "outer.yaml") == load_dag(str(tmp_path / "same.json"))


def test_trouble_in_a_file_beside_is_told_with_that_file(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("name: inner\nnodes:\n  - {name: a, task: t, deps: [b]}\n")
    (tmp_path / "outer.yaml").write_text("name: outer\nnodes:\n  - {name: s, dag: inner.yaml}\n")
    with pytest.raises(DagError) as error:
        load_dag(tmp_path / "outer.yaml")
    assert (error.value.file, error.value.line) == (str(tmp_path / "inner.yaml"), 3)
    assert error.value.place == ("nodes", 0, "deps", 0)


def test_a_file_that_contains_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nnodes:\n  - {name: s, dag: b.yaml}\n")
    (tmp_path / "b.yaml").write_text("name: b\nnodes:\n  - {name: s, dag: a.yaml}\n")
    with pytest.raises(ConfigError, match=r"includes itself: a\.yaml -> b\.yaml -> a\.yaml"):
        load_dag(tmp_path / "a.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no dag file .*nowhere\.yaml"):
        load_dag(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml cannot be read"):
        load_dag(tmp_path / "latin.yaml")


def test_a_host_reads_files_in_its_own_language() -> None:
    text = "name: d\nnodes:\n  - {name: a, task: t, args: {x: {$upper: {$from: run.x}}}}\n"
    with pytest.raises(DagError, match=r"dag\.yaml:3: nodes\[0\]\.args\.x: node 'a': \$upper is not an operator"):
        parse_dag(text)
    refs: Any = Refs({"$upper": str.upper})
    assert parse_dag(text, refs=refs).nodes[0].name == "a"


def test_a_python_file_is_not_taken_for_yaml(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text("from tidemill import App\n")
    with pytest.raises(DagError, match="this is Python and not a dag file"):
        load_dag(tmp_path / "orders.py")
