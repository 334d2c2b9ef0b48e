"""Processes that begin at once: forked from one that has imported Tidemill already, and from then on like any other.

`begin(module, arguments, ...)` is `subprocess.Popen` of `python -m MODULE`, without the third of a second that the
imports take. Each has its own arguments, environment, folder, files and signals, and a real process id.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from tidemill.engine.roles.forking import show_command

ROOT = Path(__file__).resolve().parents[2]
LARGEST_ORDER = 1 << 17

#: Room for the command line that a forked process shows: an argument of the nursery.
ROOM = "-" * 4000

#: What processes of tests need beside the commands. A module that is run itself is not among them, nor is one that an
#: application brings along.
IMPORTED = (
    *(
        f"tidemill.{name}"
        for name in (
            "app",
            "roles",
            "engine.application.load_app",
            "engine.worker.worker",
            "engine.runs.run_worker",
            "engine.roles.maintenance",
            "engine.roles.scheduler",
            "engine.roles.supervisor",
            "flows",
            "dags",
            "streams",
            "pipelines",
            "monitors",
            "server.app",
            "server.role",
            "server.middleware.connection_limits",
        )
    ),
    *("psycopg", "uvloop", "uvicorn.protocols.http.httptools_impl", "rich.console", "rich.table", "rich.live"),
)


# -- in tests ---------------------------------------------------------------------------------------


class Born:
    """A process of the nursery, with what a `subprocess.Popen` has."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        self._nursery.listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = 0.5 if give_up is None else min(0.5, give_up - time.monotonic())
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._nursery.listen(left)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has just ended, and the nursery is about to say so.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that others are forked from, and those that live."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.RLock()
        self._living: dict[int, Born] = {}
        self._newest: Born | None = None
        number = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery", str(number), ROOM],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
        )
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()

    def begin(self, order: Mapping[str, Any], files: Sequence[int]) -> Born:
        with self._lock:
            self._newest = None
            socket.send_fds(self._channel, [json.dumps(order).encode()], files)
            while self._newest is None:
                self.listen(1.0)
            return self._newest

    def listen(self, seconds: float) -> None:
        """Take in what the nursery has to tell, waiting so long for its first word."""
        with self._lock:
            while select.select([self._channel], [], [], seconds)[0]:
                told = self._channel.recv(LARGEST_ORDER)
                assert told, f"the nursery ended with {self._process.wait()}"
                pid, status = json.loads(told)
                if status is None:
                    self._newest = self._living[pid] = Born(self, pid)
                else:
                    self._living.pop(pid).returncode = status
                seconds = 0.0


_nursery: Nursery | None = None


def begin(
    module: str,
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: IO[Any] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    new_session: bool = False,
) -> Born:
    """Begin `python -m MODULE ARGUMENTS`. Without files its input is empty, and its output a pipe, of errors too."""
    global _nursery
    if _nursery is None:
        _nursery = Nursery()
    order = {"module": module, "argv": list(arguments), "cwd": str(cwd), "env": dict(env), "session": new_session}
    with contextlib.ExitStack() as stack:
        reading = None
        if stdin is None:
            stdin = stack.enter_context(open(os.devnull, "rb"))
        if stdout is None:
            reading, writing = os.pipe()
            stdout = stack.enter_context(os.fdopen(writing, "wb"))
        files = [each.fileno() for each in (stdin, stdout, stderr or stdout)]
        born = _nursery.begin(order, files)
    if reading is not None:
        born.stdout = os.fdopen(reading, encoding="utf-8", errors="replace")
    return born


# -- in the nursery ---------------------------------------------------------------------------------


class Order(NamedTuple):
    """What a process that has just been forked is to become."""

    module: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    session: bool


def serve(channel: socket.socket) -> Order | None:
    """Fork whenever asked to. Returns in each of the children, and when nobody can ask any more."""
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    while True:
        ready = select.select([channel, waking], [], [])[0]
        if waking in ready:
            os.read(waking, 4096)
            _tell_ends(channel)
        if channel not in ready:
            continue
        said, files, _, _ = socket.recv_fds(channel, LARGEST_ORDER, 3)
        if not said:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (channel.detach(), waking, woken):
                os.close(each)
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            return Order(**json.loads(said))
        for file in files:
            os.close(file)
        channel.send(json.dumps([pid, None]).encode())


def _tell_ends(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            channel.send(json.dumps([ended[0], os.waitstatus_to_exitcode(ended[1])]).encode())


def become(order: Order) -> None:
    """Go on as `python -m MODULE` would have begun."""
    if order.session:
        os.setsid()
    show_command([sys.executable, "-m", order.module, *order.argv])
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.env)
    random.seed()
    sys.path[0] = order.cwd
    sys.argv = ["", *order.argv]
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        if not isinstance(error.code, int | None):
            raise
        status = error.code or 0
    leave(status)


def leave(status: int) -> NoReturn:
    """End as Python does, except that nothing is freed: that takes longer than most commands."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = 120  # as Python has it
    os._exit(status)


def warm_up() -> None:
    """Build a server once: what it imports, reads and computes for its routes is there for all that follow."""
    from tidemill.app import App
    from tidemill.server.app import build
    from tidemill.server.fair_pool import FairDatabase
    from tidemill.server.server_state import ServerState
    from tidemill.server.settings import ServerSettings
    from tidemill.store.database import DatabaseSettings
    from tidemill.store.migrate import OWN_CHAIN

    OWN_CHAIN.migrations()
    build(ServerState(App("nursery"), FairDatabase(DatabaseSettings(), label="nursery"), ServerSettings()))


def import_commands() -> None:
    """Import the modules of all commands, but not the one that is run for a command."""
    import_module("tidemill.cli.main").build(whole=True)
    del sys.modules["tidemill.cli.main"]


def main() -> None:
    for name in IMPORTED:
        import_module(name)
    import_commands()
    warm_up()
    gc.collect()
    gc.freeze()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        become(order)


if __name__ == "__main__":
    main()
