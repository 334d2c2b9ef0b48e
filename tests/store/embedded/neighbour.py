"""Other processes that open an embedded server, for the tests of sharing, crashes and takeovers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import psycopg

from tidemill.store.embedded import process
from tidemill.store.embedded.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[3]
GONE_TIMEOUT = 60.0

# Does what it is told, one line at a time, and answers each with a line of JSON; ends with its input.
NEIGHBOUR = """
import json, os, signal, sys
from tidemill.core.errors import StoreError
from tidemill.store.embedded import cluster
from tidemill.store.embedded.server import EmbeddedServer

server = EmbeddedServer(sys.argv[1])

def stall(*_, **__):
    print(json.dumps({"stalled": True}), flush=True)
    sys.stdin.read()

for line in sys.stdin:
    error = None
    match line.strip():
        case "ensure":
            try:
                server.ensure()
            except StoreError as raised:
                error = str(raised)
        case "stop":
            server.stop()
        case "stall in initdb":
            cluster.run_program = stall
            server.ensure()
        case "fork":
            if os.fork():
                signal.pause()
    answer = {"owned": server.owned, "pid": server.pid, "uid": os.geteuid(), "error": error}
    print(json.dumps(answer), flush=True)
"""


class Neighbour:
    """Another process with the same directory, which we tell what to do."""

    def __init__(self, directory: Path, *prefix: str, python: str = sys.executable, **options: object) -> None:
        command = [*prefix, python, "-c", NEIGHBOUR, str(directory)]
        self._process = subprocess.Popen(  # pyright: ignore[reportCallIssue]
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("platlib")])},
            **options,  # pyright: ignore[reportArgumentType]
        )
        self._server: Watch | None = None

    @property
    def closed(self) -> bool:
        return self._process.stdout is None or self._process.stdout.closed

    def tell(self, order: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def answer(self) -> dict:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the neighbour ended with {self._process.wait()}"
        answer = json.loads(line)
        if answer.get("pid") and self._server is None:
            self._server = Watch(answer["pid"])
        return answer

    def ask(self, order: str) -> dict:
        self.tell(order)
        return self.answer()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Let it exit by itself, as a program does that has nothing left to do, and its server with it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.read()  # to the end: until forked children are gone too
        self._process.stdout.close()
        self._process.wait()
        assert self._server is None or self._server.ends()


class Watch:
    """One process, watched for its end from now on."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def ends(self) -> bool:
        """Whether the process ends, waiting for it if need be."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(GONE_TIMEOUT * 1000))


def as_seeming_user() -> list[str]:
    """A command prefix under which a program is no longer root: neither by name nor by its rights."""
    account = process.Account(65534, 65534, namespace=True)
    if not process.is_permitted(account):
        return []
    launcher = [sys.executable, "-I", "-S", str(process.LAUNCHER)]
    return [*launcher, str(os.getpid()), str(int(signal.SIGKILL)), "", str(account)]


def python_for_all() -> str | None:
    """An interpreter of our version that any user may run: our own, or the system's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [sys.executable, *(str(Path(folder) / version) for folder in ("/usr/bin", "/usr/local/bin"))]
    return next((each for each in candidates if Path(each).exists() and reachable_by_all(each)), None)


def reachable_by_all(path: Path | str) -> bool:
    """Whether any user may read and execute the path."""
    real = Path(os.path.realpath(path))
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (real, *real.parents))


def fetch(server: EmbeddedServer, query: str) -> object:
    """The first column of a query's first row."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row and row[0]
