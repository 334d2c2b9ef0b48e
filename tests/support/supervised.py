"""`tidemill worker` and other commands as real processes, with all that they start themselves."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.support.nursery import begin
from tests.support.waiting import PATIENT

ROOT = Path(__file__).resolve().parents[2]
MISBEHAVING = ROOT / "tests" / "support" / "misbehaving_app.py"


class Command:
    """A running command of the CLI."""

    def __init__(self, url: str, *arguments: str, **settings: Any) -> None:
        descriptor, output = tempfile.mkstemp(prefix="tidemill-test-", suffix=".log")
        self.output = Path(output)
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        wanted = {**PATIENT, "grace_seconds": 5, "database_url": url, "log_format": "human", **settings}
        environment |= {f"TIDEMILL_{name.upper()}": str(value) for name, value in wanted.items()}
        environment["PYTHONPATH"] = str(ROOT)
        with open(descriptor, "wb") as stream:
            self._process = begin("tidemill.cli.main", list(arguments), cwd=ROOT, env=environment, stdout=stream)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def said(self) -> str:
        """Everything that it and its children have written."""
        return self.output.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """The processes that it has started."""
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=20.0)
        except Exception:  # noqa: BLE001 - whatever it is, it must not outlive the test
            self._process.kill()
            self._process.wait()
        self.output.unlink(missing_ok=True)


@contextmanager
def command(url: str, *arguments: str, **settings: Any) -> Iterator[Command]:
    """A command that runs while the block lasts; what it said is printed if the block fails."""
    running = Command(url, *arguments, **settings)
    try:
        yield running
    except BaseException:
        print(running.said)
        raise
    finally:
        running.close()
