"""Helper processes of roles, such as the engines of a stream, begin as copies of the supervisor too: see `forking`.

A role cannot be copied itself, since it has threads, connections and code of the application. It asks its supervisor
over a socket, and sends along what the helper reads and writes and one end of a control socket. The supervisor says
there when the helper has started and how it ended; the role may ask there to kill it. When the role ends, its helpers
are killed. Without a supervisor that can copy itself, and where it cannot at the moment, a new Python is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol

import msgspec

from tidemill.engine.containment.cancellation import end
from tidemill.engine.roles.forking import CopiedChild, end_with_parent, start_copy

#: The modules that run as helpers: each has a function `main`, which is given the words of its command line.
HELPERS = ENGINE, ISOLATED_CHILD = "tidemill.streams.engine.process", "tidemill.engine.worker.isolated_child"

LARGEST = 1 << 20
_FILES = 4  # the control socket, and what the helper has as its standard files
_KILL = b"kill"
_asking: socket.socket | None = None


class HelperRequest(msgspec.Struct, frozen=True):
    """Role to supervisor: start this helper."""

    module: str
    words: list[str]
    directory: str
    environment: dict[str, str]


class HelperNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """Supervisor to role: the helper has started, or has ended."""

    pid: int = 0
    status: int | None = None


class HelperProcess(Protocol):
    """A helper, whichever way it was started."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class CopiedHelper:
    """A helper that is a copy of the supervisor, as the role sees it."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._control = control
        self._ended = asyncio.create_task(self._wait(), name="tidemill-helper")

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._control.send(_KILL)

    async def _wait(self) -> int:
        loop = asyncio.get_running_loop()
        with self._control, contextlib.suppress(OSError, msgspec.DecodeError):
            news = msgspec.msgpack.decode(await loop.sock_recv(self._control, LARGEST), type=HelperNews)
            self.returncode = news.status
        if self.returncode is None:
            self.returncode = -signal.SIGKILL  # The supervisor is gone, and what it has started with it.
        return self.returncode


async def start_helper(module: str, words: Sequence[str], stdin: int, stdout: int) -> HelperProcess:
    """Start a helper with these standard files, and with the errors of this process."""
    return await _ask(module, words, stdin, stdout) or await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words), stdin=stdin, stdout=stdout, start_new_session=module == ENGINE
    )


async def _ask(module: str, words: Sequence[str], stdin: int, stdout: int) -> CopiedHelper | None:
    if _asking is None:
        return None
    request = HelperRequest(module, list(words), os.getcwd(), dict(os.environ))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    try:
        with theirs:
            files = [theirs.fileno(), stdin, stdout, 2]
            socket.send_fds(_asking, [msgspec.msgpack.encode(request)], files)
        news = msgspec.msgpack.decode(await asyncio.get_running_loop().sock_recv(ours, LARGEST), type=HelperNews)
    except (
        OSError,
        msgspec.MsgspecError,
    ):  # It has too much to do, too little memory, or the environment is too large.
        ours.close()
        return None
    except BaseException:  # The supervisor kills a helper whose control socket is closed.
        ours.close()
        raise
    return CopiedHelper(ours, news.pid)


def ask_supervisor_at(number: int | None) -> None:
    """In a role, at its start: the socket over which its supervisor can be asked for helpers."""
    global _asking
    _asking = None
    if number is not None:
        _asking = socket.socket(fileno=number)
        _asking.set_inheritable(False)
        _asking.setblocking(False)


class ForkService:
    """In a supervisor: starts the helpers of one life of a role, and ends them with it."""

    def __init__(self, can_copy: Callable[[], bool]) -> None:
        self._can_copy = can_copy
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._helpers: dict[int, CopiedChild] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def close(self) -> None:
        """Kill the helpers: their role has ended."""
        self._is_closed = True
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()
        for pid in self._helpers:
            kill_group(pid)

    def _read(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._ours, LARGEST, _FILES)
        except BlockingIOError:
            return
        except OSError:
            data, files = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self._ours)
            return
        task = asyncio.get_running_loop().create_task(self._serve(data, files))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, data: bytes, files: list[int]) -> None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(files[0])) as control:
            control.setblocking(False)
            try:
                helper = await self._start(data, files)
            finally:
                for number in files:
                    os.close(number)
            if helper is None:
                return
            self._helpers[helper.pid] = helper
            if self._is_closed:
                kill_group(helper.pid)
            killing = asyncio.ensure_future(_kill_on_request(control, helper))
            with contextlib.suppress(OSError):  # The role is gone: then the request to kill it is there, too.
                control.send(msgspec.msgpack.encode(HelperNews(pid=helper.pid)))
            status = await helper.wait()
            del self._helpers[helper.pid]
            await end([killing])  # Else the event loop would take the next file of this number for the closed socket.
            control.send(msgspec.msgpack.encode(HelperNews(status=status)))

    async def _start(self, data: bytes, files: list[int]) -> CopiedChild | None:
        request = msgspec.msgpack.decode(data, type=HelperRequest)
        if request.module not in HELPERS or len(files) != _FILES:
            return None
        return await _start(request, files[1:], self._can_copy)


async def _kill_on_request(control: socket.socket, helper: CopiedChild) -> None:
    """Kill a helper when its role asks for that, or has let go of it."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_recv(control, len(_KILL))
    if helper.returncode is None:
        kill_group(helper.pid)


async def _start(request: HelperRequest, files: Sequence[int], can_copy: Callable[[], bool]) -> CopiedChild | None:
    main = import_module(request.module).main
    supervisor = os.getpid()

    def run() -> int:
        end_with_parent(supervisor)
        for standard, number in enumerate(files):
            os.dup2(number, standard)
            os.close(number)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.directory)
        if not sys.flags.safe_path:
            sys.path[0] = request.directory
        main(request.words)
        return 0

    title = ("tidemill", request.module, *request.words)
    return await start_copy(run, can_copy=can_copy, title=title, environment={}, output=None, files=files)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
