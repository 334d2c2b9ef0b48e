"""Decorators of a run's adapter: each wraps another adapter and adds one thing to it.

    recording = Recording(adapter)          keeps every tick and every command, in order
    traced = Tracing(adapter, "Article")    an OpenTelemetry span for the run, and one for each piece of work

The control loop does not know them. The wrapped adapter still decides when a tick is stored, so a decorator sees the
commands of a tick only after that tick has been journaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from tidemill.core.ticks import Command, Completed, EndRun, Resumed, RunWork, Started, StopWork, Tick
from tidemill.engine.runs.control_loop import Adapter, RunLoop
from tidemill.version import VERSION

#: Makes an adapter of an adapter; the name is that of what runs.
AdapterDecorator = Callable[[Adapter, str], Adapter]


class ForwardingAdapter:
    """An adapter that forwards everything: the base of decorators."""

    def __init__(self, inner: Adapter, name: str = "") -> None:
        self.inner = inner
        self.name = name

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        self.inner.journal(loop, ticks, commands)

    def execute(self, loop: RunLoop, command: Command) -> None:
        self.inner.execute(loop, command)


class Recording(ForwardingAdapter):
    """Records the journaled ticks, the executed commands, and both in one sequence."""

    def __init__(self, inner: Adapter, name: str = "") -> None:
        super().__init__(inner, name)
        self.ticks: list[Tick] = []
        self.commands: list[Command] = []
        self.line: list[Tick | Command] = []

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        self.ticks += ticks
        self.line += ticks
        super().journal(loop, ticks, commands)

    def execute(self, loop: RunLoop, command: Command) -> None:
        self.commands.append(command)
        self.line.append(command)
        super().execute(loop, command)


class Tracing(ForwardingAdapter):
    """A span for the run, from its start or load to its end, and inside it one for each piece of work."""

    def __init__(self, inner: Adapter, name: str, tracer: Tracer | None = None) -> None:
        super().__init__(inner, name)
        self._tracer = tracer or trace.get_tracer("tidemill", VERSION)
        self._run: Span | None = None
        self._works: dict[int, Span] = {}

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        for tick in ticks:
            if isinstance(tick, Started | Resumed) and self._run is None:
                self._run = self._tracer.start_span(f"run {self.name}", attributes={"tidemill.run.name": self.name})
            elif isinstance(tick, Completed) and (span := self._works.pop(tick.work, None)) is not None:
                _end(span, getattr(tick.outcome, "error", None))
        super().journal(loop, ticks, commands)

    def execute(self, loop: RunLoop, command: Command) -> None:
        if isinstance(command, RunWork):
            around = None if self._run is None else trace.set_span_in_context(self._run)
            span_attributes = {"tidemill.work.id": command.work, "tidemill.work.attempt": command.attempt}
            self._works[command.work] = self._tracer.start_span(
                command.name, context=around, attributes=span_attributes
            )
        elif isinstance(command, StopWork) and (span := self._works.pop(command.work, None)) is not None:
            span.add_event("stopped")
            span.end()
        elif isinstance(command, EndRun):
            for span in self._works.values():
                span.end()
            self._works.clear()
            if self._run is not None:
                self._run.set_attribute("tidemill.run.state", command.state)
                _end(self._run, command.error)
                self._run = None
        super().execute(loop, command)


def _end(span: Span, error: object) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, str(getattr(error, "message", error))))
    span.end()
