"""What steps log while they run where their run is: kept with each attempt, and written with what the run writes.

Nothing is made before a step logs its first line. From then on its lines are written when it ends, and every second
while it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.engine.worker.log_capture import CapturedLines
from tidemill.flows.reducer.state import Work
from tidemill.store.runs.log import StepLog

WRITE_EVERY = 1.0  # seconds


class RunStepLogs:
    """The lines of one run's steps."""

    __slots__ = ("_due", "_home", "_lines", "_number", "_write")

    def __init__(self, number: int, home: asyncio.AbstractEventLoop, write: Callable[[list[StepLog]], None]) -> None:
        """`write` is called by the event loop `home` with what has been logged."""
        self._number = number
        self._home = home
        self._write = write
        self._lines: dict[tuple[int, str, int], CapturedLines] = {}
        self._due = False

    def keep(self, work: Work, line: bytes) -> None:
        """Keep a line; from any thread."""
        self._lines.setdefault((work.id, work.step, work.attempt), CapturedLines()).add(line)
        if not self._due:
            self._due = True
            self._home.call_soon_threadsafe(self._home.call_later, WRITE_EVERY, self._write_fresh)

    def ended(self, work: Work) -> list[StepLog]:
        """The lines of an attempt that has ended, if it has any that are not written yet."""
        key = (work.id, work.step, work.attempt)
        lines = self._lines.pop(key, None)
        return [] if lines is None or not lines.fresh else [self._log(key, lines)]

    def take(self) -> list[StepLog]:
        """All lines that are not written yet."""
        return [self._log(key, lines) for key, lines in self._lines.items() if lines.fresh]

    def _write_fresh(self) -> None:
        self._due = False
        if fresh := self.take():
            self._write(fresh)

    def _log(self, key: tuple[int, str, int], lines: CapturedLines) -> StepLog:
        began_at, dropped, text = lines.take()
        work, step, attempt = key
        return StepLog(self._number, work, step, attempt, began_at, dropped, text)


class StepLogCapture:
    """One attempt at a step, as the log sees it."""

    __slots__ = ("_talk", "_work")

    def __init__(self, talk: RunStepLogs, work: Work) -> None:
        self._talk = talk
        self._work = work

    def keep_line(self, line: bytes) -> None:
        self._talk.keep(self._work, line)
