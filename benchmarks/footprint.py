"""The `footprint` suite: what `tidemill up` of the demo takes, and how soon a command answers from a cold start.

Memory is counted in two ways: the resident sizes together, in which pages that processes share count for each of them,
and the proportional ones, in which they count once.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.venv import ROOT
from tidemill.store.embedded.server import EmbeddedServer

DEMO = ROOT / "examples" / "demo" / "app.py"
START_S = 60.0
MB = 2**20

#: What each row is to stay below.
LIMITS = {
    "up_processes": 7.0,
    "up_rss": 450.0,
    "up_pss": 300.0,
    "up_backends": 25.0,
    "up_ready": 5_000.0,
    "cli_version": 80.0,
    "cli_help": 250.0,
    "cli_jobs": 250.0,
}
UNITS = {"up_processes": "processes", "up_rss": "MB", "up_pss": "MB", "up_backends": "backends"}


class Plan(msgspec.Struct, frozen=True):
    """How long the demo runs before it is measured, and how often a command is started."""

    settle_s: float
    starts: int


QUICK = Plan(settle_s=10.0, starts=3)
FULL = Plan(settle_s=40.0, starts=9)


def run(plan: Plan) -> list[report.Row]:
    """Measure the demo, and then commands on its database, while nothing else runs on it."""
    with tempfile.TemporaryDirectory(prefix="tidemill-footprint-") as folder:
        with _up(str(Path(folder, "first"))):
            pass  # It compiles: processes that compile what they load take more memory.
        began = time.monotonic()
        with _up(folder) as demo:
            ready = (time.monotonic() - began) * 1000
            figures = {**_wait_and_measure(demo, plan.settle_s), "up_ready": ready}
        server = EmbeddedServer(Path(folder))
        server.ensure()
        try:
            for name, words in {"cli_version": ["--version"], "cli_help": ["--help"], "cli_jobs": ["jobs"]}.items():
                _start(words, folder)  # compiles
                figures[name] = statistics.median(_start(words, folder) for _ in range(plan.starts))
        finally:
            server.stop()
    return [
        report.compare(name, UNITS.get(name, "ms"), figures[name], "limit", limit, less_is_better=True)
        for name, limit in LIMITS.items()
    ]


@contextmanager
def _up(folder: str) -> Iterator[psutil.Process]:
    Path(folder).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tidemill.cli.start", "up", str(DEMO), "--directory", folder]
    with Path(folder, "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=_environment(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_until_served(Path(folder, "log"), process)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_served(log: Path, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_S
    while "serving http" not in log.read_text():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the demo does not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _wait_and_measure(demo: psutil.Process, settle_s: float) -> dict[str, float]:
    time.sleep(settle_s)
    figures: dict[str, float] = dict.fromkeys(UNITS, 0.0)
    for each in [demo, *demo.children(recursive=True)]:
        try:
            words, memory = each.cmdline(), each.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        if words and words[0].startswith("postgres:"):
            # The title of a client's backend has its address; those of other processes of the server have none.
            figures["up_backends"] += "[local]" in words[0] or "(" in words[0]
        elif words and (words[0] == "tidemill" or "python" in Path(words[0]).name):
            figures["up_processes"] += 1
            figures["up_rss"] += memory.rss / MB
            figures["up_pss"] += getattr(memory, "pss", memory.uss) / MB
            say(f"{memory.rss / MB:6.0f} MB, own {memory.uss / MB:4.0f} MB  {' '.join(words)[:100]}")
    return figures


def _start(words: list[str], folder: str) -> float:
    """How many milliseconds a command takes, with its modules compiled, as those of an installed package are."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "tidemill.cli.start", *words],
        cwd=ROOT,
        env={**_environment(), "TIDEMILL_DIRECTORY": folder},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return (time.monotonic() - began) * 1000


def _environment() -> dict[str, str]:
    """The environment of a command that writes bytecode, as that of an installed package is."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
