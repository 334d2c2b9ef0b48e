"""Pipelines and workflows from JSON files, in all the forms in which people have them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import held, look, put, tree, update, wanted
from tidemill.core.errors import ConfigError
from tidemill.pipelines.runner.build_job import stage_task
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.workflows import load_workflow, node_type, parse_workflow, transform
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS, NodeError
from tidemill.store.database import Database

AUTO_BLOG = """
{
  "mode": "pipeline",
  "stateRoot": "output/",
  "nodes": [
    {"id": "scan-logs", "typeId": "state_scan", "name": "dates",
     "data": {"pattern": "daily/{date}/", "filter": "hasFiles"}},
    {"id": "summarize", "typeId": "state_transform", "name": "summary",
     "data": {"input": "{{$.dates.path}}/*.txt", "output": "{{$.dates.path}}/summary.txt",
              "transform": "claude_summarize", "minSize": 5}},
    {"id": "blog", "typeId": "state_transform", "name": "blog",
     "data": {"input": "{{$.summary.path}}", "output": "final/{{$.dates.id}}-daily-digest.md",
              "transform": "claude_blog", "minSize": 5}}
  ],
  "connections": [
    {"sourceNodeId": "scan-logs", "targetNodeId": "summarize"},
    {"sourceNodeId": "summarize", "targetNodeId": "blog"}
  ]
}
"""


@pytest.fixture(autouse=True)
def _own_transforms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = [(each, dict(each)) for each in (NODE_TYPES, TRANSFORMS)]
    yield
    for known, before in kept:
        known.clear()
        known.update(before)


async def never() -> Database:
    raise AssertionError("nobody asks for it")


def node(id: str, type: str, **data: Any) -> dict[str, Any]:
    return {"id": id, "typeId": type, "name": id, "position": {"x": 1, "y": 2}, "data": data}


def chain(*nodes: dict[str, Any], **settings: Any) -> dict[str, Any]:
    links = [
        {"id": f"c{at}", "sourceNodeId": one["id"], "sourceConnectorId": "out", "targetNodeId": two["id"],
         "targetConnectorId": "in"}
        for at, (one, two) in enumerate(pairwise(nodes))
    ]  # fmt: skip
    return {"nodes": list(nodes), "connections": links, **settings}


async def test_the_documents_own_workflow_is_loaded_unchanged_and_built(tmp_path: Path, database: Database) -> None:
    @transform("claude_summarize")
    def summarise(entity, files):
        return f"{entity.date}: " + " ".join(file.text() for file in files)

    @transform("claude_blog")
    async def blog(entity, text):
        return f"# {text}"

    (tmp_path / "auto-blog.json").write_text(AUTO_BLOG)
    loaded = load_workflow("auto-blog.json")
    assert loaded.notes == []
    (pipeline,) = loaded.pipelines
    put(tmp_path, {"output/daily/2026-01-15/a.txt": "one", "output/daily/2026-01-15/b.txt": "two"})
    assert wanted(await look(database, pipeline)) == {"summary/2026-01-15": "Missing"}
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "output")["daily/2026-01-15/summary.txt"] == "2026-01-15: one two"
    assert tree(tmp_path / "output")["final/2026-01-15-daily-digest.md"] == "# 2026-01-15: one two"
    assert wanted(await look(database, load_workflow("auto-blog.json").pipelines[0])) == {}


async def test_a_transform_that_nobody_declared_is_a_failure_that_says_so(tmp_path: Path, database: Database) -> None:
    (pipeline,) = parse_workflow(json.loads(AUTO_BLOG), "auto-blog").pipelines
    put(tmp_path, {"output/daily/2026-01-15/a.txt": "one"})
    plan = await update(database, pipeline)
    assert held(plan) == {"summary/2026-01-15": "BackingOff", "blog/2026-01-15": "Blocked"}
    assert "@transform('claude_summarize')" in str(plan.holds[0].reason)

    @transform("claude_summarize")
    def summarise(entity, files):
        return "long enough"

    (pipeline,) = parse_workflow(json.loads(AUTO_BLOG), "auto-blog").pipelines
    assert wanted(await look(database, pipeline)) == {"summary/2026-01-15": "Missing"}


@pytest.mark.parametrize("name", ["my trigger", "größe", "my-trigger"])
async def test_a_state_node_may_have_any_name(name: str, tmp_path: Path, database: Database) -> None:
    graph = chain(
        {**node("1", "state_trigger", state_root="states", pattern="in/{id}.txt"), "name": name},
        {**node("2", "state_read", pattern=f"{{{{$['{name}'].path}}}}"), "name": "the text"},
        {
            **node("3", "state_check", pattern="in/{n}.txt", entity_id=f'{{{{$["{name}"].entity_id}}}}'),
            "name": "is there",
        },
        node("w", "state_write", pattern=f"out/{{{{$['{name}'].id}}}}.txt", content="{{$['the text'].content + '!'}}"),
    )
    (pipeline,) = parse_workflow(graph, "named").pipelines
    put(tmp_path, {"states/in/a.txt": "one"})
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "states")["out/a.txt"] == "one!"


async def test_a_graph_of_nodes_is_run_for_each_entity(tmp_path: Path, database: Database) -> None:
    graph = chain(
        node("trig", "state_trigger", state_root="states", pattern="in/{id}.txt", scan_interval=5),
        node("rd", "state_read", pattern="in/{name}.txt", entity_id="{{$.trig.entity_id}}"),
        node("up", "transform", expression="$.rd.content.toUpperCase()"),
        node("wr", "state_write", pattern="out/{x}.txt", entity_id="{{$.trig.entity_id}}",
             content="{{$.trig.entity_id}}: {{$.up.result}}", min_size=3),
    )  # fmt: skip
    (pipeline,) = parse_workflow(graph, "graph").pipelines
    assert pipeline.scan_interval == 5
    put(tmp_path / "states", {"in/a.txt": "apple", "in/b.txt": "pear"})
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "states")["out/a.txt"] == "a: APPLE"
    assert tree(tmp_path / "states")["out/b.txt"] == "b: PEAR"
    graph["nodes"][2]["data"]["expression"] = "$.rd.content.trim()"
    (pipeline,) = parse_workflow(graph, "graph").pipelines
    plan = await look(database, pipeline)
    assert wanted(plan) == {"wr/a": "CodeChanged", "wr/b": "CodeChanged"}
    assert plan.builds[0].reason.parts == ("params.up",)  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_list_of_stages_is_built_one_from_another(tmp_path: Path, database: Database) -> None:
    written = {
        "name": "staged", "mode": "pipeline", "stateRoot": "states", "scanInterval": 30, "maxConcurrentEntities": 2,
        "retryPolicy": {"maxAttempts": 3, "backoffSeconds": [1, 2]},
        "stages": [
            {"id": "src", "name": "source", "type": "source", "pattern": "input/{id}.txt"},
            {"id": "big", "name": "bigger", "type": "transform", "input": "src", "pattern": "big/{id}.txt",
             "node": {"typeId": "transform", "data": {"expression": "$.src.content.toUpperCase()"}}},
            {"id": "sum", "type": "transform", "input": "big", "pattern": "sum/{id}.txt", "validation": {"minSize": 4},
             "node": {"typeId": "set", "data": {"content": "{{$.entity.id}} {{$.src.content}} {{$.big.path}}"}}},
        ],
    }  # fmt: skip
    (pipeline,) = parse_workflow(written, "x").pipelines
    assert pipeline.stages["big"].options.backoff == (1.0, 2.0)
    assert pipeline.stages["sum"].options.max_concurrency == 2
    put(tmp_path / "states", {"input/a.txt": "apple"})
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "states")["sum/a.txt"] == "a apple big/a.txt"


async def test_a_gate_waits_for_the_state_that_it_checks(tmp_path: Path, database: Database) -> None:
    graph = chain(
        node("scan", "state_scan", pattern="in/{id}.txt"),
        node("ok", "state_gate", pattern="approved/{{$.scan.id}}.txt"),
        node("rd", "state_read", pattern="{{$.scan.path}}"),
        node("wr", "state_write", pattern="out/{{$.scan.id}}.txt", content="{{$.rd.content}}"),
        mode="pipeline", stateRoot="states",
    )  # fmt: skip
    (pipeline,) = parse_workflow(graph, "throttled").pipelines
    put(tmp_path / "states", {"in/a.txt": "apple", "in/b.txt": "pear", "approved/b.txt": ""})
    await update(database, pipeline)
    assert set(tree(tmp_path / "states")) == {"in/a.txt", "in/b.txt", "approved/b.txt", "out/b.txt"}
    put(tmp_path / "states", {"approved/a.txt": ""})
    await update(database, pipeline)
    assert tree(tmp_path / "states")["out/a.txt"] == "apple"


async def test_a_state_of_one_workflow_triggers_another(tmp_path: Path, database: Database) -> None:
    one = chain(
        node("scan", "state_scan", pattern="in/{id}"),
        node("wr", "state_write", stateType="article", content="{{$.scan.content}}!"),
        mode="pipeline", stateRoot="states",
    )  # fmt: skip
    two = chain(
        node("trig", "state_trigger", stateType="article", filter="$.codeHash == currentCodeHash"),
        node("wr", "state_write", stateType="note", content="{{$.trig.content.length}}"),
        mode="pipeline", stateRoot="states",
    )  # fmt: skip
    put(tmp_path / "states", {"in/a": "apple"})
    for name, graph in (("one", one), ("two", two)):
        (pipeline,) = parse_workflow(graph, name).pipelines
        assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "states") == {"in/a": "apple", "article/a": "apple!", "note/a": "6\n"}


async def test_an_if_that_lets_nothing_through_writes_nothing_and_is_no_failure(
    tmp_path: Path, database: Database
) -> None:
    graph = chain(
        node("scan", "state_scan", pattern="in/{id}.txt"),
        node("long", "if", condition="$.scan.content.length > 4"),
        node("wr", "state_write", pattern="out/{{$.scan.id}}.txt", content="{{$.scan.content}}!"),
        mode="pipeline", stateRoot="states",
    )  # fmt: skip
    graph["connections"][1]["sourceConnectorId"] = "true"
    (pipeline,) = parse_workflow(graph, "choosy").pipelines
    put(tmp_path / "states", {"in/a.txt": "apple", "in/b.txt": "fig"})
    assert (await update(database, pipeline)).steps == []
    assert set(tree(tmp_path / "states")) == {"in/a.txt", "in/b.txt", "out/a.txt"}
    rows = await database.fetch("SELECT entity, outcome FROM tidemill.state_build ORDER BY entity")
    assert [tuple(row) for row in rows] == [("a", "built"), ("b", "skipped")]


def test_a_nodes_tag_is_the_queue_of_its_builds_and_its_group_limits_them() -> None:
    graph = chain(
        node("scan", "state_scan", pattern="in/{id}.txt"),
        node("wr", "state_write", pattern="out/{{$.scan.id}}.txt", content="{{$.scan.content}}"),
        mode="pipeline",
    )  # fmt: skip
    graph["nodes"][1]["agentConfig"] = {"tags": ["gpu"], "concurrencyGroup": "models"}
    tagged = parse_workflow(graph, "tagged")
    assert tagged.notes == []
    stage = tagged.pipelines[0].stages["wr"]
    assert (stage.options.queue, stage.options.concurrency_key, stage.options.max_concurrency) == ("gpu", "models", 1)
    task = stage_task(stage, never)
    graph["settings"] = {"concurrencyGroups": {"models": 3}}
    other = stage_task(parse_workflow(graph, "other").pipelines[0].stages["wr"], never)
    assert other.options.concurrency_key == task.options.concurrency_key == "models"
    assert (task.options.max_concurrency, other.options.max_concurrency) == (1, 3)
    graph["settings"] = {"concurrencyGroups": {"models": 0}}
    with pytest.raises(ConfigError, match="concurrencyGroups"):
        parse_workflow(graph, "none")


async def test_a_group_limits_what_is_built_at_once_without_workers_in_however_many_processes(
    tmp_path: Path, database: Database
) -> None:
    now, most = 0, 0

    @node_type("think")
    async def think(data: dict[str, Any], item: dict[str, Any]) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return "thought"

    put(tmp_path, {f"states/in/{number}.txt": "x" for number in range(8)})
    drivers = []
    for name in ("one", "two", "three"):  # Each counts by itself, as processes do.
        graph = chain(
            node("scan", "state_scan", pattern="in/{id}.txt"),
            node("llm", "think"),
            node("wr", "state_write", pattern=f"{name}/{{{{$.scan.id}}}}.txt", content="{{$.llm}}"),
            mode="pipeline",
            stateRoot=str(tmp_path / "states"),
            settings={"concurrencyGroups": {"models": 2}},
        )
        graph["nodes"][1]["agentConfig"] = {"concurrencyGroup": "models"}
        drivers.append(Driver(database, parse_workflow(graph, name).pipelines[0]))
    await asyncio.gather(*map(run_once, drivers))
    assert len([path for path in tree(tmp_path / "states") if not path.startswith("in/")]) == 24
    assert most == 2


async def test_states_may_be_kept_in_the_database(tmp_path: Path, database: Database) -> None:
    graph = chain(
        node("scan", "state_scan", pattern="in/{id}"),
        node("wr", "state_write", pattern="out/{{$.scan.id}}", content="{{$.scan.content}}!"),
        mode="pipeline", stateRoot="kept", stateStore="database",
    )  # fmt: skip
    (pipeline,) = parse_workflow(graph, "kept").pipelines
    await database.fetch("INSERT INTO tidemill.state_blob (store, path, content) VALUES ('kept', 'in/a', 'x'::bytea)")
    assert (await update(database, pipeline)).steps == []
    rows = await database.fetch("SELECT content FROM tidemill.state_blob WHERE path = 'out/a'")
    assert [row["content"] for row in rows] == [b"x!"]


async def test_a_workflow_in_trigger_mode_runs_once_for_each_event(tmp_path: Path) -> None:
    graph = chain(
        node("begin", "webhook"),
        node("size", "transform", expression="{{$.begin.text.length}}"),
        node("long", "if", condition="$.size.result > 3"),
        node("log", "append_to_file", filepath="log.txt", content="{{$.begin.text}}"),
        mode="trigger",
    )  # fmt: skip
    graph["connections"][2]["sourceConnectorId"] = "true"
    (workflow,) = parse_workflow(graph, "hook").triggers
    assert (await workflow.run({"text": "tides"}))["long"] == [True]
    assert (await workflow.run({"text": "no"}))["log"] == []
    part = await workflow.run({"text": "tides"}, until="size")
    assert part == {"begin": [{"text": "tides"}], "size": [{"result": 5}]}
    with pytest.raises(ConfigError, match="has no node 'sizes'; did you mean 'size'"):
        await workflow.run(until="sizes")
    assert (tmp_path / "log.txt").read_text() == "tides\n"


async def test_nodes_of_ones_own_and_items_and_pinned_outputs(tmp_path: Path) -> None:
    @node_type("double")
    def double(data, item):
        return data["n"] * 2

    @node_type("total", per_item=False)
    def total(data, items):
        return sum(item["twice"] for item in items)

    graph = chain(
        node("numbers", "hardwired", value="[1, 2, 3]"), node("twice", "double", n="{{$.numbers}}"),
        node("all", "total"), node("fixed", "http", url="http://nowhere", pinned=True, pinnedOutput={"ok": True}),
    )  # fmt: skip
    (workflow,) = parse_workflow(graph, "x").triggers
    found = await workflow.run()
    assert found["twice"] == [2, 4, 6]
    assert found["all"] == [12]
    assert found["fixed"] == [{"ok": True}]


async def test_a_node_whose_function_runs_out_of_an_iterator_fails_and_does_not_hang() -> None:
    """A future carries no StopIteration out of a thread."""

    @node_type("first")
    def first(data, item):
        return next(iter(()))

    (workflow,) = parse_workflow(chain(node("one", "first")), "x").triggers
    async with asyncio.timeout(120):
        with pytest.raises(NodeError, match=r"node 'one': RuntimeError: .*StopIteration"):
            await workflow.run()


async def test_a_command_is_run_and_its_failure_told() -> None:
    good = parse_workflow(chain(node("c", "run_command", command=["cat"], stdin="hi")), "x").triggers[0]
    assert (await good.run())["c"] == [{"stdout": "hi", "stderr": "", "returnCode": 0}]
    bad = parse_workflow(chain(node("c", "run_command", command="echo oops >&2; exit 3")), "x").triggers[0]
    with pytest.raises(ConfigError, match="ended with 3: oops"):
        await bad.run()


async def test_an_expression_that_fails_names_its_node_and_field() -> None:
    graph = chain(node("begin", "start"), node("made", "set", title="{{$.begin.title.toUpperCase()}}"))
    (workflow,) = parse_workflow(graph, "x").triggers
    with pytest.raises(NodeError, match=r"node 'made', field 'title'.*toUpperCase"):
        await workflow.run({"other": 1})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data["nodes"][1]["data"].update(input="{{$.datums.path}}/*"), "no state 'datums'"),
        (lambda data: data["nodes"][2]["data"].update(output="{{$.dates.id.trim()}}"), "is not understood"),
        (lambda data: data["nodes"][0].update(typeId="state_scam"), "there is no type 'state_scam'"),
        (lambda data: data["connections"][0].update(sourceNodeId="nobody"), "there is no node 'nobody'"),
        (lambda data: data["nodes"][1]["data"].pop("transform"), "transform is missing"),
        (lambda data: data.update(mode="poetry"), "is not one of pipeline, trigger"),
        (lambda data: data["nodes"][2]["data"].update(input="{{$.blog.path}}"), "no state 'blog' before"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(change: Any, told: str, tmp_path: Path) -> None:
    data = json.loads(AUTO_BLOG)
    change(data)
    (tmp_path / "w.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"w\.json, line 1: .*") as error:
        load_workflow("w.json")
    assert told in str(error.value)


def test_what_is_not_understood_in_a_file_is_an_error_with_its_line_and_can_be_allowed(tmp_path: Path) -> None:
    data = json.loads(AUTO_BLOG)
    data["colour"] = "blue"
    data["nodes"][0]["shape"] = "round"
    (tmp_path / "w.json").write_text(json.dumps(data, indent=1))
    lines = (tmp_path / "w.json").read_text().splitlines()
    (shape,), (colour,) = ([at for at, line in enumerate(lines, 1) if word in line] for word in ("shape", "colour"))
    told = [
        f"w.json, line {shape}: nodes[0].shape: the field 'shape' is not understood",
        f"w.json, line {colour}: colour: the field 'colour' is not understood",
    ]
    with pytest.raises(ConfigError) as raised:
        load_workflow("w.json")
    assert sorted(str(raised.value).splitlines()) == sorted(told)
    allowed = load_workflow("w.json", allow_unknown=True)
    assert [pipeline.name for pipeline in allowed.pipelines] == ["w"]
    assert set(told) <= set(allowed.notes)


def test_a_folder_of_files_is_loaded_together(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(AUTO_BLOG)
    (tmp_path / "two.json").write_text(json.dumps(chain(node("s", "scheduled", interval=5, unit="minutes"))))
    loaded = load_workflow(tmp_path)
    assert [pipeline.name for pipeline in loaded.pipelines] == ["one"]
    assert [str(workflow.name) for workflow in loaded.triggers] == ["two"]
    assert len(loaded.triggers[0].schedules) == 1


async def test_a_state_may_be_written_from_one_that_a_transform_has_made(tmp_path: Path, database: Database) -> None:
    @transform("louder")
    def louder(entity, text):
        return f"{text}!"

    graph = chain(
        node("scan", "state_scan", pattern="in/{id}.txt"),
        node("mid", "state_transform", input="{{$.scan.path}}", output="mid/{{$.scan.id}}.txt", transform="louder"),
        node("rd", "state_read", pattern="{{$.mid.path}}"),
        node("wr", "state_write", pattern="out/{{$.scan.id}}.txt", content="{{$.rd.content}} from {{$.mid.path}}"),
        mode="pipeline", stateRoot="states",
    )  # fmt: skip
    (pipeline,) = parse_workflow(graph, "chained").pipelines
    put(tmp_path / "states", {"in/a.txt": "apple"})
    assert (await update(database, pipeline)).steps == []
    assert tree(tmp_path / "states")["out/a.txt"] == "apple! from mid/a.txt"
