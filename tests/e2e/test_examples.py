"""Every example does what it says: run as a newcomer would run it, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What each example prints; the demo is run by `tidemill up`, in test_demo.py.
PRINTED = {
    "article": ["to approve: All about tides.", "tides: published"],
    "receipts": ["{'sent': True, 'order': 7}", "{'prices': 120}"],
    "transactional_enqueue": ["order 1 packed", "rolled back: 1 order, 0 jobs"],
    "failures": [
        "succeeded: third time lucky",
        "succeeded: waited as told",
        "succeeded: now it is",
        "failed: discarded: order 3 was cancelled",
    ],
    "limits": [
        "the second is the first: True, created: False",
        "at most at once per customer: {1: 2, 2: 2}",
        "20 calls took at least 0.3 s: True",
    ],
    "progress_and_cancel": ["progress was seen: True; 20 rows exported", "cancelled", "cancelled", "cancelled"],
    "schedules": [
        "heartbeat: every 0.2 seconds",
        "morning-report: at 08:30 on Monday through Friday (Europe/Paris)",
        "night-report: at 02:00 every day (America/New_York)",
        "beat",
        "beat",
        "beat",
    ],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "demo"}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str, directory: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=directory,
        env={**os.environ, "TIDEMILL_LOG_LEVEL": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if "[" not in line[:40]]
    assert lines == PRINTED[name]
