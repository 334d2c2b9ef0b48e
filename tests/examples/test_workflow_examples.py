"""Programs written for LlamaIndex Workflows run unmodified, and print what they print there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "workflows"

#: What each program prints under llama-index-workflows 2.26.1.
PRINTED = {
    "fan_out": ["{'by_page': {0: 3, 1: 9, 2: 1}, 'total': 13}"],
    "human_in_the_loop": [
        "asked about: On tides",
        "'On tides' published by editor",
        "put away: True",
        "'On mills' rejected by editor",
    ],
    "linear": ["Receipt bread: 15", "Receipt flour: 6", "not sold: 'gold'"],
    "retries": [
        "fine -> page of fine",
        "flaky -> page of flaky",
        "  fetch failed after 3: Unavailable: still down",
        "down -> page of mirror",
        "  fetch failed after 1: ValueError: no such page",
        "wrong -> nothing",
        "{'down': 3, 'fine': 1, 'flaky': 3, 'mirror': 1, 'wrong': 1}",
    ],
    "state_and_stream": [
        "+10 -> 10",
        "-3 -> 7",
        "refused: -20 is more than there is",
        "-20 -> 7",
        "+5 -> 12",
        "StopEvent",
        "{'balance': 12, 'entries': ['+10', '-3', '+5']}",
    ],
    "typed_fan_in": [
        "first: answer to question 1",
        "then: answer to question 1",
        "then: answer to question 2",
        "then: answer to question 3",
    ],
}


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemill.flows.compat", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_program_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, "agents"}


@pytest.mark.long
def test_the_agents_of_llama_index_answer_as_they_do_on_llama_index_workflows(tmp_path: Path) -> None:
    program = str(EXAMPLES / "agents.py")
    elsewhere = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    ran = run(program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "six times seven?: (fake model) 42 [Agent]" in ran.stdout
    assert ran.stdout.splitlines() == elsewhere.stdout.splitlines()


@pytest.mark.parametrize("name", PRINTED)
def test_an_unmodified_program_prints_what_it_prints_elsewhere(name: str, tmp_path: Path) -> None:
    ran = run(str(EXAMPLES / f"{name}.py"), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == PRINTED[name]


def test_a_program_gets_its_arguments_and_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("WORD = 'beside'\n")
    (tmp_path / "program.py").write_text(
        "import sys, workflows, neighbour\nprint(sys.argv[1:], neighbour.WORD, workflows.Workflow.__module__)\n"
    )
    ran = run("program.py", "a", "--b", cwd=tmp_path)
    assert ran.stdout.split() == ["['a',", "'--b']", "beside", "tidemill.flows.definition.workflow"], ran.stderr


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    ran = run("nope.py", cwd=tmp_path)
    assert ran.returncode != 0
    assert "nope.py" in ran.stderr
