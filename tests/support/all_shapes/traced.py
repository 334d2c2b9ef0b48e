"""An application whose work goes through all shapes: job, run, step, child, message, job, state, message, alert.

Its processes write their spans into the folder of TRACED_SPANS; the first worker that has the job is killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, momentary
from tidemill.pipelines import Pipeline
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task

FOLDER = Path(os.environ["TRACED_SPANS"])
log = structlog.get_logger("traced")


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with (FOLDER / f"{os.getpid()}.jsonl").open("a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\n")
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(provider)

app = App("traced")


@app.task(retry=app.retry(5, backoff="50ms"))
async def begin(number: int) -> int:
    killed = FOLDER / "killed"
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return (await app.start(Chain, number=number)).id


class Asked(StartEvent):
    number: int


class Half(Event):
    number: int


class Part(Event):
    number: int


class Go(Event):
    """What the run waits for, while no process runs."""


class Leaf(Workflow[Asked, int]):
    @step
    async def tell(self, ctx: Context, ev: Asked) -> StopEvent:
        log.info("told", number=ev.number)
        await app.streams.publish("readings", {"number": ev.number})
        return StopEvent(result=ev.number)


class Chain(Workflow[Asked, int]):
    @step
    async def split(self, ctx: Context, ev: Asked) -> list[Half]:
        return [Half(number=ev.number), Half(number=ev.number)]

    @step
    async def halve(self, ctx: Context, ev: Half) -> Part:
        return Part(number=ev.number)

    @step
    async def join(self, ctx: Context, parts: list[Part]) -> StopEvent:
        log.info("joined")
        await ctx.wait_for_event(Go)
        return StopEvent(result=await ctx.child(Leaf, number=parts[0].number))


app.workflow(Leaf)
app.workflow(Chain)


class Note(Plan, eligibility="note"):
    @task
    async def note(self, ctx: Any) -> None:
        ctx.write_state(f"noted/{ctx.value['number']}.txt", "noted", pipeline="papers")
        ctx.enqueue(store.call(number=ctx.value["number"]))


@app.task
async def store(number: int) -> None:
    await app.states("papers").write("stored/{number}.txt", {"number": str(number)}, "stored")


papers = Pipeline("papers", root=os.environ["SHAPES_ROOT"])


@papers.stage(input=["noted/{number}.txt", "stored/{number}.txt"], output="both/{number}.txt")
def both(entity: Any, noted: str, stored: str) -> str:
    return f"{noted} and {stored}"


@papers.stage(input="both/{number}.txt", output="told/{number}.txt")
async def told(entity: Any, text: str) -> str:
    log.info("told of state", number=entity.number)
    await app.streams.publish("stored", {"id": f"n{entity.number}", "number": int(entity.number)})
    return text


app.pipeline(papers)


app.stream(Stream("readings", plans=[Note], engines=0, sources=[LogSource("readings", eligibilities={"note"})]))


class Seen:
    def on_event(self, state: Any, event: Any) -> None:
        state.numbers = [{"id": str(event["number"]), "at": event.at}]


app.monitor(
    Monitor(
        "stored",
        source=LogSource("stored"),
        entity=lambda event: f"number {event['number']}",
        fold=Seen,
        idle=0.05,
        triggers=[momentary("seen", of=lambda state: state.numbers or [])],
    )
)
