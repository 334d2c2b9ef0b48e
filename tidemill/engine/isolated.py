"""The child process of an isolated task: runs the orders that its parent sends, one at a time.

Started by `isolation.Children` as `python -m tidemill.engine.isolated APP`; not for use by hand.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.retry import error_lineage
from tidemill.engine.context import RunningJob, enter_job
from tidemill.engine.isolation import Order, Word
from tidemill.engine.load import load_app
from tidemill.engine.task import encode_result

_PR_SET_PDEATHSIG = 1


class ReportingJob(RunningJob):
    """The job as the child's task sees it: what it reports goes up the pipe at once."""

    __slots__ = ("_say",)

    def __init__(self, order: Order, say: Callable[[Word], None]) -> None:
        super().__init__(order.id, order.attempt, order.queue, order.task)
        self._say = say

    def report(self, progress: float | None = None, message: str | None = None) -> None:
        super().report(progress, message)
        self._say(Word(beat=True, progress=self.progress, note=message))

    def beat(self) -> None:
        super().beat()
        self._say(Word(beat=True))


def serve(app_path: str) -> None:
    """Run orders from stdin until the parent is gone."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mouth = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def say(word: Word) -> None:
        mouth.write(encode(word) + b"\n")

    tasks = load_app(app_path).tasks
    for line in sys.stdin.buffer:
        order: Order = decode(line, Order)
        try:
            task = tasks.require(order.task)
            kwargs = task.signature.load(bytes(order.args))
            enter_job(ReportingJob(order, say))
            result = encode_result(task.name, task.function(**kwargs))
        except Exception as error:  # noqa: BLE001 - whatever a task raises is told to the parent
            say(
                Word(
                    lineage=error_lineage(type(error)),
                    message=getattr(error, "reason", None) or str(error),
                    trace="".join(traceback.format_exception(error)),
                    seconds=getattr(error, "seconds", 0.0),
                )
            )
        else:
            say(Word(ok=True, result=msgspec.Raw(result)))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.argv[1])
