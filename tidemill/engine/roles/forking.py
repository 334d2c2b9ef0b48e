"""Child processes that begin as copies of this one, which has loaded Tidemill: at once, and on the same memory.

The copy must find this process as if it had just started. So it has loaded no code of an application, which may have
opened connections or started threads: `ask_copy` loads an application in a copy, and returns what was asked about it.
Threads do not exist in a copy, and locks that they hold stay locked, so the threads of a supervisor are known: those
that wait for other processes hold none, and those of `ForkExecutor` are idle, or a new Python is started instead.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from tidemill.core.expressions.known_valid import learn_valid, record_valid

T = TypeVar("T")


def _can_copy() -> bool:
    """Whether copies are made here: libraries of macOS do not work in them, and old kernels do not tell their ends."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError):
        os.close(os.pidfd_open(os.getpid()))
        return True
    return False


CAN_COPY = _can_copy()

#: Modules that copies share, and those of them that load what other systems need, with threads perhaps, or commands.
OURS, OTHERS = "tidemill.", ("tidemill.integrations", "tidemill.testing")
COMMANDS = "tidemill.cli"

_PR_SET_PDEATHSIG = 1

#: In a copy that is asked: the memory for its answer, and the modules that its parent has.
_answering: tuple[int, set[str]] | None = None


class ForkExecutor(ThreadPoolExecutor):
    """The threads of an event loop, which knows whether one of them is at work."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="tidemill-supervisor")
        self._calls: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    @property
    def is_idle(self) -> bool:
        return not self._calls


def ask_copy(question: Callable[[], T], kind: type[T]) -> T:
    """What `question` returns in a copy of this process.

    What it loads of Tidemill is loaded here as well, and what it finds valid is known here. If it raises, the copy goes
    on as this process would have, and this one ends with the same status. In a copy that `continue_from_copy` has made,
    this does not return: its parent goes on with the answer.
    """
    if not CAN_COPY:
        return question()
    if _answering is not None:
        _answer(question)
    status, answer = _ask(lambda: _answer(question), kind)
    if answer is None:
        raise SystemExit(status)
    return answer


def continue_from_copy(run: Callable[[], int], kind: type[T], go_on: Callable[[T], int]) -> int:
    """Run this in a copy until it calls `ask_copy`, and go on here with the answer; returns the exit status.

    Nothing that the copy needed for its question is in the memory of this process, and of the copies of it, then.
    """
    if not CAN_COPY:
        return run()
    status, answer = _ask(run, kind)
    return status if answer is None else go_on(answer)


def _ask(run: Callable[[], int], kind: type[T]) -> tuple[int, T | None]:
    """Run this in a copy; returns its exit status, and its answer if it has one."""
    global _answering
    flush_output()
    memory = os.memfd_create("tidemill-answer")
    parent = os.getpid()
    pid = _fork()
    if pid == 0:
        end_with_parent(parent)
        _answering = (memory, set(sys.modules))
        status = run()
        atexit._run_exitfuncs()
        flush_output()
        os._exit(status)
    interrupts = 0
    while True:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            break
        except KeyboardInterrupt:  # On a terminal, the copy has got the same signal and ends by itself.
            interrupts += 1
            if interrupts > 1:
                os.kill(pid, signal.SIGKILL)
    with os.fdopen(memory, "rb") as file:
        data = file.read()
    if interrupts:
        raise KeyboardInterrupt
    if status or not data:
        return (status if status >= 0 else 128 - status), None
    answer, loaded, valid = msgspec.msgpack.decode(data, type=tuple[kind, list[str], set[bytes]])
    learn_valid(valid)
    for name in loaded:
        import_module(name)
    return 0, answer


def _answer(question: Callable[[], Any]) -> NoReturn:
    """In a copy: answer, and end."""
    assert _answering is not None  # noqa: S101
    memory, before = _answering
    valid = record_valid()
    answer = question()
    loaded = [name for name in sys.modules if name not in before and name.startswith(OURS)]
    loaded = [name for name in loaded if not name.startswith((*OTHERS, COMMANDS))]
    os.pwrite(memory, msgspec.msgpack.encode((answer, loaded, valid)), 0)
    atexit._run_exitfuncs()
    flush_output()
    os._exit(0)


class CopiedChild:
    """A child that is a copy of this process, with what an `asyncio.subprocess.Process` has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._handle = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._handle, self._reap)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self.returncode = os.waitstatus_to_exitcode(status)
        if not self._ended.done():
            self._ended.set_result(self.returncode)


async def start_copy(
    run: Callable[[], int],
    *,
    can_copy: Callable[[], bool],
    title: Sequence[str],
    environment: Mapping[str, str],
    output: int | None,
    files: Sequence[int],
) -> CopiedChild | None:
    """Start a copy of this process in a session of its own, which runs this and ends with the status that it returns.

    It reads nothing, writes to `output` (None: where this process does), and keeps of all open files only these. None
    if no copy can be made at the moment.
    """
    loop = asyncio.get_running_loop()
    started: asyncio.Future[CopiedChild | None] = loop.create_future()

    def start() -> None:
        if started.done():  # Cancelled.
            return
        if not can_copy():
            started.set_result(None)
            return
        flush_output()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = _fork()
            if pid == 0:
                _live(run, lambda: _begin(blocked, title, environment, output, files))
            started.set_result(CopiedChild(pid))
        except OSError as error:
            started.set_exception(error)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    loop.call_soon(start)  # In a callback, since the copy of a task would count as one that runs.
    return await started


def prepare_copies() -> None:
    """Make what all copies need, and leave it out of garbage collections, which would write to its pages."""
    gc.collect()
    gc.freeze()


def end_with_parent(parent: int | None = None) -> None:
    """In a child, at its start: be killed when the process that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent not in (None, os.getppid()):
        raise SystemExit(0)  # It was gone before we asked.


def flush_output() -> None:
    for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            file.flush()  # pyright: ignore[reportOptionalMemberAccess]


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # The warning is about threads: see above.
        return os.fork()


def _begin(
    blocked: set[int],
    title: Sequence[str],
    environment: Mapping[str, str],
    output: int | None,
    files: Sequence[int],
) -> None:
    """Make a copy what a process is when it begins."""
    gc.freeze()  # Nothing of the parent is ever freed here: that would close files that have other owners by then.
    atexit._clear()
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
    keep = {0, 1, 2, *files}
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    os.environ.update(environment)
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()  # as `python -m` has it
    sys.argv = list(title)
    show_command(title)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _live(run: Callable[[], int], begin: Callable[[], None]) -> NoReturn:
    """The life of a copy. It never returns to what its parent was doing, and ends without freeing anything."""
    status = 1
    try:
        begin()
        try:
            status = contextvars.Context().run(run)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - as Python does at the end of a program
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(status)


def show_command(words: Sequence[str]) -> None:
    """Set what `ps` shows as the command line, as far as there is room where that of the parent was."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        text = "\0".join(words).encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))
