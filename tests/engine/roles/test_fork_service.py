"""Helpers of a role that are copies of its supervisor: they see what the role sees, and end with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import eventually, value
from tests.support.cli import Process, all_gone, asked_until, listing, make_folder, wait_for
from tidemill.engine.roles.forking import CAN_COPY
from tidemill.store.database import Database

pytestmark = pytest.mark.skipif(not CAN_COPY, reason="copies are made on Linux only")

APP = """
import os, signal, sys, threading, time
from pathlib import Path
from tidemill import App

app = App("shop")
os.environ["SET_BY_THE_APPLICATION"] = "yes"


@app.task(isolation="process")
def look() -> dict:
    with open("/proc/self/cmdline") as file:
        command = file.read().split(chr(0))
    return {
        "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "command": command[0],
        "set": os.environ.get("SET_BY_THE_APPLICATION"), "folder": os.getcwd(), "read": sys.stdin.read(),
        "threads": threading.active_count(), "supervisor": os.environ.get("TIDEMILL_SUPERVISOR"),
    }


@app.task(isolation="process", retry=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(isolation="process")
def hang(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path, database_url: str) -> Path:
    return make_folder(tmp_path / "shop", APP, database_url)


@pytest.fixture
def worker(folder: Path) -> Iterator[Process]:
    process = Process(folder, "worker", "app.py")
    process.line("worker started")
    yield process
    process.close()


def ended(folder: Path, task: str) -> dict[str, Any]:
    """A job of the task, once it has ended."""
    job = listing(folder, "enqueue", "app.py", task)
    return wait_for(folder, job["id"], lambda job: job["state"] in ("succeeded", "failed"))


def test_an_isolated_task_runs_in_a_copy_that_sees_what_its_worker_sees(worker: Process, folder: Path) -> None:
    seen = ended(folder, "look")["result"]
    assert seen["parent"] == worker.pid
    assert seen["session"] == seen["pid"]
    assert (seen["command"], seen["set"], seen["folder"]) == ("tidemill", "yes", str(folder))
    assert (seen["supervisor"], seen["read"]) == (None, "")
    assert seen["threads"] == 1


def test_the_end_of_a_copy_is_told_as_that_of_a_child(worker: Process, folder: Path) -> None:
    assert "was killed by SIGSEGV" in json.dumps(ended(folder, "die"))
    assert ended(folder, "look")["result"]["parent"] == worker.pid, "the next job has another process"


async def test_the_ends_of_many_copies_that_die_while_others_start_are_all_told(
    worker: Process, database: Database
) -> None:
    """Files of copies that have ended are closed while those of others are opened under the same numbers."""
    await database.fetch("SELECT tidemill.enqueue('die') FROM generate_series(1, 300)")
    failed = "SELECT count(*) FROM tidemill.job_history WHERE state = 'failed'"
    assert await eventually(lambda: holds(database, failed, 300), timeout=60)


async def holds(database: Database, count: str, wanted: int) -> bool:
    return await value(database, count) == wanted


def test_a_copy_ends_with_the_role_that_asked_for_it(worker: Process, folder: Path, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    listing(folder, "enqueue", "app.py", "hang", json.dumps({"file": str(noted)}))
    pid = int(asked_until(lambda: noted.read_text() if noted.exists() else "", bool))
    helper = psutil.Process(pid)
    assert helper.ppid() == worker.pid
    role = worker.child("jobs")
    role.kill()
    assert not all_gone([helper]), "its supervisor has killed it"
    worker.line("starting again")


def test_without_a_supervisor_a_new_python_is_started(folder: Path) -> None:
    alone = Process(folder, "worker", "app.py", "--only", "jobs")
    try:
        alone.line("worker started")
        seen = ended(folder, "look")["result"]
        assert seen["parent"] == alone.pid
        assert Path(seen["command"]).name.startswith("python")
    finally:
        alone.close()
