"""Durable runs from the command line, as an operator has them: real processes on a real database."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import PATIENCE, Process, asked_until, environment, listing, make_folder, run as tidemill

APP = """
import asyncio
import sys

from tidemill import App
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step

app = App("press")


class Approved(Event):
    ok: bool


@app.workflow
class Article(Workflow):
    @step
    async def review(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = await ctx.wait_for_event(Approved, waiter_event=InputRequiredEvent(text=ev.topic))
        return StopEvent(result=[ev.topic, answer.ok])


async def start() -> None:
    handle = await app.start(Article, topic=sys.argv[1])
    async for _ in handle.stream_events():
        break
    print(handle.id)
    await app.close()


if __name__ == "__main__":
    asyncio.run(start())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Path]:
    """A project in which everything runs, and a first run waits for its answer."""
    folder = make_folder(tmp_path_factory.mktemp("press"), "", module_database_url)
    (folder / "press.py").write_text(APP)
    up = Process(folder, "up", "press.py", "--trust-local")
    try:
        up.line("scheduler started")
        (folder / "url").write_text(up.line("serving http").split()[-1])
        started(folder, "wind")
        yield folder
        up.signal(signal.SIGTERM)
        assert up.wait() == 0
    finally:
        up.close()


def started(folder: Path, topic: str) -> str:
    """A run that waits for its answer, started by a program of its own."""
    command = [sys.executable, "press.py", topic]
    ran = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return f"r{ran.stdout.split()[-1]}"


def ended(folder: Path, run: str) -> dict:
    """A run once it has ended."""
    return asked_until(lambda: listing(folder, "run", run), lambda shown: shown["state"] != "running")


def test_a_waiting_run_is_listed_explained_answered_and_forked(folder: Path) -> None:
    run = started(folder, "tides")
    listed = json.loads(tidemill(folder, "runs", "--state", "running", "--json").stdout)
    assert int(run[1:]) in [row["id"] for row in listed]
    page = tidemill(folder, "run", run).stdout
    assert "started with StartEvent" in page
    assert "review waiting for Approved\n" in page

    refused = tidemill(folder, "send", run, "Aproved", '{"ok": true}')
    assert refused.returncode != 0
    assert "Aproved is not an event class of this application" in refused.stderr
    assert tidemill(folder, "send", run, "Approved", '{"ok": true}').returncode == 0
    shown = ended(folder, run)
    assert (shown["state"], shown["result"]) == ("succeeded", ["tides", True])
    assert [tick["kind"] for tick in shown["ticks"]][:2] == ["started", "noted"]
    page = tidemill(folder, "run", run).stdout
    assert ("received Approved\n" in page, "review returned StopEvent\n" in page) == (True, True), page

    state = json.loads(tidemill(folder, "run", run, "--at", "2", "--app", "press.py").stdout)
    assert (state["status"], state["works"][0]["step"]) == ("running", "review")

    told = tidemill(folder, "fork", run, "--at", "2", "--app", "press.py")
    assert told.returncode == 0, told.stderr
    fork = told.stdout.split()[1]
    assert tidemill(folder, "send", fork, "Approved", '{"ok": false}', "--app", "press.py").returncode == 0
    assert ended(folder, fork)["result"] == ["tides", False]


def test_what_a_flow_asks_is_listed_and_answered_with_its_code_or_through_a_server(
    folder: Path, tmp_path: Path
) -> None:
    for where, more in ((folder, ("--app", "press.py")), (tmp_path, ("--server", (folder / "url").read_text()))):
        run = started(folder, "rain")
        looked = more if where is tmp_path else ()
        (asked,) = json.loads(tidemill(where, "inputs", "--run", run, "--json", *looked).stdout)
        assert (asked["prompt"], asked["shape"], asked["workflow"]) == ("rain", "flow", "Article")
        assert asked["schema"]["required"] == ["ok"]
        listed = tidemill(where, "dag", "inputs", *looked).stdout
        assert f"{run} " in listed, "it is one list, whatever it is called by"
        if where is folder:
            assert "add --app app.py" in tidemill(where, "submit", run, asked["node"], '{"ok": true}').stderr
        wrong = tidemill(where, "submit", run, asked["node"], '{"ok": "perhaps"}', *more)
        assert (wrong.returncode, "ok" in wrong.stderr) == (1, True)
        for _ in range(2):
            done = tidemill(where, "submit", run, asked["node"], '{"ok": true}', "--key", "first", *more)
            assert done.stdout == f"run {run} has its answer to {asked['node']}\n", done.stderr
        assert ended(folder, run)["result"] == ["rain", True]
        late = tidemill(where, "submit", run, asked["node"], '{"ok": false}', *more)
        assert "was answered already" in late.stderr
        assert json.loads(tidemill(where, "inputs", "--run", run, "--json", *looked).stdout) == []
    assert "there is no run 999" in tidemill(tmp_path, "inputs", "--run", "r999", *more).stderr


def test_a_run_can_be_cancelled(folder: Path) -> None:
    run = started(folder, "storms")
    assert tidemill(folder, "cancel", run).stdout == f"run {run} was asked to end\n"
    assert ended(folder, run)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "name a run"),
        (["run", "twelve"], "'twelve' is not a run"),
        (["run", "r999"], "there is no run 999"),
        (["run", "r1", "--at", "1"], "add --app app.py"),
        (["runs", "--state", "sleepy"], "there is no run state 'sleepy'"),
        (["send", "r999", "Approved", "{}"], "there is no run 999"),
        (["send", "r1", "Approved", "{ok}"], "are not JSON"),
        (["send", "r1", "Approved", "[]"], "must be a JSON object"),
        (["send", "r1", "Approvd", "{}", "--app", "press.py"], "Approvd is not an event class"),
        (["send", "r1", "Approved", '{"ok": "maybe"}', "--app", "press.py"], "cannot be created from these fields"),
        (["fork", "r999", "--at", "1", "--app", "press.py"], "there is no run 999"),
        (["cancel", "x12"], "neither a job (12) nor a run (r12)"),
        (["run", "--as-workflows", "nothing.py"], "the program file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_to_a_run_is_said_in_one_sentence(folder: Path, arguments: list[str], message: str) -> None:
    ran = tidemill(folder, *arguments)
    assert ran.returncode == 1
    assert message in ran.stderr
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    assert "Traceback" not in ran.stderr
