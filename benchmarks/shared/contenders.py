"""Runs one contender (ours, a peer or the raw limit) in a process of its own and collects its figures."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.shared import venv

LATENCY = "start"


class Entrant(msgspec.Struct, frozen=True):
    """Which module to run, with which interpreter, and about how many jobs/s to expect of it."""

    name: str
    module: str
    python: Path
    rate: int
    scenarios: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """Figures by row name, and why the rest is missing, if it is."""

    figures: dict[str, float]
    failure: str | None = None


def run(
    entrant: Entrant,
    dsn: str,
    *,
    scenarios: Sequence[str],
    jobs: int,
    starts: int,
    seconds: float,
    timeout: float,
    under: Sequence[str] = (),
) -> Outcome:
    """Run `scenarios` one after the other; figures taken before a failure or the timeout are kept."""
    command = [str(entrant.python), "-m", entrant.module, "--dsn", dsn, "--scenario", *scenarios]
    command += ["--jobs", str(jobs), "--starts", str(starts), "--seconds", str(seconds)]
    command += ["--under", *under]
    # A session of its own, so that its worker process can be ended together with it.
    process = subprocess.Popen(
        command,
        cwd=venv.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    failure = None
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        if process.returncode:
            failure = _last_line(stderr) or f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        failure = f"not finished within {timeout:.0f} s"
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    figures: dict[str, float] = {}
    for line in stdout.splitlines():
        if line.startswith('{"scenario"'):
            report = json.loads(line)
            figures.update(_figures(report["scenario"], report["value"]))
    return Outcome(figures, failure)


def latency_figures(milliseconds: Sequence[float]) -> dict[str, float]:
    """The two rows that a list of start latencies makes."""
    percentiles = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {"start_p50": percentiles[49], "start_p99": percentiles[98]}


def say(message: str) -> None:
    """Tell the user on stderr; stdout is for the results."""
    print(message, file=sys.stderr, flush=True)


def _figures(scenario: str, value: Any) -> dict[str, float]:
    return latency_figures(value) if scenario == LATENCY else {scenario: value}


def _last_line(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None
