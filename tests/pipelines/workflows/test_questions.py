"""Nodes that ask a person: the workflow stops, and goes on with the answer in another job."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tidemill import App
from tidemill.cli.pipelines.terminal_answers import answer_at_terminal
from tidemill.core.errors import ConfigError, ConflictError, ForbiddenError
from tidemill.ops.operator.local import Caller, Local
from tidemill.ops.runs.dags import RerunDag, rerun_dag
from tidemill.ops.runs.inputs import ListInputs, OpenInput, SubmitInput, list_inputs, submit_input
from tidemill.pipelines.workflows import parse_workflow
from tidemill.pipelines.workflows.checks.check import find_problems
from tidemill.store.database import Database


def node(name: str, type: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "typeId": type, "name": name, "data": data}


def publishing(folder: Path) -> dict[str, Any]:
    """Asks about each of two posts, and then why the one that is published is."""
    chain = [
        node("go", "start"),
        node("post", "hardwired", json='[{"n": 1}, {"n": 2}]'),
        node("ask", "dialog", message="Publish {{$.post.n}} of {{$.go.of}}?", title="Post", buttons="Yes, No"),
        node("yes", "if", condition="$.ask.button === 'Yes'"),
        node("why", "prompt", message="Why {{$.post.n}}?", defaultInput="it is good"),
        node("out", "append_to_file", filepath=str(folder / "out"), content="{{$.post.n}}: {{$.why.input}}"),
    ]
    links = [{"sourceNodeId": a["id"], "targetNodeId": b["id"]} for a, b in pairwise(chain)]
    beside = node("before", "append_to_file", filepath=str(folder / "before"), content="{{$.go.of}}")
    return {
        "name": "publishing", "mode": "trigger", "nodes": [*chain, beside],
        "connections": [*links, {"sourceNodeId": "go", "targetNodeId": "before"}],
    }  # fmt: skip


async def questions(at: Local, count: int) -> list[OpenInput]:
    async def are_asked() -> bool:
        return len((await at.do(list_inputs, ListInputs())).items) == count

    await eventually(are_asked)
    return (await at.do(list_inputs, ListInputs())).items


async def test_a_workflow_stops_at_a_question_and_goes_on_with_the_answers(
    app: App, tmp_path: Path, database: Database
) -> None:
    task = app.trigger(parse_workflow(publishing(tmp_path), "publishing").triggers[0])
    at = Local(database, Caller("ann", "operator"), app.declarations)
    async with app.running():
        handle = await app.enqueue(task.call({"of": "{{$.run}}"}))
        first = await handle.result()
        assert [each["n"] for each in first["post"]] == [1, 2]
        asked = await questions(at, 2)
        assert first["ask"] == [{"asked": f"r{asked[0].run_id}"}] * 2
        assert "out" not in first
        assert [each.prompt for each in asked] == [f"Post: Publish {n} of {{{{$.run}}}}?" for n in (1, 2)]
        assert asked[0].schema["properties"]["button"] == {"enum": ["Yes", "No"]}
        with pytest.raises(ConflictError):
            await at.do(submit_input, SubmitInput(id=asked[0].run_id, node=asked[0].node, value={"button": "Maybe"}))
        for each, button in zip(asked, ("No", "Yes"), strict=True):
            await at.do(submit_input, SubmitInput(id=each.run_id, node=each.node, value={"button": button}))
        (why,) = await questions(at, 1)
        assert why.prompt == "Why 2?"
        await at.do(submit_input, SubmitInput(id=why.run_id, node=why.node, value={}))
        await eventually(lambda: (tmp_path / "out").exists())
    assert (tmp_path / "out").read_text() == "2: it is good\n"
    assert (tmp_path / "before").read_text() == "{{$.run}}\n"


async def test_a_terminal_answers_at_once_and_where_nothing_can_ask_the_node_fails_unless_it_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = publishing(tmp_path)
    (workflow,) = parse_workflow(data, "publishing").triggers
    typed = iter(["perhaps", "no", "YES", "just so"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    found = await workflow.run({"of": "2"}, answer=answer_at_terminal)
    assert found["out"] == [{"written": True, "filepath": str(tmp_path / "out")}]
    assert (tmp_path / "out").read_text() == "2: just so\n"
    with pytest.raises(ConfigError, match="node 'ask': nothing here can ask a person: pin its output"):
        await workflow.run({"of": "2"})
    for each in data["nodes"]:
        if each["id"] in ("ask", "why"):
            each["data"] |= {"pinned": True, "pinnedOutput": {"button": "Yes", "input": "pinned"}}
    (pinned,) = parse_workflow(data, "publishing").triggers
    assert (await pinned.run({"of": "2"}))["why"] == [{"button": "Yes", "input": "pinned"}] * 2


async def test_a_question_is_repeated_with_other_arguments_only_by_those_who_may_run_the_workflow(
    app: App, tmp_path: Path, database: Database
) -> None:
    data = publishing(tmp_path)
    data["nodes"].append(node("rm", "run_command", command="true"))
    task = app.trigger(parse_workflow(data, "publishing").triggers[0])
    admin = Local(database, Caller("ann", "admin"), app.declarations)
    async with app.running():
        await (await app.enqueue(task.call({"of": "2"}))).result()
        (asked, _) = await questions(admin, 2)
        again = RerunDag(id=asked.run_id, start="continue", edited={"payload": {"of": "3"}})
        with pytest.raises(ForbiddenError, match="needs the role admin"):
            await Local(database, Caller("op", "operator"), app.declarations).do(rerun_dag, again)


def test_a_pipeline_asks_no_person_and_says_what_to_use() -> None:
    data = {
        "stages": [
            {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
            {"id": "ask", "type": "transform", "input": "src", "pattern": "out/{id}.txt",
             "node": {"typeId": "dialog", "data": {"message": "Go on?"}}},
        ]
    }  # fmt: skip
    (told,) = map(str, find_problems(data, "f"))
    assert told.startswith("stages[1].node.typeId: a pipeline asks no person: let a state_gate")
    graph = {
        "nodes": [node("files", "state_scan", pattern="in/{id}.txt"), node("ask", "prompt", message="Why?"),
                  node("out", "state_write", pattern="out/{{$.files.id}}.txt", content="{{$.ask.input}}")],
        "connections": [{"sourceNodeId": "files", "targetNodeId": "ask"},
                        {"sourceNodeId": "ask", "targetNodeId": "out"}],
    }  # fmt: skip
    assert [each.place for each in find_problems(graph, "f")] == [("nodes", 1, "typeId")]
