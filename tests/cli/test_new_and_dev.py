"""`tidemill new` makes an application whose tests pass; `tidemill dev` runs it, and again after a change."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.support.cli import TIDEMILL, Process, all_gone, asked_until, environment, read_until, run
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE
from tests.testing.test_plugin import run_pytest

pytestmark = pytest.mark.long


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    made = run(tmp_path, "new", "shop")
    assert made.returncode == 0, made.stderr
    return tmp_path / "shop"


def test_a_folder_with_files_is_not_overwritten(shop: Path) -> None:
    again = run(shop.parent, "new", "shop")
    assert (again.returncode, "is not empty" in again.stderr) == (1, True)
    odd = run(shop.parent, "new", "My Shop!")
    assert (odd.returncode, "cannot name an application" in odd.stderr) == (1, True)


def test_the_database_and_the_password_go_neither_into_git_nor_into_an_image(shop: Path) -> None:
    for name in (".gitignore", ".dockerignore"):
        assert {".tidemill/", ".env", ".venv/"} <= set((shop / name).read_text().splitlines())


def test_the_tests_of_a_new_application_pass(shop: Path) -> None:
    done = run_pytest(shop)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_an_application_that_has_built_its_pages_can_be_installed(shop: Path, tmp_path: Path) -> None:
    (shop / "pages").mkdir()
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, "."]
    done = subprocess.run(wheel, cwd=shop, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "shop-0.1.0-py3-none-any.whl") as built:
        assert [name for name in built.namelist() if ".dist-info/" not in name] == ["app.py"]


def test_dev_goes_on_with_changed_code_and_waits_while_code_is_broken(shop: Path, database_url: str) -> None:
    there = {"TIDEMILL_DATABASE_URL": database_url}
    app = shop / "app.py"
    source = app.read_text()
    with contextlib.closing(Process(shop, "dev", "app.py", f"--port={free_port()}", **there)) as dev:
        url = dev.line("serving http").split()[-1]
        assert run(shop, "enqueue", "app.py", "greet", '{"name": "Ada"}', "--wait", **there).returncode == 0
        broken = len(dev.lines)
        app.write_text(source + "\nx = (\n")
        dev.line("waiting for a change", after=broken)
        assert run(shop, "enqueue", "--help").returncode == 0
        mended = len(dev.lines)
        with ThreadPoolExecutor(1) as browser:
            asked = browser.submit(lambda: urlopen(url, timeout=PATIENCE).status)
            app.write_text(source.replace("Hello", "Good day"))
            assert dev.line("serving http", after=mended).split()[-1] == url
            assert asked.result(PATIENCE) == 200, "a request waits while all starts again"
        greeted = run(shop, "enqueue", "app.py", "greet", '{"name": "Ada"}', "--wait", **there)
        assert "Good day, Ada!" in greeted.stdout, greeted.stdout + greeted.stderr
        asked_until(lambda: (shop / "pages" / "tides.html").exists(), bool)
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0, dev.output


def test_on_a_terminal_a_key_opens_the_console_restarts_and_quits(shop: Path, database_url: str) -> None:
    browser = shop.parent / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {shop.parent}/opened\n')
    browser.chmod(0o755)
    master, terminal = pty.openpty()
    variables = {"TIDEMILL_DATABASE_URL": database_url, "BROWSER": str(browser), "TERM": "xterm"}
    process = subprocess.Popen(
        [*TIDEMILL, "dev", "app.py", f"--port={free_port()}"],
        cwd=shop,
        env=environment(**variables, COLUMNS="160", LINES="40"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    tree = [psutil.Process(process.pid)]
    try:
        read_until(master, b"", b"press o to open the console, r to restart, q to quit")
        os.write(master, b"xo")
        link = asked_until(lambda: (shop.parent / "opened").exists() and (shop.parent / "opened").read_text(), bool)
        with urlopen(str(link).strip()) as page:
            assert page.status == 200
        os.write(master, b"r")
        seen = read_until(master, b"", b"asked to restart: starting again")
        read_until(master, seen.partition(b"starting again")[2], b"worker started")
        tree += psutil.Process(process.pid).children(recursive=True)
        os.write(master, b"q")
        drain = threading.Thread(target=read_to_the_end, args=[master], daemon=True)
        drain.start()
        assert process.wait(PATIENCE) == 0
        assert all_gone(tree) == []
        assert termios.tcgetattr(master)[3] & termios.ICANON, "the terminal is as it was"
    finally:
        process.kill()
        process.wait()
        os.close(master)


def read_to_the_end(terminal: int) -> None:
    """Read what a terminal shows, so that its program never waits for a reader."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass
