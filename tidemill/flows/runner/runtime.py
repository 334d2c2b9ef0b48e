"""What the runs of a workflow are surrounded with, in this process.

    runtime = BasicRuntime(Tracing)                     decorators of `tidemill.engine.runs.adapters`, innermost first
    flow = Article(runtime=runtime)

    with runtime.registering():                         workflows that are made here get it
        flow = Article()

Runs in memory need nothing to be launched; the methods are there for programs that launch and destroy a runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tidemill.engine.runs.adapters import AdapterDecorator
from tidemill.engine.runs.control_loop import Adapter


class BasicRuntime:
    """Runs in this process, each with these decorators around it."""

    def __init__(self, *decorators: AdapterDecorator) -> None:
        self._decorators = decorators
        self.is_launched = True

    def around(self, run: Adapter, name: str) -> Adapter:
        """What a run's loop talks to."""
        for decorate in self._decorators:
            run = decorate(run, name)
        return run

    @contextmanager
    def registering(self) -> Iterator[BasicRuntime]:
        """Workflows that are made inside of this block have this runtime."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    async def launch(self) -> None:
        """Nothing need be started for runs in memory."""

    async def destroy(self) -> None:
        """Nothing need be ended: runs end by themselves or are cancelled."""

    def launch_sync(self) -> None:
        """The same as `launch`."""

    def destroy_sync(self) -> None:
        """The same as `destroy`."""


basic_runtime = BasicRuntime()
_current: ContextVar[BasicRuntime] = ContextVar("tidemill_runtime", default=basic_runtime)


def get_current_runtime() -> BasicRuntime:
    """The runtime of workflows that are made here."""
    return _current.get()
