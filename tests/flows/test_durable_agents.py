"""Agents of LlamaIndex, unmodified, as durable runs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("llama_index") is None or find_spec("llama_index.core") is None:  # Importing it takes seconds.
    pytest.skip("llama-index-core is not installed: there are no agents to run", allow_module_level=True)

ROOT = Path(__file__).parents[2]


def test_agents_answer_as_durable_runs_and_one_that_asks_a_person_leaves_memory_meanwhile(database_url: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.agents_app"],
        cwd=ROOT,
        env={**os.environ, "TIDEMILL_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stdout.splitlines() if line.startswith("(fake model)")] == [
        "(fake model) 42 Agent [('ToolCallResult', '42')]",
        "(fake model) 42 Agent [('ToolCallResult', '42')]",
        "(fake model) counted to 2 Agent [('ToolCallResult', 'counted to 2')]",
        "(fake model) the draft deleted cleaner [('ToolCallResult', 'the draft deleted')]",
    ], ran.stderr
