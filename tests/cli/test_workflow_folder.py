"""A folder of workflow files in use: `tidemill up` runs whatever is saved there, and the server shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import eventually
from tests.support.cli import Process, make_folder, ok
from tests.support.pipelines import put

APP = """
from tidemill import App
from tidemill.pipelines import transform

app = App("harbour", workflow_folder="./workflows/")


@transform("shout")
def shout(entity, text, ending="!"):
    return text.upper() + ending
"""


def shouting(ending: str, name: str = "shouting", output: str = "out/{{$.days.id}}.txt") -> str:
    data = {"input": "{{$.days.path}}", "output": output, "transform": "shout", "ending": ending}
    return json.dumps(
        {
            "name": name,
            "mode": "pipeline",
            "stateRoot": "states",
            "nodes": [
                {"id": "s", "typeId": "state_scan", "name": "days", "data": {"pattern": "in/{day}.txt"}},
                {"id": "t", "typeId": "state_transform", "name": "shout", "data": data},
            ],
            "connections": [{"sourceNodeId": "s", "targetNodeId": "t"}],
        }
    )


HOOK = json.dumps(
    {
        "mode": "trigger",
        "nodes": [
            {"id": "w", "typeId": "webhook", "name": "hook", "data": {}},
            {"id": "a", "typeId": "append_to_file", "name": "keep", "data": {"path": "calls.txt", "content": "called"}},
        ],
        "connections": [{"sourceNodeId": "w", "targetNodeId": "a"}],
    }
)
SCHEDULE = HOOK.replace('"webhook"', '"scheduled"').replace('"data": {}', '"data": {"interval": 1, "unit": "seconds"}')


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Process]:
    folder = make_folder(tmp_path_factory.mktemp("harbour"), APP, module_database_url)
    put(folder, {"states/in/monday.txt": "fair", "workflows/nightly.yaml": "name: nightly\nnodes: []\n"})
    process = Process(folder, "up", "app.py", "--trust-local")
    try:
        yield process
    finally:
        process.close()


def api(process: Process, path: str) -> Any:
    return httpx.get(f"{process.line('serving http').split()[-1]}/api/v1{path}", timeout=150).json()


def text(process: Process, path: str) -> str | None:
    found = process.folder / path
    return found.read_text() if found.exists() else None


def save(process: Process, name: str, content: str) -> None:
    """As the editor saves: the file is there as a whole, or not at all."""
    draft = process.folder / "workflows" / f".{name}.tmp"
    draft.write_text(content)
    draft.rename(process.folder / "workflows" / name)


async def test_a_pipeline_that_is_saved_while_everything_runs_is_built_and_shown_and_so_is_its_change(
    harbour: Process,
) -> None:
    save(harbour, "shouting.json", shouting("!"))
    await eventually(lambda: text(harbour, "states/out/monday.txt") == "FAIR!")

    def shown() -> Any:
        (found,) = api(harbour, "/pipelines")["items"]
        return found if found["counts"] == {"fresh": 1} and found["kept"] else None

    found = await eventually(shown)
    assert (found["name"], found["problems"], found["stages"][0]["queue"]) == ("shouting", [], "pipelines")
    jobs = api(harbour, "/jobs?state=succeeded")["items"]
    assert [job["task"] for job in jobs] == ["shouting/shout"], "built by a worker, as all builds are"

    save(harbour, "shouting.json", shouting("?"))
    await eventually(lambda: text(harbour, "states/out/monday.txt") == "FAIR?")
    put(harbour.folder, {"states/in/tuesday.txt": "wet"})
    await eventually(lambda: text(harbour, "states/out/tuesday.txt") == "WET?")
    (told,) = json.loads(ok(harbour.folder, "pipeline", "status", "app.py", "--json"))
    assert told["name"] == "shouting"


async def test_a_file_that_cannot_be_used_leaves_what_was_there_and_is_told(harbour: Process) -> None:
    save(harbour, "shouting.json", shouting("!"))
    await eventually(lambda: text(harbour, "states/out/monday.txt") == "FAIR!")
    assert api(harbour, "/pipelines")["problems"] == []  # the server has seen what was there, too
    save(harbour, "shouting.json", '{"mode": "pipeline"')
    save(harbour, "rival.json", shouting("#", name="rival"))

    def told() -> list[str] | None:
        found = api(harbour, "/pipelines")["problems"]
        return found if len(found) == 2 else None

    rival, broken = await eventually(told)
    assert "shouting.json, line 1: this is not JSON" in broken
    assert "both write" in rival
    (shown,) = api(harbour, "/pipelines")["items"]
    assert [shown["name"], *shown["problems"]] == ["shouting", broken]
    put(harbour.folder, {"states/in/friday.txt": "calm"})
    await eventually(lambda: text(harbour, "states/out/friday.txt") == "CALM!")

    save(harbour, "shouting.json", shouting("!", output="loud/{{$.days.id}}.txt"))
    await eventually(lambda: text(harbour, "states/loud/friday.txt") == "CALM!")
    await eventually(lambda: text(harbour, "states/out/friday.txt") == "CALM#")
    assert api(harbour, "/pipelines")["problems"] == []

    (harbour.folder / "workflows" / "rival.json").unlink()
    assert [each["name"] for each in api(harbour, "/pipelines")["items"]] == ["shouting"]


async def test_a_workflow_for_events_can_be_called_as_soon_as_it_is_saved_and_fires_by_its_schedule(
    harbour: Process,
) -> None:
    save(harbour, "hook.json", HOOK)
    url = harbour.line("serving http").split()[-1]
    made = httpx.post(f"{url}/api/v1/triggers/hook", json={"a": 1}, timeout=150)
    assert made.status_code == 202, made.text
    await eventually(lambda: (text(harbour, "calls.txt") or "").split() == ["called"])
    save(harbour, "hook.json", SCHEDULE)
    await eventually(lambda: len((text(harbour, "calls.txt") or "").split()) >= 3)
    (harbour.folder / "workflows" / "hook.json").unlink()
    assert api(harbour, "/triggers") == {"items": []}


def test_workflow_check_tells_every_problem_with_its_line_and_one_broken_file_stops_no_other(
    tmp_path: Path,
) -> None:
    def tidemill(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "tidemill.cli.main", *arguments], capture_output=True, text=True)

    good = {
        "mode": "pipeline", "stateRoot": str(tmp_path / "states"),
        "stages": [
            {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
            {"id": "out", "type": "transform", "input": "src", "pattern": "out/{id}.txt",
             "node": {"typeId": "transform", "data": {"expression": "$.src.content"}}},
        ],
    }  # fmt: skip
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "good.json").write_text(json.dumps(good))
    assert tidemill("workflow", "check", str(folder)).returncode == 0
    odd = {"mode": "trigger", "nodes": [{"id": "h", "typeId": "http", "data": {"url": "https://a", "colour": 1}}]}
    (folder / "odd.json").write_text(json.dumps(odd, indent=1))
    said = tidemill("workflow", "check", str(folder))
    assert said.returncode == 1
    assert "odd.json:9: error: nodes[0].data.colour: http does not read the field 'colour'" in said.stdout
    assert "2 files, 1 of them cannot be used" in said.stdout
    allowed = tidemill("workflow", "check", "--allow-unknown", str(folder / "odd.json"))
    assert (allowed.returncode, "odd.json:9: warning: " in allowed.stdout) == (0, True)
    (folder / "broken.json").write_text("{")
    directory = f"--directory={tmp_path / 'data'}"
    told = tidemill("pipeline", "status", str(folder), directory)
    assert told.returncode == 0, told.stderr
    assert "good" in told.stdout
    assert "odd.json, line 9" in told.stderr
    assert "broken.json, line 1: this is not JSON" in told.stderr
