"""Workflow files over HTTP: what an editor offers, checks, dry runs and saves, and what it can never do."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import stat
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.operate import create_token
from tests.support.server import TestServer
from tests.support.web import API, LOGIN_NEEDED, WebServer
from tidemill.dags.definition.kinds import ABOUT, KINDS
from tidemill.pipelines.workflows import node_graph, nodes, questions, read
from tidemill.pipelines.workflows.checks import kinds
from tidemill.store.database import Database, DatabaseSettings

APP = """
from tests.support.web_app import make_app
from tidemill.pipelines import node_type, transform

app = make_app(workflow_folder={folder!r})

@transform("shorten")
def shorten(entity, files):
    raise AssertionError("a dry run calls nobody")

@node_type("shout", fields={{"text": {{"type": "string"}}}})
def shout(data, item):
    raise AssertionError("a dry run calls nobody")
"""

PIPELINE = """{{
  "mode": "pipeline",
  "stateRoot": {root!r},
  "description": "night watch,   since 1.50",
  "nodes": [
    {{"id": "scan", "typeId": "state_scan", "name": "dates", "data": {{"pattern": "daily/{{date}}.txt"}}}},
    {{"id": "read", "typeId": "state_read", "name": "day", "data": {{"pattern": "{{{{$.dates.path}}}}"}}}},
    {{"id": "up", "typeId": "transform", "name": "upper", "data": {{"expression": "$.day.content.toUpperCase()"}}}},
    {{"id": "ask", "typeId": "llm", "name": "ask",
     "data": {{"prompt": "About {{{{$.dates.id}}}}: {{{{$.upper.result}}}}"}}}},
    {{"id": "keep", "typeId": "state_write", "name": "loud",
     "data": {{"pattern": "loud/{{{{$.dates.id}}}}.txt", "content": "{{{{$.dates.date}}}} {{{{$.upper.result}}}}"}}}},
    {{"id": "tell", "typeId": "state_write", "name": "told",
     "data": {{"pattern": "told/{{{{$.dates.id}}}}.txt", "content": "{{{{$.ask.content}}}}"}}}}
  ],
  "connections": [
    {{"sourceNodeId": "scan", "targetNodeId": "read"}}, {{"sourceNodeId": "read", "targetNodeId": "up"}},
    {{"sourceNodeId": "up", "targetNodeId": "keep"}}, {{"sourceNodeId": "up", "targetNodeId": "ask"}},
    {{"sourceNodeId": "ask", "targetNodeId": "tell"}}
  ]
}}
"""
DAG = """# The nightly load.
name: nightly
nodes:
  - name: pack # by hand
    task: send
    args: {order: {$from: run.order}}
  - {name: approve, prompt: "Really?", deps: [pack]}
"""


def pipeline(root: Path | str) -> str:
    return PIPELINE.format(root=str(root)).replace("'", '"')


class Place:
    """A server of an application with a folder of workflow files, and clients of every role."""

    def __init__(self, folder: Path, url: str, tokens: dict[str, str]) -> None:
        self.folder = folder
        self._url = url
        self._tokens = tokens

    def ask(self, method: str, path: str, body: Any = None, role: str = "admin", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["Authorization"] = f"Bearer {self._tokens[role]}"
        return httpx.request(method, self._url + path, json=body, headers=named, timeout=150)

    def check(self, path: str, text: str) -> dict[str, Any]:
        answer = self.ask("POST", "/workflow-files/check", {"path": path, "text": text}, role="viewer")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def dry_run(self, path: str, text: str, role: str = "admin", **about: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/workflow-files/dry-run", {"path": path, "text": text, **about}, role=role)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def audited(self) -> list[dict[str, Any]]:
        return (self.ask("GET", "/audit?action=workflow")).json()["items"]


@pytest.fixture(scope="module")
def place(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("editor")
    (folder / "workflows" / "sub").mkdir(parents=True)
    (folder / "app.py").write_text(APP.format(folder=str(folder / "workflows")))
    (folder / "secret.yaml").write_text("name: secret\nnodes: [{name: a, task: very-secret-task}]\n")
    (folder / "workflows" / "link.yaml").symlink_to(folder / "secret.yaml")
    url = server.create()
    web = WebServer(url, LOGIN_NEEDED, app=folder / "app.py")
    try:
        tokens = asyncio.run(make_tokens(url))
        asyncio.run(web.wait_ready())
        yield Place(folder / "workflows", f"{web.url}{API}", tokens)
    finally:
        web.close()
        server.drop(url)


async def make_tokens(url: str) -> dict[str, str]:
    async with Database(DatabaseSettings(url=url)) as database:
        return {
            role: (await create_token(database, role, role, by="test"))[0]
            for role in ("viewer", "operator", "editor", "admin")
        }


def test_an_editor_is_told_every_kind_of_node_with_its_fields(place: Place) -> None:
    told = place.ask("GET", "/workflow-kinds", role="viewer").json()
    known = {(each["form"], each["type"]): each for each in told["kinds"]}
    assert known["graph", "http"]["schema"]["required"] == ["url"]
    assert known["graph", "if"]["exits"] == ["true", "false"]
    assert known["graph", "state_scan"]["modes"] == ["pipeline"]
    assert known["graph", "shout"]["group"] == "own"
    assert next(iter(known["graph", "shout"]["schema"]["properties"])) == "text"
    assert set(known["dag", "task"]["schema"]["properties"]) == set(KINDS["task"].__struct_fields__)
    assert told["transforms"] == ["shorten"]
    assert "send" in told["tasks"]
    assert set(told["files"]) == {"graph", "stages", "dag"}


def test_the_fields_that_editors_offer_are_those_that_the_code_reads() -> None:
    elsewhere = reads(read._schedule) | reads(read._signature) | reads(node_graph.Wiring) | reads(node_graph.wire)
    elsewhere |= reads(node_graph._min_size) | reads(questions._question)
    everywhere = {"mayFail", *kinds.PINNED}
    for name, known in nodes.NODE_TYPES.items():
        if known.fields is not None:
            continue
        told = set(kinds.FIELDS.get(name, {}))
        assert reads(known.run, of="data") <= told | everywhere, name
        refused = {*kinds.REFUSED_FIELDS.get(name, ()), *kinds.IDLE_FIELDS.get(name, ())}
        assert told <= reads(inspect.getmodule(known.run)) | elsewhere | refused | {"server_id"}, name
    for name in kinds.FIELDS.keys() - nodes.NODE_TYPES.keys() - {"state_clear_failure"}:
        assert set(kinds.FIELDS[name]) <= elsewhere, name
    for name, groups in kinds.NEEDS.items():
        assert {each for group in groups for each in group} <= set(kinds.FIELDS[name]), name
    for kind in KINDS.values():
        assert set(kind.__struct_fields__) <= set(ABOUT)


def reads(code: Any, of: str | None = None) -> set[str]:
    """The texts that are looked up in something: data["x"], data.get("x"), self._pattern(node, "x")."""
    found: set[str] = set()
    for each in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
        given: list[ast.expr] = []
        if isinstance(each, ast.Subscript):
            given = [each.slice] if of in (None, getattr(each.value, "id", "")) else []
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            is_look_up = each.func.attr in ("get", "_pattern") and of in (None, getattr(each.func.value, "id", ""))
            given = (each.args if each.func.attr == "_pattern" else each.args[:1]) if is_look_up else []
        elif isinstance(each, ast.Call) and getattr(each.func, "id", "") in ("number_of", "choice_of", "_limit"):
            given = each.args if of in (None, getattr(each.args[0], "id", "")) else []
        elif isinstance(each, ast.Compare) and of is None:
            given = [each.left]
        found |= {part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return found


def test_everything_that_is_wrong_is_told_with_its_place_and_line(place: Place, tmp_path: Path) -> None:
    right = place.check("blog.json", pipeline(tmp_path))
    assert (right["form"], right["mode"], right["nodes"]) == ("graph", "pipeline", 6)
    assert right["problems"] == []
    odd = pipeline(tmp_path).replace('"description"', '"owner"')
    (unknown,) = place.check("blog.json", odd)["problems"]
    assert (unknown["where"], unknown["severity"], unknown["is_unknown"]) == ("owner", "error", True)
    broken = (
        pipeline(tmp_path)
        .replace("toUpperCase()", "toUpperCase(")
        .replace('"typeId": "llm"', '"typeId": "lm"')
        .replace("{{$.dates.date}}", "{{$.datse.date}}")
        .replace('"sourceNodeId": "ask"', '"sourceNodeId": "asks"')
    )
    found = (place.check("blog.json", broken))["problems"]
    told = {each["where"]: (each["line"], each["node"], each["message"]) for each in found}
    assert told["nodes[2].data.expression"][:2] == (8, 2)
    assert "'llm'" in told["nodes[3].typeId"][2]
    assert "'dates'" in told["nodes[4].data.content"][2]
    assert told["connections[4].sourceNodeId"][0] == 19
    cut = place.check("blog.json", pipeline(tmp_path)[:-4])
    assert cut["form"] is None
    assert "not JSON" in cut["problems"][0]["message"]


def test_dags_and_triggers_and_stages_are_checked_as_they_are_loaded(place: Place) -> None:
    dag = place.check("nightly.yaml", DAG.replace("deps: [pack]", "deps: [pak]").replace("send", "sent"))
    assert [(each["where"], each["line"], each["severity"]) for each in dag["problems"]] == [
        ("nodes[1].deps[0]", 7, "error"),
        ("nodes[0].task", 5, "warning"),
    ]
    trigger = {"mode": "trigger", "nodes": [{"id": "every", "typeId": "scheduled", "data": {"interval": "5 parsecs"}}]}
    (problem,) = (place.check("t.json", json.dumps(trigger)))["problems"]
    assert problem["severity"] == "error"
    assert "parsecs" in problem["message"]
    stages = {"stages": [{"id": "a", "type": "source", "pattern": "in/{id}.txt"}, {"id": "b", "type": "transform",
              "input": "c", "pattern": "b/{id}.txt", "node": {"typeId": "transform", "data": {}}}]}  # fmt: skip
    told = (place.check("s.json", json.dumps(stages)))["problems"]
    assert {each["where"] for each in told} == {"stages[1].input", "stages[1].node.data"}
    for odd in ({"nodes": 5}, {"nodes": [5], "connections": [7]}, {"nodes": [{"id": [], "typeId": {}}], "mode": 1},
                {"stages": [{"id": 1, "node": 4, "validation": 3}]}, {"nodes": [{"id": "a", "typeId": "if",
                "data": {"condition": "(" * 3000}}], "connections": []}, {"stages": {}}, [], 5):  # fmt: skip
        assert (place.check("odd.json", json.dumps(odd)))["problems"], odd


def test_no_path_leads_out_of_the_folder(place: Place) -> None:
    before = sorted(place.folder.parent.rglob("*"))
    for path in ("../secret.yaml", "%2e%2e/secret.yaml", "sub/../../secret.yaml", "link.yaml", ".hidden.yaml", "app.py",
                 "sub", "..%2fsecret.yaml", "%2fetc/passwd.json", "a%00.json", "x" * 400 + ".json"):  # fmt: skip
        answer = place.ask("GET", f"/workflow-files/{path}")
        assert answer.status_code == 404, (path, answer.text)
        assert "very-secret" not in answer.text
        saved = place.ask("PUT", f"/workflow-files/{path}", {"text": DAG}, If_None_Match="*")
        assert saved.status_code in (404, 405, 422), (path, saved.text)
    for inner in ("../secret.yaml", "link.yaml"):
        text = f"name: outer\nnodes: [{{name: a, dag: {inner}}}]\n"
        (problem,) = (place.check("outer.yaml", text))["problems"]
        assert "is outside the folder" in problem["message"]
        tried = place.ask("POST", "/workflow-files/dry-run", {"path": "outer.yaml", "text": text})
        assert tried.status_code == 422
        assert "very-secret" not in tried.text
    assert "link.yaml" not in [each["path"] for each in (place.ask("GET", "/workflow-files")).json()["items"]]
    assert sorted(place.folder.parent.rglob("*")) == before


def test_a_file_is_saved_over_what_was_read_and_nothing_else(place: Place) -> None:
    (place.folder / "save.yaml").write_text(DAG)
    (place.folder / "save.yaml").chmod(0o640)
    read = place.ask("GET", "/workflow-files/save.yaml", role="viewer")
    version, changed = read.headers["etag"], DAG.replace("Really?", "Really, really?")
    assert read.json()["text"] == DAG
    assert read.json()["version"] == version.strip('"')

    assert (place.ask("PUT", "/workflow-files/save.yaml", {"text": changed})).status_code == 428
    for role in ("viewer", "operator"):
        refused = place.ask("PUT", "/workflow-files/save.yaml", {"text": changed}, role=role, If_Match=version)
        assert refused.status_code == 403
    saved = place.ask("PUT", "/workflow-files/save.yaml", {"text": changed}, If_Match=version)
    assert saved.status_code == 200, saved.text
    assert (place.folder / "save.yaml").read_text() == changed
    assert stat.S_IMODE((place.folder / "save.yaml").stat().st_mode) == 0o640

    late = place.ask("PUT", "/workflow-files/save.yaml", {"text": DAG + "# late\n"}, If_Match=version)
    assert late.status_code == 412
    assert "has been changed" in late.json()["detail"]
    assert late.headers["etag"] == saved.headers["etag"]
    assert (place.folder / "save.yaml").read_text() == changed
    taken = place.ask("PUT", "/workflow-files/save.yaml", {"text": DAG}, If_None_Match="*")
    assert taken.status_code == 412
    fresh = place.ask("PUT", "/workflow-files/sub/new.yaml", {"text": DAG}, If_None_Match="*")
    assert fresh.status_code == 200
    assert (place.folder / "sub" / "new.yaml").read_text() == DAG
    assert [each.name for each in place.folder.iterdir() if each.name.startswith(".")] == []

    first, second, *_ = place.audited()
    assert (first["target"], first["before"]) == ("sub/new.yaml", None)
    assert (second["who"].split()[0], second["action"], second["target"]) == ("admin", "workflow.save", "save.yaml")
    assert (second["before"]["text"], second["after"]["text"]) == (DAG, changed)


def test_a_file_is_saved_and_renamed_into_a_folder_that_is_made_for_it(place: Place) -> None:
    saved = place.ask("PUT", "/workflow-files/shop/nightly/load.yaml", {"text": DAG}, If_None_Match="*")
    assert saved.status_code == 200, saved.text
    assert (place.folder / "shop" / "nightly" / "load.yaml").read_text() == DAG
    moved = place.ask(
        "POST", "/workflow-files/rename", {"path": "shop/nightly/load.yaml", "to": "old/load.yaml"},
        If_Match=saved.headers["etag"],
    )  # fmt: skip
    assert moved.status_code == 200, moved.text
    assert (place.folder / "old" / "load.yaml").read_text() == DAG
    for path in ("old/load.yaml/x.yaml", "a/b/c/d/e/f.yaml"):
        refused = place.ask("PUT", f"/workflow-files/{path}", {"text": DAG}, If_None_Match="*")
        assert refused.status_code in (404, 422), refused.text
    assert not (place.folder / "a").exists()


def test_of_many_who_save_over_the_same_version_one_succeeds(place: Place) -> None:
    (place.folder / "race.yaml").write_text(DAG)
    version, before = place.ask("GET", "/workflow-files/race.yaml").headers["etag"], len(place.audited())
    texts = [DAG.replace("Really?", f"Really {number}?") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(
                lambda text: place.ask("PUT", "/workflow-files/race.yaml", {"text": text}, If_Match=version), texts
            )
        )
    assert sorted(each.status_code for each in answers) == [200, 412, 412, 412, 412, 412]
    (winner,) = [text for text, each in zip(texts, answers, strict=True) if each.status_code == 200]
    assert (place.folder / "race.yaml").read_text() == winner
    blocked = place.ask("PUT", "/workflow-files/race.yaml/new.yaml", {"text": DAG}, If_None_Match="*")
    assert blocked.status_code == 422
    assert "Not a directory" in blocked.json()["detail"]
    assert len(place.audited()) == before + 1  # What was refused is not in the trail.


def test_a_file_is_renamed_and_deleted_as_it_was_read_and_the_trail_has_its_text(place: Place) -> None:
    (place.folder / "old.yaml").write_text(DAG)
    (place.folder / "old.yaml").chmod(0o640)
    (place.folder / "taken.yaml").write_text("# somebody's\n")
    version = place.ask("GET", "/workflow-files/old.yaml").headers["etag"]
    before = len(place.audited())

    def rename(to: str, over: str = version, **more: Any) -> httpx.Response:
        return place.ask("POST", "/workflow-files/rename", {"path": "old.yaml", "to": to}, If_Match=over, **more)

    refusals = {
        428: rename("new.yaml", ""),
        403: rename("new.yaml", role="operator"),
        412: rename("new.yaml", '"other"'),
        422: rename("new.json"),
        404: rename(".hidden/new.yaml"),
    }
    assert {status: each.status_code for status, each in refusals.items()} == {status: status for status in refusals}
    assert rename("taken.yaml").status_code == 412
    assert rename("../new.yaml").status_code == 404
    assert rename("nowhere/new.yaml", '"other"').status_code == 412
    assert not (place.folder / "nowhere").exists()
    assert (place.folder / "taken.yaml").read_text() == "# somebody's\n"
    assert (place.folder / "old.yaml").read_text() == DAG

    first = rename("sub/other.yaml", Idempotency_Key="once")
    assert first.status_code == 200, first.text
    assert (first.json()["path"], first.headers["etag"]) == ("sub/other.yaml", version)
    again = rename("sub/other.yaml", Idempotency_Key="once")
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert not (place.folder / "old.yaml").exists()
    assert (place.folder / "sub" / "other.yaml").read_text() == DAG
    assert stat.S_IMODE((place.folder / "sub" / "other.yaml").stat().st_mode) == 0o640

    path = "/workflow-files/sub/other.yaml"
    assert place.ask("DELETE", path).status_code == 428
    assert place.ask("DELETE", path, role="operator", If_Match=version).status_code == 403
    assert place.ask("DELETE", path, If_Match='"other"').status_code == 412
    assert (place.folder / "sub" / "other.yaml").exists()
    assert place.ask("DELETE", path, If_Match=version).status_code == 204
    assert place.ask("DELETE", path, If_Match=version).status_code == 404
    assert not (place.folder / "sub" / "other.yaml").exists()

    deleted, renamed, *_ = place.audited()
    assert len(place.audited()) == before + 2  # What was refused is not in the trail.
    assert (renamed["action"], renamed["target"]) == ("workflow.rename", "old.yaml")
    assert renamed["after"] == {"path": "sub/other.yaml"}
    assert (deleted["action"], deleted["target"], deleted["after"]) == ("workflow.delete", "sub/other.yaml", None)
    assert deleted["before"]["text"] == DAG


def test_a_file_that_cannot_work_is_saved_only_if_the_caller_says_so(place: Place) -> None:
    broken = DAG.replace("deps: [pack]", "deps: [pak]")
    before = len(place.audited())
    refused = place.ask("PUT", "/workflow-files/broken.yaml", {"text": broken}, If_None_Match="*")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "nodes[1].deps[0]"
    assert not (place.folder / "broken.yaml").exists()
    assert len(place.audited()) == before
    big = place.ask("PUT", "/workflow-files/big.yaml", {"text": "#" * 600_000}, If_None_Match="*")
    assert big.status_code in (413, 422)
    said = place.ask("PUT", "/workflow-files/broken.yaml", {"text": broken, "broken": True}, If_None_Match="*")
    assert said.status_code == 200
    assert (place.folder / "broken.yaml").read_text() == broken
    listed = {each["path"]: each for each in (place.ask("GET", "/workflow-files", role="viewer")).json()["items"]}
    assert (listed["broken.yaml"]["errors"], listed["broken.yaml"]["form"]) == (1, "dag")


def test_a_file_with_a_name_that_cannot_be_opened_is_listed_with_the_others(place: Place) -> None:
    names = {b"caf\xe9.json": "caf\\udce9.json", b"two\nlines.json": "two\nlines.json"}
    files = [Path(os.fsdecode(os.fsencode(place.folder) + b"/" + name)) for name in names]
    for file in (*files, place.folder / "openable.json"):
        file.write_text("{}")
    listed = {each["path"]: each["trouble"] for each in place.ask("GET", "/workflow-files").json()["items"]}
    for shown in names.values():
        assert "is not the name of a file in the folder" in listed[shown]
    assert listed["openable.json"] is None
    for file in files:
        file.unlink()


def test_a_dry_run_tells_what_would_be_built_and_builds_nothing(place: Place, tmp_path: Path) -> None:
    (tmp_path / "daily").mkdir()
    for day, text in (("2026-01-15", "rain"), ("2026-01-16", "sun")):
        (tmp_path / "daily" / f"{day}.txt").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    listed = place.dry_run("try.json", pipeline(tmp_path))
    assert listed["entities"] == ["2026-01-15", "2026-01-16"]
    tried = place.dry_run("try.json", pipeline(tmp_path), entity="2026-01-16")
    loud, told = tried["stages"]
    assert (loud["verdict"], loud["why"], loud["output"]) == ("build", "it is missing", "loud/2026-01-16.txt")
    assert loud["content"] == "2026-01-16 SUN"
    assert loud["inputs"][0]["paths"] == ["daily/2026-01-16.txt"]
    (asked,) = [node for node in told["nodes"] if node["type"] == "llm"]
    assert asked["fields"] == [{"name": "prompt", "value": "About 2026-01-16: SUN"}]
    assert asked["note"] == "not run in a dry run"
    assert told["content"] is None
    assert "ask" in told["nodes"][-1]["fields"][0]["waits"]
    none = place.dry_run("try.json", pipeline(tmp_path), entity="1999-01-01")
    assert [each["verdict"] for each in none["stages"]] == ["none", "none"]
    assert place.dry_run("try.json", pipeline(tmp_path / "nowhere"))["entities"] == []
    odd = place.ask(
        "POST", "/workflow-files/dry-run", {"path": "try.json", "text": pipeline(tmp_path), "entity": "../x"}
    )
    assert odd.status_code in (200, 422)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_reads_no_folder_that_only_an_operators_text_names(place: Place, tmp_path: Path) -> None:
    (tmp_path / "daily").mkdir()
    (tmp_path / "daily" / "a.txt").write_text("a secret of this machine")
    body = {"path": "spy.json", "text": pipeline(tmp_path), "entity": "a"}
    assert (place.ask("POST", "/workflow-files/dry-run", body, role="viewer")).status_code == 403
    tried = place.dry_run(**body, role="operator")
    assert tried["looked"] is False
    assert "SECRET" not in json.dumps(tried)
    assert "was not read" in tried["notes"][0]
    (place.folder / "spy.json").write_text(pipeline(tmp_path))
    assert "A SECRET" in json.dumps(place.dry_run(**body, role="operator"))
    (place.folder / "spy.json").unlink()


def test_triggers_stages_and_dags_are_gone_through_without_effects(place: Place, tmp_path: Path) -> None:
    trigger = {
        "mode": "trigger",
        "nodes": [
            {"id": "in", "typeId": "webhook", "data": {}},
            {"id": "big", "typeId": "if", "data": {"condition": "$.in.size > 3"}},
            {"id": "file", "typeId": "append_to_file",
             "data": {"path": str(tmp_path / "log"), "content": "{{$.in.name.toUpperCase()}}"}},
            {"id": "small", "typeId": "shout", "data": {"text": "{{$.in.name}}"}},
        ],
        "connections": [
            {"sourceNodeId": "in", "targetNodeId": "big"},
            {"sourceNodeId": "big", "sourceConnectorId": "true", "targetNodeId": "file"},
            {"sourceNodeId": "big", "sourceConnectorId": "false", "targetNodeId": "small"},
        ],
    }  # fmt: skip
    told = place.dry_run("t.json", json.dumps(trigger), payload={"size": 4, "name": "ann"})
    found = {node["name"]: node for node in told["nodes"]}
    assert found["big"]["output"] is True
    assert found["file"]["fields"][1]["value"] == "ANN"
    assert (found["small"]["items"], found["small"]["note"]) == (0, "nothing reaches it")
    assert not (tmp_path / "log").exists()

    stages = {"stateRoot": str(tmp_path), "stages": [
        {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
        {"id": "big", "type": "transform", "input": "src", "pattern": "big/{id}.txt",
         "node": {"typeId": "transform", "data": {"expression": "$.src.content.toUpperCase()"}}},
        {"id": "sum", "type": "transform", "input": "big", "pattern": "sum/{id}.txt",
         "node": {"typeId": "set", "data": {"content": "{{$.entity.id}}: {{$.big.content}}"}}}]}  # fmt: skip
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("apple")
    big, total = (place.dry_run("s.json", json.dumps(stages), entity="a"))["stages"]
    assert (big["verdict"], big["content"]) == ("build", "APPLE")
    assert (total["verdict"], total["content"]) == ("wait", "a: APPLE")
    assert not (tmp_path / "big").exists()

    pack, approve = (place.dry_run("nightly.yaml", DAG, payload={"order": 7}))["plan"]
    assert (pack["fields"], pack["level"]) == ([{"name": "order", "value": 7}], 0)
    assert (approve["after"], approve["kind"]) == (["pack"], "input")
    wrong = place.ask("POST", "/workflow-files/dry-run", {"path": "nightly.yaml", "text": "nodes: []"})
    assert wrong.status_code == 422
    assert "cannot be tried" in wrong.json()["detail"]
