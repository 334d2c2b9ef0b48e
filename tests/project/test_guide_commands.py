"""The commands of the guides, given to a running application whose things have the names of the guides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.project.test_readme import commands_of
from tests.support.cli import Process, asked_until, run
from tests.support.guide import ROOT
from tidemill.engine.application.load_app import load_app

#: Commands that are not given, by how they begin, and why.
NOT_RUN = {
    "up": "it runs already",
    "worker": "it goes on; tests/cli/test_first_steps.py",
    "maintenance": "it goes on; tests/cli/test_first_steps.py",
    "server": "it goes on; tests/cli/test_server.py",
    "top": "it needs a terminal; tests/cli/test_top.py",
    "stream status --watch": "it needs a terminal; tests/cli/test_streams.py",
}

#: What a replay says, by its exit status: a tick may fall before or after the removal from the roster, which a replay
#: does not know of.
REPLAY = "monitor backtest app.py --replay"
REPLAYED = {0: "the replay opened the stored alerts", 1: "the replay opened other alerts"}

#: Commands that show what happens until they are interrupted.
FOLLOWING = ("--follow",)


class World(msgspec.Struct):
    """A running application, and the database that commands reach it by."""

    folder: Path
    url: str

    def give(self, *words: str) -> str:
        done = run(self.folder, *words, TIDEMILL_DATABASE_URL=self.url)
        assert done.returncode == 0, f"tidemill {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def read(self, *words: str) -> Any:
        return json.loads(self.give(*words, "--json"))

    def wait(self, words: list[str], fits: Callable[[Any], Any]) -> Any:
        """What a listing shows, as soon as it is as it should be."""
        return asked_until(lambda: self.read(*words), fits)

    def follow(self, *words: str) -> None:
        """Give a command that goes on, and interrupt it when it has shown something."""
        with contextlib.closing(Process(self.folder, *words, TIDEMILL_DATABASE_URL=self.url)) as process:
            process.line("")
            process.signal(signal.SIGINT)
            assert process.wait() in (0, 130), process.output


@pytest.fixture
def world(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)
    shutil.copy(ROOT / "tests" / "support" / "guide_app.py", tmp_path / "app.py")
    shutil.copy(tmp_path / "app.py", tmp_path / "next.py")
    (tmp_path / "output" / "daily" / "2026-01-15").mkdir(parents=True)
    (tmp_path / "output" / "daily" / "2026-01-15" / "notes.txt").write_text("high water")
    reading = {"id": "1", "at": time.time(), "machine": "press-1", "celsius": 90}
    (tmp_path / "readings.jsonl").write_text(json.dumps(reading) + "\n")
    up = Process(tmp_path, "up", "app.py", "--no-server", TIDEMILL_DATABASE_URL=database_url)
    with contextlib.closing(up):
        for role in ("worker started", "scheduler started", "monitors started", "stream is running"):
            up.line(role)
        yield World(tmp_path, database_url)


def prepare_dags(world: World) -> dict[str, str]:
    page = (ROOT / "docs" / "dags.md").read_text()
    (world.folder / "nightly.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    started = world.give("dag", "start", "nightly.yaml", "--app", "app.py", "--args", '{"day": "monday"}')
    run_id = re.findall(r"r\d+", started)[0]
    world.wait(["inputs"], lambda open: [each for each in open if f"r{each['run_id']}" == run_id])
    return {"r12": run_id}


def prepare_flows(world: World) -> dict[str, str]:
    app = load_app(str(world.folder / "app.py"))

    async def start() -> int:
        run = await app.start("Article")
        await app.close()
        return run.id

    number = asyncio.run(start())
    world.wait(["run", f"r{number}"], lambda run: len(run["ticks"]) >= 7)
    return {"r12": f"r{number}"}


def prepare_streams(world: World) -> dict[str, str]:
    world.give("stream", "publish", "recovery", '{"bad": true}')
    (dead,) = world.wait(["stream", "dead-letters", "posts"], lambda found: found)
    return {"12": str(dead["id"])}


def prepare_pipelines(world: World) -> dict[str, str]:
    world.wait(["pipeline", "status", "app.py"], lambda found: found[0]["stages"][1]["counts"].get("fresh") == 1)
    return {}


def prepare_monitors(world: World) -> dict[str, str]:
    (alert,) = world.wait(["monitor", "alerts"], lambda found: found)
    return {"7": str(alert["id"]), "a7": f"a{alert['id']}"}


def prepare_workers(world: World) -> dict[str, str]:
    worker = world.wait(["workers"], lambda found: found)[0]
    return {"HOST": socket.gethostname(), "QUEUE": "mail", "8": str(worker["id"])}


#: The guides whose commands are given, in this order, and what prepares each: it returns the ids behind those shown.
PAGES: dict[str, Callable[[World], dict[str, str]]] = {
    "schedules": lambda world: {},
    "workers": prepare_workers,
    "telemetry": lambda world: {},
    "dags": prepare_dags,
    "flows": prepare_flows,
    "pipelines": prepare_pipelines,
    "streams": prepare_streams,
    "monitors": prepare_monitors,
}


@pytest.mark.long
def test_the_commands_of_the_guides_work(world: World) -> None:
    for page, prepare in PAGES.items():
        ids = prepare(world)
        for words in commands_of((ROOT / "docs" / f"{page}.md").read_text()):
            give(world, page, [ids.get(word, word) for word in words])


def give(world: World, page: str, words: list[str]) -> None:
    given = " ".join(words)
    for begins, reason in NOT_RUN.items():
        if given == begins or (given.startswith(f"{begins} ") and "--once" not in words):
            print(f"{page}.md: tidemill {given} is not run: {reason}")
            return
    if given.startswith("dag rerun"):
        world.wait(["run", words[2]], lambda run: run["state"] != "running")
    if any(option in words for option in FOLLOWING):
        world.follow(*words)
    else:
        done = run(world.folder, *words, TIDEMILL_DATABASE_URL=world.url)
        if "add --yes" in done.stderr:  # At a terminal it asks.
            assert done.returncode == 1
            world.give(*words, "--yes")
        elif given == REPLAY:
            assert REPLAYED[done.returncode] in done.stdout, f"{done.returncode}: {done.stdout}{done.stderr}"
        else:
            assert done.returncode == 0, f"{page}.md: tidemill {given}: {done.stdout}{done.stderr}"
