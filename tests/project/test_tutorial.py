"""The tutorial from its first line to its last: its files, its commands and its tests, in the order of the page."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.project.test_readme import commands_of
from tests.support.cli import Process, asked_until, listing, ok, run
from tests.support.guide import ROOT, blocks_of
from tests.support.ports import free_port
from tests.testing.test_plugin import run_pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "tutorial.md"
STEPS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]


def commands(step: int) -> list[list[str]]:
    return commands_of(STEPS[step - 1])


def write_code(folder: Path, step: int) -> None:
    """Append the blocks of a step to the files that their first lines name."""
    for block in blocks_of(PAGE):
        if block.heading.startswith(f"{step}."):
            first, _, rest = block.source.partition("\n")
            with (folder / first.removeprefix("# ")).open("a") as file:
                file.write(f"{rest}\n\n\n")


@pytest.fixture
def folder(tmp_path: Path, database_url: str) -> Path:
    (tmp_path / "pyproject.toml").write_text(f'[tool.tidemill]\ndatabase_url = "{database_url}"\n')
    return tmp_path


def test_the_tutorial_ends_with_a_deployed_application(folder: Path) -> None:
    assert [step.partition(".")[0] for step in STEPS] == ["1", "2", "3", "4", "5", "6"]
    write_code(folder, 1)
    dev, enqueue = commands(1)
    with closing(Process(folder, *dev, f"--port={free_port()}")) as running:
        running.line("serving http")
        assert "ada@example.org" in ok(folder, *enqueue)

        enqueue, show, retry, jobs = commands(2)
        assert ok(folder, *enqueue).strip() == "2"
        asked_until(lambda: listing(folder, "job", "2"), lambda job: job["state"] == "failed")
        shown = ok(folder, *show)
        assert "ada is not an address" in shown
        assert "attempt 3" in shown.lower()
        ok(folder, *retry)
        asked_until(lambda: listing(folder, "job", "3"), lambda job: job["state"] == "succeeded")
        assert "failed" in ok(folder, *jobs)

        before = len(running.lines)
        write_code(folder, 3)
        running.line("serving http", after=before)
        start, inputs, send, show = commands(3)
        assert "r1" in ok(folder, *start)
        asked_until(lambda: listing(folder, "inputs"), bool)
        assert "Publish Tides?" in ok(folder, *inputs)
        ok(folder, *send)
        asked_until(lambda: listing(folder, "run", "r1"), lambda found: found["state"] == "succeeded")
        assert "succeeded" in ok(folder, *show)
        assert len(listing(folder, "jobs", "--task", "send", "--arg", "text=Tides")) == 2

        before = len(running.lines)
        write_code(folder, 4)
        running.line("serving http", after=before)
        schedules, fire = commands(4)
        asked_until(lambda: ok(folder, *schedules), lambda text: "remind" in text)
        ok(folder, *fire)

    write_code(folder, 5)
    tested = run_pytest(folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout

    *roles, token, enqueue, check = commands(6)
    port = str(free_port())
    with ExitStack() as stack:
        roles[-1].append(f"--port={port}")
        processes = [stack.enter_context(closing(Process(folder, *role))) for role in roles]
        for process, sign in zip(processes, ("scheduler started", "worker started", "serving http"), strict=True):
            process.line(sign)
        secret = ok(folder, *token).strip()
        through = [word.replace("7433", port) for word in enqueue]
        sent = run(folder, *through, TIDEMILL_TOKEN=secret)
        assert sent.returncode == 0, sent.stderr
        assert "eve@example.org" in sent.stdout
        assert run(folder, *check).returncode == 0
