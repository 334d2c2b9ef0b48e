"""The text of a workflow is run before it is saved: what each node got and gave, and nothing is stored."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.pipelines import put, tree
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError, ForbiddenError
from tidemill.ops.jobs.jobs import EnqueueJob, enqueue_job
from tidemill.ops.operator.local import Local
from tidemill.ops.workflows.files import RunWorkflowDraft, run_workflow_draft
from tidemill.pipelines.workflows.trials.draft_run import draft_task
from tidemill.pipelines.workflows.trials.dry_run import dry_run
from tidemill.store.database import Database


def graph(*nodes: dict[str, Any], **more: Any) -> str:
    links = [{"sourceNodeId": a["id"], "targetNodeId": b["id"]} for a, b in pairwise(nodes)]
    return json.dumps({"nodes": list(nodes), "connections": links, **more})


def node(name: str, type: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "typeId": type, "name": name, "data": data}


async def run(text: str, database: Database, **given: Any) -> dict[str, Any]:
    async def reach() -> Database:
        return database

    return await draft_task("draft", reach).function(text, **given)


WORDS = graph(
    node("go", "start"),
    node("many", "hardwired", json='["ebb", "flow"]'),
    node("loud", "transform", expression="$.many.toUpperCase()"),
    node("said", "set", fields=[{"name": "text", "value": "{{$.loud.result}}!"}]),
    mode="trigger",
)


async def test_a_draft_tells_what_each_node_got_and_gave(database: Database) -> None:
    draft = await run(WORDS, database, payload={"n": 1})
    said = draft["nodes"][-1]
    assert [each["name"] for each in draft["nodes"]] == ["go", "many", "loud", "said"]
    assert said["inputs"][1]["loud"] == {"result": "FLOW"}
    assert said["fields"] == {"fields": [{"name": "text", "value": "EBB!"}]}
    assert said["outputs"] == [{"text": "EBB!"}, {"text": "FLOW!"}]
    assert draft["error"] is None

    until = await run(WORDS, database, until="many")
    assert [each["name"] for each in until["nodes"]] == ["go", "many"]


async def test_a_draft_uses_pinned_outputs_and_ends_at_the_node_that_fails(database: Database) -> None:
    data = json.loads(WORDS)
    data["nodes"][1]["data"] |= {"pinned": True, "pinnedOutput": ["tide", 7]}
    draft = await run(json.dumps(data), database)
    many, loud = draft["nodes"][1:]
    assert (many["outputs"], many["is_pinned"]) == (["tide", 7], True)
    assert loud["outputs"] == []
    assert "loud" in loud["error"]
    assert draft["error"] == loud["error"]


async def test_a_draft_of_a_pipeline_does_the_work_of_its_stages_and_writes_no_state(
    tmp_path: Path, database: Database
) -> None:
    text = graph(
        node("files", "state_scan", pattern="in/{id}.txt"),
        node("rd", "state_read", pattern="{{$.files.path}}"),
        node("loud", "run_command", command="tr a-z A-Z", stdin="{{$.rd.content}}"),
        node("big", "state_write", pattern="big/{{$.files.id}}.txt", content="{{$.loud.stdout}}"),
        node("rd2", "state_read", pattern="big/{{$.files.id}}.txt"),
        node("two", "state_write", pattern="two/{{$.files.id}}.txt", content="{{$.rd2.content}}{{$.rd2.content}}"),
        stateRoot=str(tmp_path),
    )
    put(tmp_path, {"in/a.txt": "apple"})
    draft = await run(text, database, entity="a")
    assert draft["error"] is None
    assert {each["stage"]: each["content"] for each in draft["stages"]} == {"big": "APPLE", "two": "APPLEAPPLE"}
    assert ("loud", "APPLE") in [(each["name"], each["outputs"][0].get("stdout")) for each in draft["nodes"]]
    assert tree(tmp_path) == {"in/a.txt": "apple"}

    until = await run(text, database, entity="a", until="loud")
    assert [each["stage"] for each in until["stages"]] == ["big"]
    stages = {"stateRoot": str(tmp_path), "stages": [
        {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
        {"id": "bad", "type": "transform", "input": "src", "pattern": "bad/{id}.txt",
         "node": {"typeId": "transform", "data": {"expression": "$.src.content.nothing.at"}}},
        {"id": "end", "type": "transform", "input": "bad", "pattern": "end/{id}.txt",
         "node": {"typeId": "set", "data": {"content": "{{$.bad.content}}"}}}]}  # fmt: skip
    failed = await run(json.dumps(stages), database, entity="a")
    assert failed["error"].startswith("stage bad: ")
    assert [each["content"] for each in failed["stages"]] == [None, None]


async def test_an_editor_runs_drafts_that_an_editor_may_save(tmp_path: Path, database: Database) -> None:
    app = App("drafts", workflow_folder=str(tmp_path))
    draft = RunWorkflowDraft(path="words.json", text=WORDS)
    editor = Local(database, Caller("ed", "editor"), app.declarations)
    made = await editor.do(run_workflow_draft, draft)
    assert made.created
    powerful = graph(node("go", "start"), node("rm", "run_command", command="true"), mode="trigger")
    with pytest.raises(ForbiddenError, match=r"words.json was not run, .*run_command"):
        await editor.do(run_workflow_draft, RunWorkflowDraft(path="words.json", text=powerful))
    with pytest.raises(ForbiddenError):
        await Local(database, Caller("op", "operator"), app.declarations).do(run_workflow_draft, draft)
    enqueue = EnqueueJob(task="workflow-draft/words", args={"text": powerful})
    with pytest.raises(ForbiddenError, match="runs any text"):
        await editor.do(enqueue_job, enqueue)
    with pytest.raises(ConfigError, match="cannot be run"):
        await editor.do(run_workflow_draft, RunWorkflowDraft(path="words.json", text="{}"))


async def test_an_entity_with_a_variable_that_is_called_id_is_run_as_it_is_built(
    database: Database, tmp_path: Path
) -> None:
    put(tmp_path, {"in/2026-01-15/7.txt": "ebb"})
    text = json.dumps(
        {
            "mode": "pipeline",
            "stateRoot": str(tmp_path),
            "stages": [
                {"id": "raw", "type": "source", "pattern": "in/{date}/{id}.txt"},
                {
                    "id": "told",
                    "input": "raw",
                    "pattern": "out/{date}/{id}.txt",
                    "node": {"typeId": "transform", "data": {"expression": "$.entity.id + ' ' + $.raw.content"}},
                },
            ],
        }
    )
    (told,) = (await run(text, database, entity="2026-01-15/7"))["stages"]
    assert told["content"] == "2026-01-15/7 ebb"
    (dry,) = (await dry_run(json.loads(text), "f", "2026-01-15/7", database=database)).stages
    assert (dry.verdict, dry.output) == ("build", "out/2026-01-15/7.txt")
    assert (dry.entity, dry.content) == ("2026-01-15/7", told["content"])
