"""Runtimes: decorators around the runs of a workflow in this process.

    runtime = BasicRuntime(Tracing)                     decorators of `tidemill.engine.runs.adapters`, innermost first
    flow = Article(runtime=runtime)

    with runtime.registering():                         workflows that are created here use it
        flow = Article()

Runs in memory need no launch; `launch` and `destroy` exist for programs that call them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tidemill.engine.runs.adapters import AdapterDecorator
from tidemill.engine.runs.control_loop import Adapter


class BasicRuntime:
    """A runtime for runs in this process, each wrapped in these decorators."""

    def __init__(self, *decorators: AdapterDecorator) -> None:
        self._decorators = decorators
        self.is_launched = True

    def around(self, run: Adapter, name: str) -> Adapter:
        """Return the run, wrapped in the decorators, for the control loop."""
        for decorate in self._decorators:
            run = decorate(run, name)
        return run

    @contextmanager
    def registering(self) -> Iterator[BasicRuntime]:
        """Use this runtime for workflows that are created inside this block."""
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
    """Return the runtime for workflows that are created now."""
    return _current.get()
