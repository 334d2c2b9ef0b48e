"""Real processes: workers and schedulers of `tests/support/task_app.py` that can be killed, frozen and terminated."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.nursery import begin
from tests.support.waiting import PATIENCE, PATIENT, eventually

ROOT = Path(__file__).resolve().parents[2]
APPS = ROOT / "tests" / "support" / "task_app.py"
DURABLE = ROOT / "tests" / "support" / "durable.py"


class AppProcess:
    """One process of ours. `kill`, `freeze`, `thaw` and `terminate` are SIGKILL, SIGSTOP, SIGCONT and SIGTERM."""

    def __init__(self, role: str, url: str, app: Path = APPS, **settings: Any) -> None:
        self.worker_id = 0
        descriptor, output = tempfile.mkstemp(prefix="tidemill-test-", suffix=".log")
        self.output = Path(output)
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        wanted = {**PATIENT, "grace_seconds": 10, "database_url": url, "log_format": "human", **settings}
        environment |= {f"TIDEMILL_{name.upper()}": str(value) for name, value in wanted.items()}
        environment["PYTHONPATH"] = str(ROOT)
        with open(descriptor, "wb") as output:
            arguments = [role, str(app)]
            self._process = begin("tests.support.serve", arguments, cwd=ROOT, env=environment, stdout=output)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it lives; negative when a signal ended it."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """Everything that it has written to its standard output and error."""
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def wait_ready(self) -> AppProcess:
        """Return when it works; learns its worker id."""
        line = await eventually(self._ready_line, timeout=PATIENCE * 2, what="the process is ready")
        self.worker_id = int(line.split()[1])
        return self

    async def ends(self, *, timeout: float = PATIENCE) -> int:
        """Its exit status, waiting for its end."""
        try:
            await eventually(lambda: self.exit_status is not None, timeout=timeout, what="the process has ended")
        except AssertionError as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None
        return self._process.wait()

    def close(self) -> None:
        """End it if it lives, and remove its output."""
        if self.exit_status is None:
            self.kill()
        self.output.unlink(missing_ok=True)

    def _ready_line(self) -> str | None:
        assert self.exit_status is None, f"the process ended with {self.exit_status}:\n{self.said}"
        said = self.said.splitlines(keepends=True)
        return next((line for line in said if line.startswith("READY ") and line.endswith("\n")), None)


@asynccontextmanager
async def worker_process(
    url: str, queues: Iterable[str] | None = None, max_concurrency: int = 4, app: Path = APPS, **settings: Any
) -> AsyncIterator[AppProcess]:
    """A worker process that is ready; killed at the end of the block if it still lives."""
    process = start_worker(url, queues, max_concurrency, app, **settings)
    try:
        yield await process.wait_ready()
    finally:
        process.close()


@asynccontextmanager
async def run_worker_process(url: str, app: Path = DURABLE, **settings: Any) -> AsyncIterator[AppProcess]:
    """A run worker that is ready; killed at the end of the block if it still lives."""
    process = AppProcess("runs", url, app, **settings)
    try:
        yield await process.wait_ready()
    finally:
        process.close()


@asynccontextmanager
async def scheduler_process(url: str, app: Path = APPS, **settings: Any) -> AsyncIterator[AppProcess]:
    """A scheduler process that is ready; killed at the end of the block if it still lives."""
    process = AppProcess("scheduler", url, app, **settings)
    try:
        yield await process.wait_ready()
    finally:
        process.close()


def start_worker(
    url: str, queues: Iterable[str] | None = None, max_concurrency: int = 4, app: Path = APPS, **settings: Any
) -> AppProcess:
    """A worker process, not yet ready; the caller closes it."""
    role = "worker" if queues is None else f"worker:{','.join(queues)}"
    return AppProcess(role, url, app, max_concurrency=max_concurrency, **settings)
