"""The trace of a run: a span for each attempt of a step, below the step whose event it takes.

A run continues the trace of the code that started it, which is stored with its origin: in every process that drives
it, after a crash and after idle time. A step that takes the events of several steps has links to all of them, as far as
they ran in this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from opentelemetry import context as otel_context, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from tidemill.core.codec import decode
from tidemill.core.jobs.job import Origin
from tidemill.engine.telemetry.tracing import about_work, context_of, current_trace, is_tracing, traceparent_of, tracer

MOST_EVENTS = 256


@contextmanager
def starting(what: Any) -> Iterator[None]:
    """A span for starting a run of a workflow or dag."""
    if not is_tracing():
        yield
        return
    name = what if isinstance(what, str) else getattr(what, "name", None) or getattr(what, "__name__", None)
    name = str(name or type(what).__name__)
    with tracer().start_as_current_span(f"start {name}", kind=SpanKind.PRODUCER, attributes=about_work(name)):
        yield


def traced_origin(origin: Origin) -> Origin:
    """The origin of a run with the trace of the code that starts it."""
    parent = current_trace()
    return origin if parent is None else msgspec.structs.replace(origin, trace=parent)


def trace_in(origin: bytes | None) -> str | None:
    """The trace that a run with this origin continues."""
    return None if origin is None or b'"trace"' not in origin else decode(origin, Origin).trace


class RunTrace:
    """The spans of one run in this process."""

    def __init__(self, name: str, number: int, parent: str | None) -> None:
        self._name = name
        self._number = number
        self._parent = parent
        self._open: dict[int, Span] = {}
        # The events are kept, because Python reuses the id of a freed object.
        self._makers: dict[int, tuple[Any, SpanContext]] = {}

    def begin(self, work: int, step: str, attempt: int, given: Any) -> None:
        """Begin the span of an attempt in the context of the calling task; `given` is the input of the step."""
        if not is_tracing():
            otel_context.attach(context_of(self._parent))
            return
        makers = self._makers_of(given)
        about = about_work(self._name) | {
            "tidemill.run.id": self._number,
            "tidemill.step": step,
            "tidemill.step.attempt": attempt,
        }
        span = tracer().start_span(
            f"step {self._name}.{step}",
            self._below(makers),
            kind=SpanKind.INTERNAL,
            attributes=about,
            links=[Link(each) for each in makers] if len(makers) > 1 else None,
        )
        self._suspend(work)
        self._open[work] = span
        otel_context.attach(trace.set_span_in_context(span))

    def end(self, work: int, events: Iterable[Any], error: str | None) -> None:
        """End the span of an attempt, and note which step its events are of."""
        span = self._open.pop(work, None)
        if span is None:
            return
        for event in events:
            self._makers[id(event)] = event, span.get_span_context()
        while len(self._makers) > MOST_EVENTS:
            del self._makers[next(iter(self._makers))]
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end()

    def close(self) -> None:
        """End the spans of steps that are suspended: each has another one when it goes on."""
        for work in list(self._open):
            self._suspend(work)

    def _suspend(self, work: int) -> None:
        span = self._open.pop(work, None)
        if span is not None:
            span.set_attribute("tidemill.step.suspended", True)
            span.end()

    def parent_of(self, given: Any) -> str | None:
        """The trace that a job of a step with this input continues."""
        return traceparent_of(self._below(self._makers_of(given))) or self._parent

    def _below(self, makers: list[SpanContext]) -> otel_context.Context:
        if len(makers) == 1:
            return trace.set_span_in_context(trace.NonRecordingSpan(makers[0]), otel_context.Context())
        return context_of(self._parent)

    def _makers_of(self, given: Any) -> list[SpanContext]:
        found = (self._makers.get(id(event)) for event in _events_in(given))
        return list({maker[1].span_id: maker[1] for maker in found if maker is not None}.values())


def _events_in(given: Any) -> Iterator[Any]:
    """The events of the input of a step: one, a list of them, or some for each parameter."""
    if isinstance(given, dict):
        for each in given.values():
            yield from _events_in(each)
    elif isinstance(given, list | tuple):
        yield from given
    else:
        yield given
