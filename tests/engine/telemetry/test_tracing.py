"""One trace from enqueue to claim to run to follow-ups, with OpenTelemetry's own SDK and its exporter in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util._once import Once

from tests.support import eventually, find_live, finished, running_scheduler, running_worker, value
from tests.support.streams import publish, running_stream
from tests.support.traced import alone, app as traced
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.codec import decode, encode
from tidemill.core.jobs.job import JobOptions
from tidemill.engine.telemetry.tracing import configure_tracing, current_trace, is_tracing
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task

ROOT = Path(__file__).resolve().parents[3]
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


class Spans:
    """What was exported so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    async def one(self, name: str) -> ReadableSpan:
        """The only span of this name, as soon as it has ended."""
        found = await eventually(lambda: self.named(name), what=f"a span {name!r}")
        assert len(found) == 1
        return found[0]


@pytest.fixture
def spans(_no_provider: None) -> Iterator[Spans]:
    """A tracer provider, set up as a program would do it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield Spans(exporter)
    provider.shutdown()


@pytest.fixture(autouse=True)
def _no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may set its provider once; every test is to be a process of its own."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr("tidemill.engine.telemetry.tracing._tracer", trace.ProxyTracer("tidemill"))


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return format(span.context.trace_id, "032x")


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None, f"{span.name} has no parent"
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_enqueue_claim_run_and_follow_ups_are_one_trace(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail")
    async def first() -> None:
        await app.enqueue(second, 7)

    @app.task(queue="mail")
    def second(number: int) -> None:
        app.jobs.enqueue_many_sync([third.call(), third.call()])

    @app.task(queue="mail")
    async def third() -> None: ...

    async with running_worker(app):
        with trace.get_tracer("test").start_as_current_span("request"):
            job = await app.enqueue(first)
        await finished(database, job.id)
        await eventually(lambda: len(spans.named("run third")) == 2)

    chain = ["request", "enqueue first", "claim first", "run first", "enqueue second", "claim second", "run second"]
    found = [await spans.one(name) for name in (*chain, "enqueue third")]
    for above, below in pairwise(found):
        assert parent_of(below) == id_of(above), f"{below.name} follows from {above.name}"
    for name in ("claim third", "run third"):
        assert {trace_of(span) for span in spans.named(name)} == {trace_of(found[0])}
    assert {parent_of(span) for span in spans.named("claim third")} == {id_of(found[-1])}


async def test_spans_say_what_they_are_about(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    async with running_worker(app) as worker:
        job = await app.enqueue(send)
        run = await spans.one("run send")
    sent, claim = await spans.one("enqueue send"), await spans.one("claim send")
    assert (sent.kind, claim.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CONSUMER)
    assert run.attributes is not None
    assert run.attributes["tidemill.job.id"] == job.id
    assert run.attributes["tidemill.job.attempt"] == 1
    assert run.attributes["tidemill.worker"] == worker.work.runner.worker
    assert run.attributes["tidemill.outcome"] == "succeeded"
    assert run.attributes["messaging.destination.name"] == "mail"
    assert run.status.status_code is not StatusCode.ERROR
    assert (sent.start_time or 0) <= (claim.start_time or 0) <= (run.start_time or 0)


async def test_every_attempt_is_a_span_and_failures_are_marked(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail", retry=app.retry(max_attempts=2, backoff="1ms"))
    async def broken() -> None:
        raise ValueError("no such address")

    async with running_worker(app):
        await finished(database, (await app.enqueue(broken)).id)
        runs = await eventually(lambda: len(found := spans.named("run broken")) == 2 and found)
    sent = await spans.one("enqueue broken")
    assert {trace_of(span) for span in runs} == {trace_of(sent)}
    assert [span.attributes["tidemill.outcome"] for span in runs] == ["retried", "failed"]
    assert all(span.status.status_code is StatusCode.ERROR for span in runs)
    assert "no such address" in str(runs[0].status.description)


async def test_a_cancelled_job_ends_its_span(app: App, database: Database, spans: Spans) -> None:
    started = asyncio.Event()

    @app.task(queue="mail")
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running_worker(app):
        job = await app.enqueue(endless)
        await asyncio.wait_for(started.wait(), 150)
        await app.jobs.cancel(job)
        run = await spans.one("run endless")
    assert run.attributes is not None
    assert run.attributes["tidemill.outcome"] == "cancelled"


async def test_a_schedules_job_begins_a_trace(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail", every=0.2)
    async def tick() -> None: ...

    async with running_worker(app), running_scheduler(app):
        await eventually(lambda: spans.named("run tick"))
    run = spans.named("run tick")[0]
    assert trace_of(run) in {trace_of(span) for span in spans.named("enqueue tick")}


async def test_the_trace_travels_in_the_jobs_options(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail", budget="1m")
    async def send() -> None: ...

    with trace.get_tracer("test").start_as_current_span("request"):
        request = current_trace()
        job = await app.enqueue(send)
    assert request is not None
    row = await find_live(database, job.id)
    assert row is not None
    options = decode(row["options"], JobOptions)
    assert options.budget == 60, "what the task says is kept"
    assert options.trace is not None
    assert options.trace.split("-")[1] == request.split("-")[1]


async def test_a_trace_is_handed_on_by_processes_without_a_provider(app: App, database: Database) -> None:
    """The worker in the middle knows nothing of tracing, and yet what follows belongs to the caller's trace."""

    @app.task(queue="mail")
    async def first() -> None:
        await app.enqueue(second)

    @app.task(queue="elsewhere")
    async def second() -> None: ...

    assert not is_tracing()
    job = await app.enqueue(first)
    await database.fetch("UPDATE tidemill.job SET options = $2 WHERE id = $1", job.id, _options(TRACEPARENT))
    async with running_worker(app, ["mail"]):
        await finished(database, job.id)
    options = await value(database, "SELECT options FROM tidemill.job WHERE task = 'second'")
    assert decode(options, JobOptions).trace == TRACEPARENT


async def test_without_a_provider_jobs_carry_nothing(app: App, database: Database) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    job = await app.enqueue(send)
    row = await find_live(database, job.id)
    assert row is not None
    assert row["options"] is None


class Judging(Plan, eligibility="judge"):
    @task
    async def look(self, ctx: Any) -> None: ...

    @task(after="look")
    def judge(self, ctx: Any) -> None:
        ctx.enqueue(alone.call())


async def test_a_message_of_a_stream_continues_the_trace_of_its_headers_in_every_task(
    database: Database, database_url: str, spans: Spans
) -> None:
    source = LogSource("posts", eligibilities=frozenset({"judge"}))
    await publish(database, "posts", ["one"], headers=encode({"traceparent": TRACEPARENT}))
    async with running_stream(Stream("s", plans=[Judging], sources=[source], engines=0), database_url):
        message, look, judge = [
            await spans.one(name) for name in ("message s/posts", "task Judging.look", "task Judging.judge")
        ]
        options = await eventually(lambda: value(database, "SELECT options->>'trace' FROM tidemill.job"))
    assert {trace_of(span) for span in (message, look, judge)} == {TRACE}
    assert format(parent_of(message), "016x") == TRACEPARENT.split("-")[2]
    assert parent_of(look) == parent_of(judge) == id_of(message)
    assert (message.attributes or {})["tidemill.message.attempt"] == 1
    assert options.split("-")[1:3] == [TRACE, format(id_of(judge), "016x")], "the job goes on from its task"


async def test_a_trace_that_cannot_be_read_harms_nobody(app: App, database: Database, spans: Spans) -> None:
    @app.task(queue="mail")
    async def send() -> str:
        return "done"

    job = await app.enqueue(send)
    await database.fetch("UPDATE tidemill.job SET options = $2 WHERE id = $1", job.id, _options("not a trace"))
    async with running_worker(app):
        row = await finished(database, job.id)
        run = await spans.one("run send")
    assert row["state"] == "succeeded"
    assert trace_of(run) != trace_of(await spans.one("enqueue send"))


async def test_an_isolated_task_continues_the_trace_in_its_own_process(database: Database, database_url: str) -> None:
    traced.declarations.configure(database_url=database_url, **PATIENT)
    job = await traced.enqueue("alone")
    await database.fetch("UPDATE tidemill.job SET options = $2 WHERE id = $1", job.id, _options(TRACEPARENT, "process"))
    async with running_worker(traced, ["mail"]):
        row = await finished(database, job.id)
    await traced.close()
    assert decode(row["result"]) == TRACEPARENT


def test_the_usual_variables_set_up_an_exporter_for_our_commands() -> None:
    program = (
        "from tidemill.engine.telemetry.tracing import configure_tracing, _tracer\n"
        "end = configure_tracing('worker')\n"
        "with _tracer.start_as_current_span('hello'): pass\n"
        "end()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "shop", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    span = json.loads(told.stdout[told.stdout.index("{") :])
    assert span["name"] == "hello"
    assert span["resource"]["attributes"]["service.name"] == "shop"


@pytest.mark.parametrize(
    "environ", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}]
)
def test_nothing_is_set_up_unless_it_is_asked_for(environ: dict[str, str]) -> None:
    configure_tracing("worker", environ)()
    assert not is_tracing()


def test_a_provider_that_the_program_has_set_stays(spans: Spans) -> None:
    before = trace.get_tracer_provider()
    configure_tracing("worker", {"OTEL_TRACES_EXPORTER": "console"})()
    assert trace.get_tracer_provider() is before


def _options(parent: str, isolation: str | None = None) -> bytes:
    return json.dumps({"trace": parent, **({"isolation": isolation} if isolation else {})}).encode()
