"""Tracing: enqueue, claim, run and everything that follows as one OpenTelemetry trace.

A job carries the trace of the enqueuing code in its options, as a W3C `traceparent`. The worker that claims it
continues that trace: a span for the time between claim and start, one for the run; jobs that the task enqueues continue
from there. Without a tracer provider no spans are created, but a received trace is still passed on.

Your program configures the provider. `configure_tracing` does it for Tidemill's own commands, if the standard variables
of OpenTelemetry are set and the extra `tidemill[otel]` is installed.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import msgspec
import structlog
from opentelemetry import context as otel_context, trace
from opentelemetry.trace import ProxyTracerProvider, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tidemill.core.jobs.job import ClaimedJob, Finish, JobOptions, NewJob, Requeue
from tidemill.engine.jobs.bulk import ManyJobs
from tidemill.engine.telemetry.meter import outcome_of
from tidemill.version import VERSION

log = structlog.get_logger("tidemill.tracing")

Ended = TypeVar("Ended", bound=Finish | Requeue)

_tracer = trace.get_tracer("tidemill", VERSION)
_format = TraceContextTextMapPropagator()


def is_tracing() -> bool:
    """Whether spans are exported: a tracer provider is set."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def current_trace() -> str | None:
    """The `traceparent` of the running code, if it is traced."""
    if not trace.get_current_span().get_span_context().is_valid:
        return None
    return traceparent_of(None)


def traceparent_of(within: otel_context.Context | None) -> str | None:
    """The `traceparent` of a context; None stands for the current one."""
    carrier: dict[str, str] = {}
    _format.inject(carrier, within)
    return carrier.get("traceparent")


def current_ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, if the running code is traced."""
    now = trace.get_current_span().get_span_context()
    return (format(now.trace_id, "032x"), format(now.span_id, "016x")) if now.is_valid else None


def tracer() -> trace.Tracer:
    """The tracer of all spans of ours."""
    return _tracer


def about_work(name: str) -> dict[str, Any]:
    """What spans of a workflow or dag say of it."""
    return {"messaging.system": "tidemill", "tidemill.workflow": name}


def enqueueing(job: NewJob) -> AbstractContextManager[NewJob]:
    """A span for storing a job; yields the job with its trace."""
    if not is_tracing():
        return nullcontext(carrying(job, current_trace()))
    return _enqueueing(job)


@contextmanager
def enqueueing_many(many: ManyJobs) -> Iterator[ManyJobs]:
    """The same for many jobs, which all continue one trace."""
    names = ", ".join(task.name for task in many.tasks)
    queues = ", ".join(dict.fromkeys(task.options.queue for task in many.tasks))
    with _sending(names, queues, jobs=len(many.calls)) as parent:
        if parent is not None:
            many.carry(parent)
        yield many


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
    """Run one attempt within its trace; the worker has held it for `held` seconds."""
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
        _record_outcome(span, ended)
        return ended


@contextmanager
def continuing(parent: str | None) -> Iterator[None]:
    """Continue a trace in the block: for a child process that runs an isolated task."""
    if parent is None:
        yield
        return
    token = otel_context.attach(context_of(parent))
    try:
        yield
    finally:
        otel_context.detach(token)


@contextmanager
def message_span(parent: str | None, stream: str, source: str, place: str, attempt: int) -> Iterator[None]:
    """Continue the trace of a message of a stream in the block, with a span for this attempt."""
    if not is_tracing():
        with continuing(parent):
            yield
        return
    about = {
        "messaging.operation": "process",
        "messaging.destination.name": source,
        "tidemill.stream": stream,
        "tidemill.message": place,
        "tidemill.message.attempt": attempt,
    }
    name = f"message {stream}/{source}"
    with _tracer.start_as_current_span(name, context_of(parent), kind=SpanKind.CONSUMER, attributes=about):
        yield


def task_span(plan: str, task: str) -> AbstractContextManager[Any]:
    """A span for one task of a plan."""
    return _tracer.start_as_current_span(f"task {plan}.{task}", attributes={"tidemill.plan": plan})


def alert_span(name: str, traces: Sequence[str], about: Mapping[str, Any]) -> str | None:
    """A span for an alert, below the first of these traces and linked to the others; returns its `traceparent`."""
    above = context_of(traces[0] if traces else None)
    span = _tracer.start_span(name, above, attributes=about, links=_links(traces))
    span.end()
    return traceparent_of(trace.set_span_in_context(span, above))


def build_span(pipeline: str, stage: str, entity: str, traces: Sequence[str]) -> AbstractContextManager[str | None]:
    """Continue the trace of the inputs of a state in the block, with a span for its build: below the first of these
    traces, linked to the others. Yields the trace that builds from its outputs continue."""
    return _build_span(pipeline, stage, entity, traces) if is_tracing() else nullcontext()


@contextmanager
def _build_span(pipeline: str, stage: str, entity: str, traces: Sequence[str]) -> Iterator[str | None]:
    about = {"tidemill.pipeline": pipeline, "tidemill.stage": stage, "tidemill.entity": entity}
    links, above = _links(traces), context_of(traces[0] if traces else None)
    with _tracer.start_as_current_span(f"build {pipeline}/{stage}", above, attributes=about, links=links):
        yield current_trace()


@contextmanager
def request_span(parent: str | None, method: str, path: str) -> Iterator[None]:
    """Continue the trace of a request in the block, with a span for it."""
    if not is_tracing():
        with continuing(parent):
            yield
        return
    about = {"http.request.method": method, "url.path": path}
    with _tracer.start_as_current_span(method, context_of(parent), kind=SpanKind.SERVER, attributes=about):
        yield


def _links(traces: Sequence[str]) -> list[trace.Link]:
    """Links to all of these traces but the first."""
    return [trace.Link(trace.get_current_span(context_of(each)).get_span_context()) for each in traces[1:]]


def context_of(parent: str | None) -> otel_context.Context:
    """A fresh context that continues a trace; an invalid `traceparent` begins a new one."""
    empty = otel_context.Context()
    return empty if parent is None else _format.extract({"traceparent": parent}, empty)


def configure_tracing(role: str, environ: dict[str, str] | None = None) -> Callable[[], None]:
    """Export spans as OpenTelemetry's variables say, if they are set; returns a function to call at exit.

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
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override ours.
    named = resources.Resource({"service.name": f"tidemill-{role}"}).merge(resources.OTELResourceDetector().detect())
    provider = sdk.TracerProvider(resource=resources.Resource.create().merge(named))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider


def _nothing() -> None:
    """Do nothing at exit."""


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


def _record_outcome(span: trace.Span, ended: Finish | Requeue) -> None:
    """Record on a span how the attempt ended."""
    outcome = outcome_of(ended)
    span.set_attribute("tidemill.outcome", outcome)
    if outcome in ("failed", "retried"):
        span.set_status(Status(StatusCode.ERROR, ended.note or outcome))
