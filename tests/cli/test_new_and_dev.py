"""`tidemill new` makes an application whose tests pass; `tidemill dev` runs it, and again after a change."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from tests.support.cli import Process, asked_until, run
from tests.support.ports import free_port
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


def test_the_tests_of_a_new_application_pass(shop: Path) -> None:
    done = run_pytest(shop)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_dev_goes_on_with_changed_code_and_waits_while_code_is_broken(shop: Path, database_url: str) -> None:
    there = {"TIDEMILL_DATABASE_URL": database_url}
    app = shop / "app.py"
    source = app.read_text()
    with contextlib.closing(Process(shop, "dev", "app.py", f"--port={free_port()}", **there)) as dev:
        dev.line("serving http")
        assert run(shop, "enqueue", "app.py", "greet", '{"name": "Ada"}', "--wait", **there).returncode == 0
        broken = len(dev.lines)
        app.write_text(source + "\nx = (\n")
        dev.line("waiting for a change", after=broken)
        assert run(shop, "enqueue", "--help").returncode == 0
        mended = len(dev.lines)
        app.write_text(source.replace("Hello", "Good day"))
        dev.line("serving http", after=mended)
        greeted = run(shop, "enqueue", "app.py", "greet", '{"name": "Ada"}', "--wait", **there)
        assert "Good day, Ada!" in greeted.stdout, greeted.stdout + greeted.stderr
        asked_until(lambda: (shop / "pages" / "tides.html").exists(), bool)
        dev.signal(signal.SIGINT)
        assert dev.wait() == 0, dev.output
