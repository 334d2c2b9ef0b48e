"""The child process of an isolated task: runs the orders of its parent, one at a time.

Started by `isolation.Children` as `python -m tidemill.engine.worker.isolated_child APP`; not meant to be run manually.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode, storable
from tidemill.core.errors import ConfigError
from tidemill.core.retry import Discard, RetryAfter, Snooze, error_lineage
from tidemill.core.user_traceback import user_traceback
from tidemill.engine.application.lifespan import Lifespan, LifespanError
from tidemill.engine.application.load_app import load_app
from tidemill.engine.containment.memory_limit import limited_memory
from tidemill.engine.jobs.task import TaskRegistry, encode_result
from tidemill.engine.roles.forking import end_with_parent
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.telemetry.tracing import continuing
from tidemill.engine.worker.context import RunningJob, enter_job
from tidemill.engine.worker.isolation import ChildOrder, ChildReport
from tidemill.engine.worker.outcome import message_of

LIFESPAN_PAUSE = 5.0  # seconds until a job is tried again whose process cannot open the lifespan


class ReportingJob(RunningJob, eq=False, kw_only=True):
    """The job inside the child process: sends each report through the pipe at once."""

    say: Callable[[ChildReport], None]

    def report(self, progress: float | None = None, message: str | None = None) -> None:
        super().report(progress, message)
        self.say(ChildReport(beat=True, progress=self.progress, note=message))

    def beat(self) -> None:
        super().beat()
        self.say(ChildReport(beat=True))

    def keep_line(self, line: bytes) -> None:
        self.say(ChildReport(line=msgspec.Raw(line)))


def main(words: Sequence[str]) -> None:
    """Run orders from stdin until the parent exits; `words` has the application's place."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    orders = os.fdopen(os.dup(0), "rb")
    mouth = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    speaking = threading.Lock()  # A task may log from several threads, and long lines take several writes.

    def say(word: ChildReport) -> None:
        with speaking:
            mouth.write(encode(word) + b"\n")

    try:
        app = load_app(words[0])
    except ConfigError as error:
        say(_word_of(error))
        raise
    app.declarations.hash_stages()
    configure_logs(app.settings.log_level, app.settings.log_format)
    with ExitStack() as stack:
        jobs = OrderedJobs(app.declarations.tasks, app.declarations.lifespan, stack, asyncio.run)
        for line in orders:
            jobs.run(decode(line, ChildOrder), say)


class OrderedJobs:
    """Runs the jobs of a process that works for a worker elsewhere, one at a time."""

    def __init__(
        self,
        tasks: TaskRegistry,
        lifespan: Lifespan,
        stack: ExitStack,
        run_async: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        """`stack` holds the lifespan, opened before the first job; `run_async` is for tasks without one."""
        self._tasks = tasks
        self._lifespan = lifespan
        self._stack = stack
        self._run_async = run_async

    def run(self, order: ChildOrder, say: Callable[[ChildReport], None]) -> None:
        """Run one job; its progress, its lines and its outcome are said as they come."""

        def call() -> Any:
            origin = bytes(order.origin) or None
            enter_job(ReportingJob(order.id, order.attempt, order.queue, order.task, origin, say=say))
            with continuing(order.trace):
                result = task.run(**kwargs)
                return self._finish(result) if task.is_async else result

        try:
            self._open_lifespan()
            task = self._tasks.require(order.task)
            kwargs = task.signature.load(bytes(order.args))
            say(ChildReport(begun=True))
            with limited_memory(task.options.memory):
                data = encode_result(task.name, copy_context().run(call))
        except BaseException as error:  # noqa: BLE001 - every error of a task is reported to its worker
            say(_word_of(error))
        else:
            say(ChildReport(ok=True) if data is None else ChildReport(ok=True, result=msgspec.Raw(data)))

    def _open_lifespan(self) -> None:
        """Open the application's lifespan in this process. A job waits until that works."""
        if self._lifespan.is_needed and not self._lifespan.is_open:
            try:
                self._stack.enter_context(self._lifespan.opened_in_thread())
            except (LifespanError, ConfigError) as error:
                raise Snooze(LIFESPAN_PAUSE, f"its process takes no work: {error}") from error

    def _finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an async task where the clients of the lifespan live."""
        if self._lifespan.is_open and self._lifespan.loop is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, self._lifespan.loop).result()
        return self._run_async(coroutine)


def _word_of(error: BaseException) -> ChildReport:
    """The report of an error to the parent."""
    ours = isinstance(error, Snooze | RetryAfter | Discard)
    return ChildReport(
        lineage=error_lineage(type(error)),
        message=storable(error.reason) if ours else message_of(error),
        trace=storable(user_traceback(error)),
        seconds=error.seconds if isinstance(error, Snooze | RetryAfter) else 0.0,
    )


if __name__ == "__main__":
    end_with_parent()
    main(sys.argv[1:])
