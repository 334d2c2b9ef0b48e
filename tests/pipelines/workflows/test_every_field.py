"""Every field of a workflow file is read or refused."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.workflow_runs import run_file
from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows import load_workflow, parse_workflow
from tidemill.pipelines.workflows.checks.check import find_problems
from tidemill.pipelines.workflows.checks.kinds import FIELDS, NEEDS, OPEN, REFUSED, kinds
from tidemill.pipelines.workflows.folder import WorkflowFolder
from tidemill.pipelines.workflows.nodes import NODE_TYPES


def node(type: str, **data: Any) -> dict[str, Any]:
    return {"id": type, "typeId": type, "name": type, "data": data}


def flow(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    links = [{"sourceNodeId": a["id"], "targetNodeId": b["id"]} for a, b in pairwise(nodes)]
    return {"mode": "trigger", "nodes": list(nodes), "connections": links, **more}


STAGES = {
    "name": "s", "mode": "pipeline", "stateRoot": "states",
    "stages": [
        {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
        {"id": "out", "type": "transform", "input": "src", "pattern": "out/{id}.txt",
         "node": {"typeId": "transform", "data": {"expression": "$.src.content"}}},
    ],
}  # fmt: skip


def unknown(data: Any) -> list[str]:
    return [str(each) for each in find_problems(data, "f") if each.severity == "unknown"]


@pytest.mark.parametrize("type", [name for name in FIELDS if name in NODE_TYPES and name not in OPEN])
def test_a_field_that_a_kind_does_not_have_is_refused(type: str) -> None:
    needed = {group[0]: "1" for group in NEEDS.get(type, ())}
    known = unknown(flow(node(type, **needed)))
    assert known == []
    (told,) = unknown(flow(node(type, **needed, colour="blue")))
    assert told.startswith("nodes[0].data.colour: ")
    with pytest.raises(ConfigError, match="colour"):
        parse_workflow(flow(node(type, **needed, colour="blue")), "f")


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda data: data.update(colour=1), "colour"),
        (lambda data: data["stages"][0].update(colour=1), "stages[0].colour"),
        (lambda data: data["stages"][1]["node"].update(colour=1), "stages[1].node.colour"),
        (lambda data: data["stages"][1]["node"]["data"].update(colour=1), "stages[1].node.data.colour"),
        (lambda data: data["stages"][1].update(validation={"maxSize": 1}), "stages[1].validation.maxSize"),
        (lambda data: data.update(retryPolicy={"max": 1}), "retryPolicy.max"),
        (lambda data: data["stages"][1]["node"].update(typeId="transfrom"), "stages[1].node.typeId"),
    ],
)
def test_every_part_of_a_list_of_stages_is_read_or_refused(change: Any, place: str) -> None:
    data = json.loads(json.dumps(STAGES))
    assert find_problems(data, "f") == []
    change(data)
    assert [told.partition(": ")[0] for told in unknown(data)] == [place]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda data: data.update(settings={"colour": 1}), "settings.colour"),
        (lambda data: data["nodes"][0].update(colour=1), "nodes[0].colour"),
        (lambda data: data["nodes"][0].update(agentConfig={"colour": 1}), "nodes[0].agentConfig.colour"),
        (lambda data: data["connections"][0].update(colour=1), "connections[0].colour"),
        (lambda data: data["connections"][0].update(sourceConnectorId="yes"), "connections[0].sourceConnectorId"),
        (lambda data: data["connections"][0].update(targetConnectorId="yes"), "connections[0].targetConnectorId"),
        (lambda data: data["nodes"][1].update(typeId="sett"), "nodes[1].typeId"),
    ],
)
def test_every_part_of_a_graph_is_read_or_refused(change: Any, place: str) -> None:
    data = flow(node("if", condition="true"), node("set", fields=[{"name": "a", "value": 1}]))
    assert find_problems(data, "f") == []
    change(data)
    assert [told.partition(": ")[0] for told in unknown(data)] == [place]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("name", ["a"]), ("name", True), ("stateRoot", 5), ("stateRoot", {}), ("mode", "sometimes"),
        ("stateStore", "cloud"), ("scanInterval", "often"), ("scanInterval", 0), ("scanInterval", float("inf")),
        ("maxConcurrentEntities", 10**400), ("maxConcurrentEntities", "9" * 5000), ("maxConcurrentEntities", -1),
        ("retryPolicy", [1]), ("retryPolicy.maxAttempts", "x"), ("retryPolicy.maxAttempts", True),
        ("retryPolicy.maxAttempts", 0), ("retryPolicy.maxAttempts", float("inf")), ("retryPolicy.backoffSeconds", 5),
        ("retryPolicy.backoffSeconds", "15"), ("retryPolicy.backoffSeconds[0]", "x"),
        ("retryPolicy.backoffSeconds[0]", None), ("retryPolicy.backoffSeconds[0]", -1), ("stages", {}),
        ("stages[1].validation", 3), ("stages[1].validation.minSize", -1), ("stages[1].validation.minSize", "big"),
        ("stages[1].description", {}), ("stages[1].pattern", 7),
        ("scanInterval", 10**10), ("scanInterval", "{{1}}"), ("maxConcurrentEntities", 10**9),
        ("maxConcurrentEntities", 2.5), ("retryPolicy.maxAttempts", 10**9), ("retryPolicy.maxAttempts", "9" * 12),
        ("retryPolicy.maxAttempts", "{{3}}"), ("retryPolicy.backoffSeconds[0]", 10**12),
        ("stages[1].validation.minSize", 10**15), ("stages[0].pattern", "in/{id"), ("stages[1].pattern", "/out/{id}"),
        ("stages[1].id", "a\nb"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_where_it_stands(place: str, value: Any) -> None:
    data: Any = json.loads(json.dumps(STAGES))
    part, *path = data, *re.findall(r"\w+", place)
    for name in path[:-1]:
        inner = {"retryPolicy": {"backoffSeconds": [1.0]}, "validation": {}}.get(name)
        part = part[int(name)] if isinstance(part, list) else part.setdefault(name, inner)
    part[int(path[-1]) if isinstance(part, list) else path[-1]] = value
    assert place in [str(each).partition(": ")[0] for each in find_problems(data, "f")]
    with pytest.raises(ConfigError):
        parse_workflow(data, "f")


@pytest.mark.parametrize("most", [10**9, 10**12, 0, 2.5, True, "{{2}}"])
def test_a_limit_of_a_group_that_is_none_is_named_with_its_line(most: Any, tmp_path: Path) -> None:
    data = flow(node("hardwired", json="[1]"), settings={"concurrencyGroups": {"models": most}})
    file = tmp_path / "grouped.json"
    file.write_text(json.dumps(data, indent=1))
    line = 1 + file.read_text().splitlines().index(f'   "models": {json.dumps(most)}')
    with pytest.raises(ConfigError, match=rf"grouped.json, line {line}: settings"):
        load_workflow(file)


@pytest.mark.parametrize(
    ("type", "data", "field"),
    [
        ("http", {"url": "http://127.0.0.1/", "timeout": 10**12}, "timeout"),
        ("run_command", {"command": ["true"], "timeout": 10**12}, "timeout"),
        ("run_command", {"command": "true", "args": 7}, "args"),
        ("run_command", {"command": "true", "args": "{{$.items}}"}, "args"),
        ("llm", {"prompt": "x", "maxTokens": 10**15}, "maxTokens"),
    ],
)
def test_a_value_that_no_node_could_use_is_refused_at_its_field(type: str, data: dict[str, Any], field: str) -> None:
    assert {str(each).partition(": ")[0] for each in find_problems(flow(node(type, **data)), "f")} == {
        f"nodes[0].data.{field}"
    }


@pytest.mark.parametrize("name", ["two words", "it's", 'a "quoted" one', "a\nb", "x" * 300])
def test_a_node_of_any_name_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    scan = node("state_scan", pattern="in/{id}.txt")
    data = flow(scan, {**node("state_write", pattern="out.txt", content="x"), "name": name}, mode="pipeline")
    file = tmp_path / "named.json"
    file.write_text(json.dumps(data, indent=1))
    line = file.read_text().splitlines().index("  },") + 2
    with pytest.raises(ConfigError, match=rf"named.json, line {line}: nodes\[1\]: "):
        load_workflow(file)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": "two\nlines"}, "name"),
        ({"name": "x" * 195}, "name"),
        ({"name": "ends in a space "}, "name"),
        ({"concurrencyGroup": "{day}"}, "nodes[0].agentConfig.concurrencyGroup"),
        ({"concurrencyGroup": "x" * 2000}, "nodes[0].agentConfig.concurrencyGroup"),
    ],
)
def test_a_name_of_which_there_can_be_no_task_is_refused(change: dict[str, str], place: str, tmp_path: Path) -> None:
    timer = node("scheduled", interval="1h")
    data = flow({**timer, "agentConfig": change}) if "concurrencyGroup" in change else flow(timer, **change)
    assert [str(each).partition(": ")[0] for each in find_problems(data, "f")] == [place]
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    (tmp_path / "right.json").write_text(json.dumps(flow(timer)))
    folder = WorkflowFolder(tmp_path)
    folder.refresh()
    assert set(folder.triggers) == {"right"}
    assert set(folder.errors) == {"wrong.json"}


def test_the_names_of_a_pipeline_and_of_its_stage_fit_into_that_of_a_task() -> None:
    data = {**STAGES, "name": "p" * 150, "stages": [STAGES["stages"][0], {**STAGES["stages"][1], "id": "s" * 40}]}
    assert find_problems(data, "f") == []
    data["stages"][1]["id"] = "s" * 60
    assert [each.place for each in find_problems(data, "f")] == [("name",)]


def test_an_interval_in_a_file_may_be_any_sensible_number() -> None:
    for interval in (1, 60, 1.5, "30"):
        assert find_problems({**STAGES, "scanInterval": interval}, "f") == []


@pytest.mark.parametrize("connector", ["", "out", "output", "output-0", "true", "false"])
def test_the_usual_names_of_connectors_are_understood(connector: str) -> None:
    data = flow(node("if", condition="true"), node("set", fields=[]))
    data["connections"][0]["sourceConnectorId"] = connector
    assert find_problems(data, "f") == []


@pytest.mark.parametrize(
    ("type", "data", "is_json"),
    [
        ("hardwired", {"json": '[1, {{1 + 1}}, -{{1 + 1}}, {"{{1 + 1}}": 1}]'}, True),
        ("hardwired", {"json": "{{1 + 1}}"}, True),
        ("hardwired", {"json": "[{{1 + 1}}"}, False),
        ("hardwired", {"json": "{not"}, False),
        ("hardwired", {"json": "high water"}, False),
        ("hardwired", {"json": '"high water"'}, True),
        ("http", {"url": "https://example.org", "json_body": '{"a": {{1 + 1}}, "b": "{{1 + 1}} x"}'}, True),
        ("http", {"url": "https://example.org", "json_body": "{a: 1}"}, False),
        ("http", {"url": "https://example.org", "json_body": "{a: 1}", "body_mode": "none"}, True),
    ],
)
def test_json_in_a_text_is_refused_where_no_value_makes_it_json(type: str, data: dict[str, Any], is_json: bool) -> None:
    found = [each.problem for each in find_problems(flow(node("start"), node(type, **data)), "f")]
    assert [told.partition(":")[0] for told in found] == ([] if is_json else ["this is not JSON"])


@pytest.mark.parametrize("type", list(REFUSED))
def test_a_kind_that_cannot_run_here_says_what_to_use(type: str) -> None:
    (told,) = unknown(flow(node(type)))
    assert f"{type} is not available" in told


def test_tools_of_an_agent_are_refused_and_what_concerns_only_them_is_noted() -> None:
    agent = node("claude_agent", prompt="hi", tools=["Bash"], permission_mode="default", cwd="/tmp")
    found = {each.place[-1]: each.severity for each in find_problems(flow(agent), "f")}
    assert found == {"tools": "error", "permission_mode": "note", "cwd": "note"}
    assert find_problems(flow(node("claude_agent", prompt="hi", tools=[])), "f") == []


def test_allowed_unknown_parts_are_notes_and_an_unknown_node_fails_when_it_is_run() -> None:
    loaded = parse_workflow(flow(node("teleport", to="mars"), colour=1), "f", allow_unknown=True)
    assert len(loaded.notes) == 2
    assert [workflow.name for workflow in loaded.triggers] == ["f"]


def test_one_broken_file_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(STAGES))
    odd = json.dumps({**STAGES, "name": "odd", "colour": 1}, indent=1).replace("out/{id}", "odd/{id}")
    (tmp_path / "odd.json").write_text(odd)
    (tmp_path / "bad.json").write_text("{")
    folder = WorkflowFolder(tmp_path)
    folder.refresh()
    assert set(folder.pipelines) == {"s"}
    assert "odd.json, line " in folder.errors["odd.json"]
    assert "bad.json, line 1: this is not JSON" in folder.errors["bad.json"]
    allowed = WorkflowFolder(tmp_path, allow_unknown=True)
    allowed.refresh()
    assert set(allowed.pipelines) == {"s", "odd"}
    assert "the field 'colour' is not understood" in str(allowed.notes)


def test_the_editor_knows_every_kind() -> None:
    known = {each.type for each in kinds()}
    assert set(FIELDS) <= known


@pytest.mark.parametrize("value", ["{{$.payload", "a {{$.payload} b", ["{{"], {"{{": 1}])
def test_an_expression_that_is_not_closed_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"nodes\[0\]\.data\.fields: a \{\{ has no \}\}"):
        run_file(flow(node("set", fields=[{"name": "a", "value": value}])))
    assert run_file(flow(node("set", fields={"{{'{{'}}": "{{$.payload}}"})), 1) == {"set": [{"{{": 1}]}


def test_a_pinned_node_has_no_unknown_field_either() -> None:
    with pytest.raises(ConfigError, match="http does not read the field 'urll'"):
        run_file(flow(node("http", pinned=True, pinnedOutput=1, urll="x")))
    assert run_file(flow(node("http", pinned=True, pinnedOutput=1))) == {"http": [1]}


def test_an_interval_of_zero_is_no_default_and_tags_that_change_nothing_are_noted() -> None:
    with pytest.raises(ConfigError, match="too short"):
        run_file(flow(node("scheduled", interval=0)))
    (unused,) = find_problems(flow(node("llm", prompt="x", credentialName="anthropic")), "f")
    assert (unused.severity, unused.place[-1]) == ("note", "credentialName")
    tagged = {**node("start"), "agentConfig": {"tags": ["gpu"]}}
    assert "its tags have no effect" in parse_workflow(flow(tagged), "f").notes[0]


@pytest.mark.parametrize(
    ("type", "data", "message"),
    [
        ("set", {"fields": [{"name": "a", "value": 1, "tpye": "x"}]}, "fields[0].tpye: the field 'tpye' is not"),
        ("http", {"url": "u", "headers": [{"name": "a", "enabled": False}]}, "headers[0].enabled: the field 'enabled'"),
        ("append_to_file", {"filepath": "a", "path": "b"}, "path: this is another name for filepath, which is there"),
        ("claude_agent", {"prompt": "p", "system": "a", "system_prompt": "b"}, "another name for system"),
    ],
)
def test_no_part_of_a_field_stays_unread(type: str, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_workflow(flow(node(type, **data)), "f")


def test_equal_values_under_both_names_of_a_field_are_no_problem() -> None:
    assert find_problems(flow(node("discord_send", channel_id="1", message="a", content="a")), "f") == []


def test_the_second_line_of_an_if_is_named_false() -> None:
    nodes = [node("if", condition=True), node("start")]
    linked = flow(*nodes)
    linked["connections"][0]["sourceConnectorId"] = "output-1"
    with pytest.raises(ConfigError, match="the connector 'output-1' is not understood: an if has true and false"):
        parse_workflow(linked, "f")
    linked["connections"][0]["sourceConnectorId"] = "output-0"
    assert run_file(linked, 5)["start"] == [5]


def test_a_source_has_nothing_that_makes_it() -> None:
    node_of = {"typeId": "transform", "data": {"expression": "1"}}
    source: dict[str, Any] = {"id": "a", "type": "source", "pattern": "a/{id}", "validation": {"minSize": 1}}
    made = {"id": "b", "input": "a", "pattern": "b/{id}", "node": node_of}
    assert [each.severity for each in find_problems({"stages": [source, made]}, "f")] == ["note"]
    empty = {**source, "input": "", "node": {}, "then": None}
    assert [each.severity for each in find_problems({"stages": [empty, made]}, "f")] == ["note"]
    with pytest.raises(ConfigError, match=r"stages\[0\]\.node: a source is made from nothing"):
        parse_workflow({"stages": [{**source, "node": node_of}, made]}, "f")


def test_the_folder_of_states_is_one_and_written_out() -> None:
    def scanned(*roots: str, **more: Any) -> dict[str, Any]:
        nodes, links = [], []
        for at, root in enumerate(roots):
            scan = {"id": f"s{at}", "typeId": "state_trigger", "data": {"pattern": f"{at}/{{id}}", "state_root": root}}
            write = {
                "id": f"w{at}",
                "typeId": "state_write",
                "data": {"pattern": f"o{at}/{{{{$.s{at}.id}}}}", "content": "x"},
            }
            nodes += [scan, write]
            links.append({"sourceNodeId": f"s{at}", "targetNodeId": f"w{at}"})
        return {"nodes": nodes, "connections": links, **more}

    assert parse_workflow(scanned("a", "a"), "f").pipelines[0].root == Path("a")
    assert parse_workflow(scanned("./a", "a/"), "f").pipelines[0].root == Path("a")
    assert parse_workflow(scanned("a", settings={"dataDirectory": "./a/"}), "f").pipelines[0].root == Path("a")
    with pytest.raises(ConfigError, match="all states of a file are in one folder, and this is 'a'"):
        parse_workflow(scanned("a", "b"), "f")
    for written in (scanned("{{$env.HOME}}"), {**STAGES, "stateRoot": "{{$env.HOME}}"}):
        with pytest.raises(ConfigError, match="cannot be an expression: write its path"):
            parse_workflow(written, "f")


@pytest.mark.parametrize(("type", "field"), [("if", "condition"), ("transform", "expression")])
@pytest.mark.parametrize("text", ["{{$.a.n}} > 3", "'{{$.a.word}}' === 'hi'", "{{$.a.n > 1}} && {{$.a.n < 9}}"])
def test_an_expression_with_braces_around_a_part_of_it_is_refused(type: str, field: str, text: str) -> None:
    (problem,) = find_problems(flow({**node("start"), "name": "a"}, node(type, **{field: text})), "f")
    assert problem.place[-1] == field
    assert problem.problem.endswith("write all of it without {{ }}, or all of it in one pair of them")


def test_an_id_that_is_no_text_is_named_as_such() -> None:
    first, *_ = find_problems(flow({**node("start"), "id": 1}), "f")
    assert (first.place, first.problem) == (("nodes", 0, "id"), "a node has an id, which is a text")


@pytest.mark.parametrize("kind", ["env", "credentials"])
def test_what_is_read_of_secrets_and_of_the_environment_is_named(kind: str) -> None:
    for reads in (f"${kind}[$.a.name].token", f"Object.keys(${kind})"):
        data = flow({**node("start"), "name": "a"}, node("http", url="https://example.org/{{" + reads + "}}"))
        (problem,) = find_problems(data, "f")
        assert (problem.place[-1], problem.problem) == ("url", f"name what you read: ${kind}.NAME, or ${kind}['NAME']")
    named = node("http", url=f"https://example.org/{{{{${kind}.site?.token ?? ''}}}}{{{{${kind}['my site']}}}}")
    assert find_problems(flow(node("start"), named), "f") == []


@pytest.mark.parametrize(("at", "pattern"), [(0, "../a/{id}"), (0, "a/{id"), (1, "/etc/{id}"), (1, "b/{id}/../{id}")])
def test_a_pattern_that_is_none_is_named_at_its_node(at: int, pattern: str) -> None:
    nodes = [
        {**node("state_trigger", pattern="a/{id}"), "name": "t"},
        node("state_write", pattern="b/{id}", entity_id="{{$.t.entity_id}}", content="x"),
    ]
    nodes[at]["data"]["pattern"] = pattern
    (problem,) = find_problems({**flow(*nodes), "mode": "pipeline"}, "f")
    assert problem.place == ("nodes", at, "data", "pattern")
