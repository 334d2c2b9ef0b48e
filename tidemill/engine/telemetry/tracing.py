"""Tracing: enqueue, claim, run and whatever follows as one OpenTelemetry trace.

A job carries the trace of whoever enqueued it in its options, as a W3C `traceparent`. The worker that claims it
continues that trace: a span for the time in its hands before the start, one for the run; jobs that the task enqueues
continue from there. Without a tracer provider no spans are made, and a trace that comes along is still handed on.

Your program sets the provider up as it likes. `configure_tracing` does so for Tidemill's own commands when the usual
variables of OpenTelemetry ask for it and the extra `tidemill[otel]` is installed.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import msgspec
import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidemill.core.job import ClaimedJob, Finish, JobOptions, NewJob, Requeue
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.telemetry.meter import outcome_of
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.tracing")

Ended = TypeVar("Ended", bound=Finish | Requeue)

_tracer = trace.get_tracer("tidemill", VERSION)
_format = TraceContextTextMapPropagator()


def is_tracing() -> bool:
    """Whether spans go anywhere: somebody has set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def current_trace() -> str | None:
    """The `traceparent` of the code that is running, if it is traced."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    _format.inject(carrier)
    return carrier.get("traceparent")


def enqueueing(job: NewJob) -> AbstractContextManager[NewJob]:
    """A span for as long as it takes to store a job; gives the job with its trace in it."""
    if not is_tracing():
        return nullcontext(carrying(job, current_trace()))
    return _enqueueing(job)


@contextmanager
def enqueueing_many(many: ManyJobs) -> Iterator[ManyJobs]:
    """The same for many jobs: they all continue one trace."""
    with _sending(many.task.name, many.task.options.queue, jobs=len(many.arguments)) as parent:
        yield many if parent is None else many.carrying(parent)


def carrying(job: NewJob, parent: str | None) -> NewJob:
    """The job with a trace to continue."""
    if parent is None:
        return job
    return msgspec.structs.replace(job, options=with_trace(job.options, parent))


def with_trace(options: JobOptions | None, parent: str) -> JobOptions:
    """The options with a trace to continue."""
    return msgspec.structs.replace(options or JobOptions(), trace=parent)


async def run_traced(
    claim: ClaimedJob, parent: str | None, held: float, worker: str, run: Callable[[], Awaitable[Ended]]
) -> Ended:
    """One attempt within its trace; it has been in the worker's hands for `held` seconds."""
    above = context_of(parent)
    if not is_tracing():
        token = otel_context.attach(above)
        try:
            return await run()
        finally:
            otel_context.detach(token)
    about = _about(claim.task, claim.queue) | {
        "tidemill.job.id": claim.id,
        "tidemill.job.attempt": claim.attempt,
        "tidemill.worker": worker,
    }
    taken = time.time_ns() - int(held * 1e9)
    waiting = _tracer.start_span(
        f"claim {claim.task}", above, kind=SpanKind.CONSUMER, attributes=about, start_time=taken
    )
    waiting.end()
    below = trace.set_span_in_context(waiting, above)
    with _tracer.start_as_current_span(f"run {claim.task}", below, kind=SpanKind.CONSUMER, attributes=about) as span:
        ended = await run()
        _tell(span, ended)
        return ended


@contextmanager
def continuing(parent: str | None) -> Iterator[None]:
    """Let the code in the block continue a trace: for a child process that runs an isolated task."""
    if parent is None:
        yield
        return
    token = otel_context.attach(context_of(parent))
    try:
        yield
    finally:
        otel_context.detach(token)


def context_of(parent: str | None) -> otel_context.Context:
    """A fresh context that continues a trace; a `traceparent` that cannot be read begins a new one."""
    empty = otel_context.Context()
    return empty if parent is None else _format.extract({"traceparent": parent}, empty)


def configure_tracing(role: str, environ: dict[str, str] | None = None) -> Callable[[], None]:
    """Send spans where OpenTelemetry's variables say, if they say anything; returns what to do at the end.

    OTEL_TRACES_EXPORTER is `otlp`, `console` or `none`; OTEL_EXPORTER_OTLP_ENDPOINT alone means `otlp`.
    """
    environ = dict(os.environ) if environ is None else environ
    wanted = environ.get("OTEL_TRACES_EXPORTER") or (
        "otlp" if any(environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT") for kind in ("", "TRACES_")) else "none"
    )
    if wanted == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or is_tracing():
        return _nothing
    if wanted not in ("otlp", "console"):
        log.warning("no traces: OTEL_TRACES_EXPORTER is not otlp, console or none", value=wanted)
        return _nothing
    try:
        provider = _provider(role, wanted)
    except ImportError as error:
        log.warning("no traces: install tidemill[otel]", missing=error.name)
        return _nothing
    trace.set_tracer_provider(provider)
    log.debug("traces are exported", to=wanted)
    return provider.shutdown


def _provider(role: str, wanted: str) -> Any:
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    if wanted == "otlp":
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        exporter = otlp.OTLPSpanExporter()
    else:
        exporter = export.ConsoleSpanExporter()
    # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes before ours.
    named = resources.Resource({"service.name": f"tidemill-{role}"}).merge(resources.OTELResourceDetector().detect())
    provider = sdk.TracerProvider(resource=resources.Resource.create().merge(named))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider


def _nothing() -> None:
    """There is nothing to do at the end."""


@contextmanager
def _enqueueing(job: NewJob) -> Iterator[NewJob]:
    with _sending(job.task, job.queue) as parent:
        yield carrying(job, parent)


@contextmanager
def _sending(task: str, queue: str, **more: Any) -> Iterator[str | None]:
    if not is_tracing():
        yield current_trace()
        return
    about = _about(task, queue) | {f"tidemill.{name}": value for name, value in more.items()}
    with _tracer.start_as_current_span(f"enqueue {task}", kind=SpanKind.PRODUCER, attributes=about):
        yield current_trace()


def _about(task: str, queue: str) -> dict[str, Any]:
    return {"messaging.system": "tidemill", "messaging.destination.name": queue, "tidemill.task": task}


def _tell(span: trace.Span, ended: Finish | Requeue) -> None:
    """Say on a span how the attempt ended."""
    outcome = outcome_of(ended)
    span.set_attribute("tidemill.outcome", outcome)
    if outcome in ("failed", "retried"):
        span.set_status(Status(StatusCode.ERROR, ended.note or outcome))
