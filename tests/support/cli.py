"""The command line as a user has it: real processes in a folder with an application."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import psutil

from tests.support.nursery import begin
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TIDEMILL = [sys.executable, "-m", "tidemill.cli.main"]
T = TypeVar("T")

SETTINGS = {"TIDEMILL_LEASE_SECONDS": "20s", "TIDEMILL_HEARTBEAT_SECONDS": "0.5s", "TIDEMILL_GRACE_SECONDS": "20s"}

APP = '''
import asyncio
import os
import time
from pathlib import Path

from tidemill import App, current_job

app = App("shop")


@app.task(queue="mail", retry=app.retry(max_attempts=5), budget="2m")
async def send_receipt(order_id: int) -> dict:
    return {"sent": order_id}


@app.task(queue="mail", retry=app.retry(max_attempts=2, backoff="10ms"))
async def broken(text: str = "it") -> None:
    raise ValueError(f"cannot read {text}")


@app.task(queue="fetch", cron="0 4 1 1 *", timezone="Europe/Paris")
def refresh_prices() -> dict:
    return {"prices": 3}


@app.task
async def until(file: str) -> str:
    """Runs until a file is there."""
    job = current_job()
    job.report(0.5, f"waits for {file}")
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return "seen"


@app.task
async def only_the_second_time() -> int:
    """Never ends at its first attempt."""
    attempt = current_job().attempt
    if attempt == 1:
        await asyncio.sleep(3600)
    return attempt


@app.task(budget="300ms")
def stuck() -> None:
    time.sleep(3600)
'''


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would change how the commands behave."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMILL_", "COLUMNS"))}
    return {**kept, "PYTHONPATH": str(ROOT), **SETTINGS, **changes}


def make_folder(folder: Path, text: str = APP, database_url: str | None = None) -> Path:
    """A user's project; its database is an embedded one unless there is a URL, which is quicker."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(text)
    if database_url is not None:
        (folder / "pyproject.toml").write_text(f'[tool.tidemill]\ndatabase_url = "{database_url}"\n')
    return folder


def run(folder: Path, *arguments: str, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    with TemporaryFile("w+") as given, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        given.write(stdin)
        given.seek(0)
        env = environment(**changes)
        process = begin("tidemill.cli.main", arguments, cwd=folder, env=env, stdin=given, stdout=out, stderr=err)
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), err.read())


def ok(folder: Path, *arguments: str) -> str:
    """What a command that works prints."""
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listing(folder: Path, *arguments: str) -> Any:
    """What a command prints with --json."""
    return json.loads(ok(folder, *arguments, "--json"))


def wait_for(folder: Path, job_id: int | str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The job, once it is as it should be."""
    return asked_until(lambda: listing(folder, "job", str(job_id)), fits)


def asked_until(ask: Callable[[], T], fits: Callable[[T], object]) -> T:
    """What a command shows, once it is as it should be. Each time is a process: the longer it takes, the rarer."""
    give_up, pause = time.monotonic() + PATIENCE, 0.05
    while not fits(shown := ask()):
        assert time.monotonic() < give_up, shown
        time.sleep(pause)
        pause = min(2 * pause, 0.4)
    return shown


class Process:
    """A command that goes on until it is stopped; its output is read all the time."""

    def __init__(self, folder: Path, *arguments: str, **changes: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self._news = threading.Condition()
        env = environment(**changes)
        self._process = begin("tidemill.cli.main", arguments, cwd=folder, env=env, new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def line(self, text: str, *, after: int = 0) -> str:
        """The first line with this text, now or as soon as it is printed."""
        with self._news:
            found = self._news.wait_for(lambda: self._find(text, after) or self._process.poll() is not None, PATIENCE)
            line = self._find(text, after)
        assert line is not None, f"no {text!r} in (running: {not found})\n{self.output}"
        return line

    def tree(self) -> list[psutil.Process]:
        """Every process that belongs to it, the database's too."""
        return [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]

    def child(self, role: str) -> psutil.Process:
        """The process of one role."""
        return next(each for each in psutil.Process(self.pid).children() if role in each.cmdline())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        status = self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def close(self) -> None:
        """Make sure that nothing stays, whatever the test has done."""
        if self._process.poll() is None:
            tree = self.tree()
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            _, left = psutil.wait_procs(tree, PATIENCE)
            for each in left:
                each.kill()
        self._process.wait(PATIENCE)

    def _find(self, text: str, after: int) -> str | None:
        return next((line for line in self.lines[after:] if text in line), None)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()


def read_until(terminal: int, seen: bytes, wanted: bytes) -> bytes:
    """What a terminal shows, until it has shown something."""
    give_up = time.monotonic() + PATIENCE
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, give_up - time.monotonic()))
        assert ready, f"{wanted!r} was not shown: {seen[-3000:]!r}"
        seen += os.read(terminal, 65536)
    return seen


def all_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that are still there after a while; empty is good."""
    return psutil.wait_procs(processes, PATIENCE)[1]
