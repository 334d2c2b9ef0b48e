"""The supervisor by itself, with small scripts as children."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import eventually
from tests.support.cli import PATIENCE, all_gone
from tidemill.engine.containment.exit_status import EXIT_MISCONFIGURED, EXIT_USAGE
from tidemill.engine.roles import supervisor as supervision
from tidemill.engine.roles.supervisor import PYTHON, ChildSpec, Supervisor, describe_exit, pause_after

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
PARENT = (
    "import subprocess, sys, signal;"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
    "print('grandchild', child.pid, flush=True); signal.pause()"
)


STARTS_AND_DIES = (
    "from tidemill.engine.roles.supervisor import end_with_supervisor, report_started; import os;"
    "end_with_supervisor(); report_started(); print('started', flush=True); os._exit(3)"
)


FAILS_BEFORE_IT_WORKS = (
    "from tidemill.engine.roles.supervisor import ALIVE, VARIABLE, end_with_supervisor; import os;"
    "os.write(int(os.environ[VARIABLE].split(':')[3]), ALIVE); end_with_supervisor();"
    "print('no', flush=True); os._exit({})"
)


class Lines:
    """What children print; `line` waits for one."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, _name: str, line: str) -> None:
        self.seen.append(line)
        self._news.set()

    async def line(self, start: str, *, number: int = 1) -> str:
        async with asyncio.timeout(PATIENCE):
            while len(found := [line for line in self.seen if line.startswith(start)]) < number:
                self._news.clear()
                await self._news.wait()
        return found[number - 1]


def script(code: str) -> list[ChildSpec]:
    return [ChildSpec("script", (sys.executable, "-c", code))]


async def test_a_child_that_will_not_stop_is_killed_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "KILL_MARGIN", 0.1)
    lines = Lines()
    supervisor = Supervisor(script(STUBBORN), grace=0.1, on_line=lines)
    running = asyncio.create_task(supervisor.run())
    await lines.line("ready")
    supervisor.stop()
    assert await running == 1


async def test_what_a_child_leaves_behind_ends_with_it() -> None:
    lines = Lines()
    supervisor = Supervisor(script(PARENT), grace=5, on_line=lines)
    running = asyncio.create_task(supervisor.run())
    grandchild = psutil.Process(int((await lines.line("grandchild")).split()[1]))
    child = grandchild.parent()
    assert child is not None
    child.kill()
    await lines.line("grandchild", number=2)
    assert await asyncio.to_thread(all_gone, [grandchild]) == []
    supervisor.stop()
    assert await running == 0


async def test_a_child_that_has_started_is_started_again_however_soon_it_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """User code may end a process at once: that is not a mistake in how it is started."""
    monkeypatch.setattr(supervision, "SETTLED", 600.0)
    lines = Lines()
    supervisor = Supervisor(script(STARTS_AND_DIES), grace=5, on_line=lines)
    running = asyncio.create_task(supervisor.run())
    await lines.line("started", number=supervision.TRIES + 1)
    assert not running.done()
    supervisor.stop()
    await running


async def test_a_server_counts_as_started_once_it_serves(tmp_path: Path, database_url: str) -> None:
    """It has no lease that would say so, and pages run code of the application."""
    (tmp_path / "app.py").write_text("from tidemill import App\napp = App('shop')\n")
    command = (*PYTHON, "server", str(tmp_path / "app.py"), "--port=0", f"--database-url={database_url}")
    lines = Lines()
    supervisor = Supervisor([ChildSpec("server", command)], grace=5, on_line=lines, silence=4.0)
    running = asyncio.create_task(supervisor.run())
    await lines.line("serving http")
    await eventually(lambda: supervisor.started == {"server"})
    supervisor.stop()
    assert await running == 0


async def test_a_cancelled_supervisor_leaves_nothing() -> None:
    lines = Lines()
    running = asyncio.create_task(Supervisor(script(PARENT), grace=5, on_line=lines).run())
    grandchild = psutil.Process(int((await lines.line("grandchild")).split()[1]))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(all_gone, [grandchild]) == []


async def test_a_child_that_fails_right_at_its_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "SETTLED", 60.0)  # However slow the machine is, it never got further.
    lines = Lines()
    assert await Supervisor(script("print('no'); raise SystemExit(3)"), grace=5, on_line=lines).run() == 1
    assert lines.seen == ["no"] * supervision.TRIES
    lines = Lines()
    hopeless = f"print('no'); raise SystemExit({EXIT_MISCONFIGURED})"
    assert await Supervisor(script(hopeless), grace=5, on_line=lines).run() == 1
    assert lines.seen == ["no"]


@pytest.mark.parametrize(("status", "lives"), [(EXIT_USAGE, 1), (3, supervision.TRIES)])
async def test_a_child_that_is_slow_to_fail_at_its_start_is_given_up(
    monkeypatch: pytest.MonkeyPatch, status: int, lives: int
) -> None:
    """Loading an application may take long: only a role that says that it works has started."""
    monkeypatch.setattr(supervision, "SETTLED", 0.0)
    lines = Lines()
    assert await Supervisor(script(FAILS_BEFORE_IT_WORKS.format(status)), grace=5, on_line=lines).run() == 1
    assert lines.seen == ["no"] * lives


async def test_a_line_of_any_length_gets_through() -> None:
    lines = Lines()
    supervisor = Supervisor(script("print('x' * 50_000); print('end', flush=True); input()"), grace=5, on_line=lines)
    running = asyncio.create_task(supervisor.run())
    await lines.line("end")
    supervisor.stop()
    await running
    assert lines.seen[0] == "x" * 50_000


def test_pauses_grow_and_end_at_the_longest() -> None:
    assert [pause_after(deaths) for deaths in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert pause_after(1000) == supervision.LONGEST_PAUSE


def test_an_exit_status_is_put_in_words() -> None:
    assert describe_exit(75) == "the watchdog ended it: a job ran longer than its budget (exit 75)"
    assert describe_exit(-9) == "it was killed by SIGKILL"
    assert describe_exit(3) == "it failed (exit 3)"
