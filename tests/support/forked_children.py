"""Children of a supervisor that begin at once: forked from a template of the nursery, not started as a new Python.

`tidemill up`, `tidemill worker` and others start `python -m tidemill.cli.main ROLE`, which imports Tidemill for
more than half a second. In a process of the nursery, such a start asks a template, a fork that has imported everything,
for another fork. The role is a real child of its supervisor, with its own arguments, environment, files and session.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

SUPERVISORS = (["up"], ["worker"], ["stream", "run"], ["monitor", "run"], ["pipeline", "run"])
TEMPLATE = "template of children"
LARGEST_ORDER = 1 << 17
MOST_FILES = 16
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

#: Room for the command line that a forked process shows: an argument of the nursery.
ROOM = "-" * 4000


class ChildOrder(NamedTuple):
    """What a fork of the template becomes."""

    module: str
    argv: list[str]
    cwd: str
    env: dict[str, str]
    session: bool
    files: list[int]
    """The numbers of its open files, in the order in which they are sent."""


def can_fork(module: str, argv: list[str]) -> bool:
    """Whether a process starts children that can be forked for it."""
    supervises = any(argv[: len(words)] == words for words in SUPERVISORS) and "--no-supervise" not in argv
    return module == "tidemill.cli.main" and supervises and _room() is not None


def fork_children() -> ChildOrder | None:
    """Fork a template, and let `subprocess` use it from now on. Returns an order in each child of the template."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisor = os.getpid()
    if os.fork() == 0:
        ours.close()
        return _serve(theirs, supervisor)
    theirs.close()
    parameters = inspect.signature(subprocess.Popen._execute_child)  # pyright: ignore[reportAttributeAccessIssue]

    class ForkingPopen(subprocess.Popen[Any]):
        def _execute_child(self, *given: Any) -> None:
            named = parameters.bind(self, *given).arguments
            words = [os.fsdecode(word) for word in named["args"]]
            if words[:3] != [sys.executable, "-m", "tidemill.cli.main"]:
                super()._execute_child(*given)  # pyright: ignore[reportAttributeAccessIssue]
                return
            ends = [named[name] for name in ("p2cread", "c2pwrite", "errwrite")]
            files = {number: number if end == -1 else end for number, end in enumerate(ends)}
            files |= {number: number for number in named["pass_fds"]}
            env = dict(os.environ if named["env"] is None else named["env"])
            cwd = os.getcwd() if named["cwd"] is None else os.fsdecode(named["cwd"])
            order = ChildOrder(words[2], words[3:], cwd, env, bool(named["start_new_session"]), list(files))
            self.pid = _ask(ours, order, list(files.values()))
            self._child_created = True
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(named[name] for name in pipes))  # pyright: ignore[reportAttributeAccessIssue]

    subprocess.Popen = ForkingPopen
    return None


def _ask(channel: socket.socket, order: ChildOrder, files: list[int]) -> int:
    """Have a child forked, and adopt it; returns its process id."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(channel, [json.dumps(order._asdict()).encode()], files)
        return int(channel.recv(LARGEST_ORDER))
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve(channel: socket.socket, supervisor: int) -> ChildOrder:
    """The life of a template: fork twice for each order, so that the supervisor adopts the second fork."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)  # The end of the supervisor's output must not wait for this process.
    os.close(nothing)
    show_command(TEMPLATE)
    while True:
        said, files, _, _ = socket.recv_fds(channel, LARGEST_ORDER, MOST_FILES)
        if not said:
            os._exit(0)
        middle = os.fork()
        if middle == 0:
            if os.fork():
                os._exit(0)
            order = ChildOrder(**json.loads(said))
            while os.getppid() != supervisor:
                time.sleep(0.001)
            channel.send(str(os.getpid()).encode())
            channel.close()
            _place(files, order.files)
            return order
        os.waitpid(middle, 0)
        for file in files:
            os.close(file)


def _place(files: list[int], numbers: list[int]) -> None:
    """Give open files these numbers, and close their old ones."""
    above = max([*files, *numbers]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def show_command(*words: str) -> None:
    """Set what `ps` and psutil show as this process's command line, in the room that the nursery's has."""
    if (room := _room()) is not None:
        start, end = room
        text = "\0".join(words).encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def _room() -> tuple[int, int] | None:
    """Where the command line of this process is in its memory; None where the system does not say."""
    if sys.platform != "linux":
        return None
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    return (start, end) if 0 < start < end - len(ROOM) else None


def children_of(pid: int, *, recursive: bool = False) -> list[psutil.Process]:
    """The processes that a process has started, without the template of its children."""
    found = []
    for each in psutil.Process(pid).children(recursive=recursive):
        try:
            if each.cmdline()[:1] != [TEMPLATE]:
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found
