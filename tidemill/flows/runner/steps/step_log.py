"""The log lines of steps that run in the process of their run: stored per attempt, with the other writes of the run.

Nothing is created before a step logs its first line. Its lines are written every second and when the step ends.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from tidemill.engine.worker.log_capture import CapturedLines
from tidemill.flows.reducer.state.flow_state import Work
from tidemill.store.runs.log import NewStepLog

WRITE_EVERY = 1.0  # seconds

#: The number of a piece of work, its step, and the number of the attempt.
Attempt = tuple[int, str, int]


class RunStepLogs:
    """The log lines of the steps of one run."""

    __slots__ = ("__weakref__", "_due", "_home", "_lines", "_number", "_write", "weak")

    def __init__(self, number: int, home: asyncio.AbstractEventLoop, write: Callable[[list[NewStepLog]], None]) -> None:
        """The event loop `home` calls `write` with the logged lines."""
        self._number = number
        self._home = home
        self._write = write
        self._lines: dict[Attempt, CapturedLines] = {}
        self._due = False
        self.weak = weakref.ref(self)

    def keep(self, attempt: Attempt, line: bytes) -> None:
        """Buffer a line; can be called from any thread."""
        self._lines.setdefault(attempt, CapturedLines()).add(line)
        if not self._due:
            self._due = True
            self._home.call_soon_threadsafe(self._home.call_later, WRITE_EVERY, self._write_fresh)

    @property
    def number(self) -> int:
        """The number of the run."""
        return self._number

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def ended(self, work: Work) -> list[NewStepLog]:
        """Return the unwritten lines of an attempt that has ended."""
        key = work.id, work.step, work.attempt
        lines = self._lines.pop(key, None)
        return [] if lines is None or not lines.fresh else [self._log(key, lines)]

    def take(self) -> list[NewStepLog]:
        """Return all unwritten lines."""
        return [self._log(key, lines) for key, lines in self._lines.items() if lines.fresh]

    def close(self) -> None:
        """Stop writing. A run that is dropped is freed at once, without the garbage collector."""
        self._write = _write_nothing

    def _write_fresh(self) -> None:
        self._due = False
        if fresh := self.take():
            self._write(fresh)

    def _log(self, key: Attempt, lines: CapturedLines) -> NewStepLog:
        began_at, dropped, text = lines.take()
        work, step, attempt = key
        return NewStepLog(self._number, work, step, attempt, began_at, dropped, text)


class StepLogCapture:
    """Captures the log lines of one attempt of a step; it does not keep the run in memory."""

    __slots__ = ("_attempt", "_logs")

    def __init__(self, logs: RunStepLogs, work: Work) -> None:
        self._logs = logs.weak
        self._attempt = work.id, work.step, work.attempt

    @property
    def work(self) -> str | None:
        """The run that the step is of, in words."""
        logs = self._logs()
        return None if logs is None else f"run r{logs.number}"

    def keep_line(self, line: bytes) -> None:
        logs = self._logs()
        if logs is not None:
            logs.keep(self._attempt, line)


def _write_nothing(_: list[NewStepLog]) -> None:
    """Drop log lines that come after their run has left memory."""
