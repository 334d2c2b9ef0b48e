"""Tasks in separate processes: `isolation="process"`.

A child process loads the application once and then runs one job at a time; it is reused for the next job. When a job is
cancelled, stalls or exceeds its budget, only its child is killed.

Parent and child exchange lines of JSON over a socket; what a task prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from typing import Any, Protocol

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.retry import Discard, RetryAfter, Snooze, error_lineage
from tidemill.engine.containment.memory_limit import remove_group
from tidemill.engine.jobs.task import Task
from tidemill.engine.roles.fork_service import ISOLATED_CHILD, HelperProcess, start_helper
from tidemill.engine.telemetry.tracing import current_trace
from tidemill.engine.worker.context import RunningJob

START_SECONDS = 300.0  # for a child to load the application
END_SECONDS = 10.0  # for an idle child to close what it has opened
SHORTEST_IDLE, IDLE_PER_START = 5.0, 20.0  # until a child without jobs is ended: seconds, and lengths of its start
LONGEST_LINE = 64 * 1024 * 1024


class ChildOrder(msgspec.Struct, omit_defaults=True):
    """Parent to child: run this job."""

    task: str
    args: msgspec.Raw
    id: int
    attempt: int
    queue: str
    trace: str | None = None
    origin: msgspec.Raw = msgspec.Raw()


class ChildReport(msgspec.Struct, omit_defaults=True):
    """Child to parent: that the task begins, progress, a result, or an error."""

    begun: bool = False
    beat: bool = False
    progress: float | None = None
    note: str | None = None
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw()
    lineage: tuple[str, ...] = ()
    message: str = ""
    trace: str = ""
    seconds: float = 0.0
    line: msgspec.Raw = msgspec.Raw()
    """A line that the task logged."""

    @property
    def is_outcome(self) -> bool:
        return not self.begun and not self.beat and not bytes(self.line)

    def tell(self, job: RunningJob) -> None:
        """Pass a report that is no outcome on to the job in its worker."""
        if line := bytes(self.line):
            job.keep_line(line)
        elif self.begun:
            job.started = job.now()
        elif self.progress is not None or self.note is not None:
            job.report(self.progress, self.note)
        else:
            job.beat()


class TaskError(Exception):
    """An exception raised in a child process: its class path and bases, message and traceback."""

    def __init__(self, lineage: tuple[str, ...], message: str, trace: str) -> None:
        super().__init__(message)
        self.lineage = lineage
        self.trace = trace


class ChildDied(Exception):
    """The process of an isolated task exited without a result."""


class MachineLost(Exception):
    """The machine that ran a task elsewhere was lost."""


class JobProcesses(Protocol):
    """Runs tasks in processes other than the worker's: its own child processes, or those of a cluster."""

    async def run(self, task: Task[Any, Any], args: bytes, job: RunningJob) -> bytes | None:
        """Run one job and return its result; it is ended on cancellation."""
        ...

    async def close(self) -> None:
        """End all processes."""
        ...


class ClusterProcesses(JobProcesses, Protocol):
    """Processes of a cluster, which may grow and shrink."""

    def capacity(self) -> int:
        """How many jobs the cluster has room for now. Asks the cluster."""
        ...


class Child(msgspec.Struct, eq=False):
    """A child process, and the socket that is its standard input and output."""

    process: HelperProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    born: float
    start_took: float | None = None
    """How many seconds went by until its first job began."""

    @property
    def patience(self) -> float:
        """How long it may be idle: starts of new ones then take no more than a small part of the time."""
        return max(SHORTEST_IDLE, IDLE_PER_START * (self.start_took or 0.0))


class Children:
    """The child processes of a worker: started on demand, reused for later jobs, ended when there are none for long."""

    def __init__(self, app_path: str | None) -> None:
        self._app_path = app_path
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._busy: set[Child] = set()
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, task: Task[Any, Any], args: bytes, job: RunningJob) -> bytes | None:
        """Run one job in a child and return its result; the child is killed on cancellation."""
        child = await self._take()
        self._busy.add(child)
        try:
            word = await self._exchange(child, order_of(task, args, job), job)
        except BaseException:
            await _kill(child)
            remove_group(child.process.pid)
            raise
        finally:
            self._busy.discard(child)
        self._idle[child] = asyncio.get_running_loop().call_later(child.patience, self._end, child)
        return result_of(word)

    async def close(self) -> None:
        """Stop all children."""
        for child in self._busy:
            await _kill(child)
        for child in list(self._idle):
            self._end(child)
        await asyncio.gather(*self._ending)

    def _end(self, child: Child) -> None:
        """End an idle child."""
        self._idle.pop(child).cancel()
        ending = asyncio.ensure_future(_let_end(child))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _take(self) -> Child:
        while self._idle:
            child, waiting = self._idle.popitem()
            waiting.cancel()
            if child.process.returncode is None:
                return child
            child.writer.close()
        if self._app_path is None:
            raise ConfigError("isolation='process' needs an application in a file that a child process can load")
        born = time.monotonic()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await start_helper(ISOLATED_CHILD, (self._app_path,), theirs.fileno(), theirs.fileno())
            reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        except BaseException:
            ours.close()
            raise
        return Child(process, reader, writer, born)

    async def _exchange(self, child: Child, order: ChildOrder, job: RunningJob) -> ChildReport:
        with contextlib.suppress(ConnectionError):
            child.writer.write(encode(order) + b"\n")
            await child.writer.drain()
        budget, job.budget = job.budget, None  # It begins when the child has loaded the application.
        try:
            async with asyncio.timeout(START_SECONDS) as limit:
                while line := await _line_of(child):
                    word: ChildReport = decode(line, ChildReport)
                    if word.is_outcome:
                        return word
                    word.tell(job)
                    if word.begun:
                        child.start_took = child.start_took or time.monotonic() - child.born
                        limit.reschedule(None)
                        job.budget = budget
        except TimeoutError:
            raise ChildDied(f"the process of the isolated task did not start within {START_SECONDS:g} s") from None
        finally:
            job.budget = budget
        status = await child.process.wait()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        raise ChildDied(f"the process of the isolated task {how}")


def order_of(task: Task[Any, Any], args: bytes, job: RunningJob) -> ChildOrder:
    """The order to run a job in another process."""
    order = ChildOrder(task.name, msgspec.Raw(args), job.id, job.attempt, job.queue, current_trace())
    if job.origin_data is not None:  # An empty one would not be JSON.
        order.origin = msgspec.Raw(job.origin_data)
    return order


def result_of(word: ChildReport) -> bytes | None:
    """The result that another process has reported, or the exception that its task has raised."""
    if word.ok:
        return bytes(word.result) or None
    if _is_a(word, Snooze):
        raise Snooze(word.seconds, word.message)
    if _is_a(word, RetryAfter):
        raise RetryAfter(word.seconds, word.message)
    if _is_a(word, Discard):
        raise Discard(word.message)
    if _is_a(word, PayloadError):
        raise PayloadError(word.message)
    raise TaskError(word.lineage, word.message, word.trace)


def _is_a(word: ChildReport, kind: type[BaseException]) -> bool:
    return error_lineage(kind)[0] in word.lineage


async def _line_of(child: Child) -> bytes:
    """The next line of a child; nothing when it has ended."""
    with contextlib.suppress(ConnectionError):
        return await child.reader.readline()
    return b""


async def _let_end(child: Child) -> None:
    """End an idle child: it closes the application's lifespan."""
    child.writer.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await child.process.wait()
            return
    await _kill(child)


async def _kill(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.process.kill()
    await child.process.wait()
    child.writer.close()
