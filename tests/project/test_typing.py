"""Programs that start work are checked by pyright and mypy in strict mode: good calls pass, wrong ones are found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tidemill.cli.run.new import TEMPLATE

PROGRAMS = Path(__file__).parent / "typing_programs"
PATIENCE = 900

pytestmark = [pytest.mark.long, pytest.mark.timeout(PATIENCE)]

#: The lines of a file on which a checker reports errors, by the file's name.
Reported = dict[str, set[int]]


def pyright(folder: Path) -> Reported:
    config = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)], "include": ["."]}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    done = run(["pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)], folder)
    found: Reported = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            found.setdefault(Path(each["file"]).name, set()).add(each["range"]["start"]["line"] + 1)
    return found


def mypy(folder: Path) -> Reported:
    command = ["mypy", "--strict", "--follow-imports=silent", "--python-executable", sys.executable]
    done = run(
        [*command, "--cache-dir", str(folder / ".cache"), "program.py", "mistakes.py", "app.py", "test_app.py"], folder
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Reported = {}
    for name, line in re.findall(r"^(\w+\.py):(\d+): error:", done.stdout, flags=re.M):
        found.setdefault(name, set()).add(int(line))
    return found


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MYPYPATH": str(ROOT)}
    module, *arguments = command
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module", params=[pyright, mypy])
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    check: Callable[[Path], Reported] = request.param
    folder = tmp_path_factory.mktemp("typing")
    for program in PROGRAMS.glob("*.py"):
        shutil.copy(program, folder)
    for name in ("app.py", "tests/test_app.py"):
        shutil.copy(TEMPLATE / name, folder)
    return check(folder)


def test_a_program_without_mistakes_passes(reported: Reported) -> None:
    assert reported.get("program.py", set()) == set()


def test_the_application_that_new_makes_passes(reported: Reported) -> None:
    assert reported.get("app.py", set()) | reported.get("test_app.py", set()) == set()


def test_every_mistake_is_found_where_it_is(reported: Reported) -> None:
    lines = (PROGRAMS / "mistakes.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert reported["mistakes.py"] == wrong
