"""A folder of workflow files: what is in force of it, whatever becomes of its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from tests.support.pipelines import put
from tidemill.core.errors import ConfigError
from tidemill.pipelines import Pipeline
from tidemill.pipelines.definition.pipeline import share_place
from tidemill.pipelines.workflows.folder import WorkflowFolder, read_folder
from tidemill.pipelines.workflows.load import Loaded, load_workflow


def flow(name: str, output: str | None = None) -> str:
    stages = [
        {"id": "source", "type": "source", "pattern": "in/{id}.txt"},
        {"id": "made", "type": "transform", "input": "source", "pattern": f"{output or name}/{{id}}.txt",
         "node": {"typeId": "transform", "data": {"expression": "$.source.content"}}},
    ]  # fmt: skip
    return json.dumps({"name": name, "mode": "pipeline", "stateRoot": "states", "stages": stages})


DAG = json.dumps({"name": "nightly", "nodes": [{"name": "a", "task": "etl.extract"}]})
HOOK = json.dumps({"mode": "trigger", "nodes": [{"id": "a", "typeId": "set", "data": {"x": 1}}]})


def test_only_what_has_changed_is_read_again(tmp_path: Path) -> None:
    put(tmp_path, {"a.json": flow("a"), "team/b.json": flow("b"), "hook.json": HOOK, "dag.json": DAG, ".c.json": "{"})
    folder = WorkflowFolder(tmp_path)
    assert folder.refresh()
    assert (set(folder.pipelines), set(folder.triggers), folder.errors) == ({"a", "b"}, {"hook"}, {})
    assert not folder.refresh()
    before = dict(folder.pipelines)
    put(tmp_path, {"a.json": flow("a", "elsewhere")})
    assert folder.refresh()
    assert folder.pipelines["b"] is before["b"]
    assert folder.pipelines["a"].stages["made"].output.text == "elsewhere/{id}.txt"
    (tmp_path / "team/b.json").unlink()
    folder.refresh()
    assert set(folder.pipelines) == {"a"}


def test_what_does_not_go_together_waits_until_it_does(tmp_path: Path) -> None:
    put(tmp_path, {"a.json": flow("a")})
    folder = WorkflowFolder(tmp_path)
    folder.refresh()
    first = folder.pipelines["a"]
    put(tmp_path, {"b.json": flow("b", "a"), "c.json": flow("a", "c"), "d.json": "[1"})
    folder.refresh()
    assert folder.pipelines == {"a": first}
    assert ["both write" in folder.errors["b.json"], "two files declare" in folder.errors["c.json"]] == [True, True]
    assert "not JSON" in folder.errors["d.json"]
    put(tmp_path, {"a.json": "{"})
    folder.refresh()
    assert folder.pipelines == {"a": first}
    assert folder.errors_of("a") == [folder.errors["a.json"]]
    # Two that change places, and a third that had no place, all at once.
    put(tmp_path, {"a.json": flow("a", "x"), "b.json": flow("b", "a"), "c.json": flow("c"), "d.json": flow("d", "b")})
    folder.refresh()
    assert (set(folder.pipelines), folder.errors) == ({"a", "b", "c", "d"}, {})


def test_what_the_program_declares_counts_and_a_folder_that_is_away_has_lost_nothing(tmp_path: Path) -> None:
    own = Pipeline("own", root="states")
    put(tmp_path, {"w/own.json": flow("own"), "w/a.json": flow("a")})
    folder = WorkflowFolder(tmp_path / "w", lambda: Loaded([own], []))
    folder.refresh()
    assert set(folder.pipelines) == {"a"}
    assert "the program itself declares a pipeline 'own'" in folder.errors["own.json"]
    (tmp_path / "w").rename(tmp_path / "away")
    assert not folder.refresh()
    assert set(folder.pipelines) == {"a"}
    with pytest.raises(ConfigError, match="there is no workflow file or folder"):
        read_folder(tmp_path / "w")


def test_what_is_no_file_is_not_read_and_keeps_nothing_waiting(tmp_path: Path) -> None:
    put(tmp_path, {"a.json": flow("a")})
    os.mkfifo(tmp_path / "pipe.json")  # Whoever opens it waits for a writer.
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to("a.json")
    assert set(read_folder(tmp_path).pipelines) == {"a"}
    (tmp_path / "link.json").unlink()
    assert [each.name for each in load_workflow(tmp_path).pipelines] == ["a"]


def test_a_file_name_and_a_text_that_are_no_utf8_are_told_and_can_be_sent(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.json", "w") as file:
        file.write(HOOK)
    put(
        tmp_path,
        {"half.json": HOOK.replace('"x": 1', '\n"x": "\\ud83d"'), "whole.json": HOOK.replace("1", '"\\ud83d\\ude80"')},
    )
    folder = WorkflowFolder(tmp_path)
    folder.refresh()
    assert set(folder.triggers) == {"whole"}
    assert set(folder.errors) == {"caf\\udce9.json", "half.json"}
    assert "half.json, line 2: this text has half of a surrogate pair" in folder.errors["half.json"]
    msgspec.json.encode(folder.errors)


def test_a_root_is_the_same_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, *others = (
        Pipeline(f"p{at}", root=root) for at, root in enumerate(("a", "a/", "./a", tmp_path / "a", "b", tmp_path / "b"))
    )
    assert [share_place(one, each) for each in others] == [True, True, True, False, False]
