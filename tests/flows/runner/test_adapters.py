"""What can be put around a run: a recording of it, a trace of it, or anything of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.waiting import turns
from tidemill.core.program import fold
from tidemill.core.ticks import Command, Completed, EndRun, Received, RunWork, Started, StopWork, Tick
from tidemill.engine.runs.adapters import ForwardingAdapter, Recording, Tracing
from tidemill.engine.runs.control_loop import Adapter, RunLoop
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_none
from tidemill.flows.encoding.snapshot import encode_state
from tidemill.flows.errors import WorkflowConfigurationError
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.runner.runtime import BasicRuntime, get_current_runtime
from tidemill.flows.runner.state_store import DictState
from tidemill.flows.testing import WorkflowTestRunner


class Part(Event):
    n: int


class Done(Event):
    n: int


class Sum(Workflow):
    @step
    async def split(self, ev: StartEvent) -> list[Part]:
        return [Part(n=1), Part(n=2)]

    @step(retry_policy=retry_policy(wait=wait_none(), stop=stop_after_attempt(2)))
    async def work(self, ctx: Context, ev: Part) -> Done:
        await ctx.store.set(f"seen{ev.n}", True)
        if ev.n == 2 and ctx.retry_info().retry_number == 0:
            raise ValueError("once")
        return Done(n=ev.n)

    @step
    async def join(self, parts: list[Done]) -> StopEvent:
        return StopEvent(result=sum(part.n for part in parts))


class Spans:
    """Spans that stay in memory."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self._tracer = provider.get_tracer("test")

    def trace(self, run: Adapter, name: str) -> Adapter:
        return Tracing(run, name, self._tracer)

    def finished(self) -> dict[str, list[ReadableSpan]]:
        found: dict[str, list[ReadableSpan]] = {}
        for span in self._kept.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


class Simple(Workflow):
    @step
    async def first(self, ev: StartEvent) -> Part:
        return Part(n=1)

    @step(retry_policy=retry_policy(wait=wait_none(), stop=stop_after_attempt(2)))
    async def second(self, ctx: Context, ev: Part) -> StopEvent:
        if ctx.retry_info().retry_number == 0:
            raise ValueError("once")
        return StopEvent(result=ev.n)


async def test_a_recording_folds_to_the_state_of_the_run() -> None:
    result = await WorkflowTestRunner(Sum()).run()
    assert result.result == 3
    recording, context = result.recording, result.ctx
    assert recording is not None
    assert context is not None
    assert context._run is not None
    program = FlowProgram(declared(Sum()).topology)
    begun = program.begin()
    begun.store = DictState()
    assert encode_state(fold(program, recording.ticks, begun)) == encode_state(context._run.loop.state)


async def test_every_command_comes_after_the_tick_that_caused_it() -> None:
    recording = (await WorkflowTestRunner(Simple()).run()).recording
    assert recording is not None
    line = [type(each).__name__ for each in recording.line if type(each).__name__ != "Publish"]
    assert line == ["Started", "SetTimer", "RunWork", *("Completed", "RunWork") * 2, "Completed", "EndRun"]
    assert [tick for tick in recording.line if isinstance(tick, Tick)] == recording.ticks
    assert [command for command in recording.line if isinstance(command, Command)] == recording.commands


async def test_a_run_is_a_trace_with_a_span_for_each_attempt() -> None:
    spans = Spans()
    assert await Simple(runtime=BasicRuntime(spans.trace), workflow_name="simple").run() == 1
    finished = spans.finished()
    (run,) = finished["run simple"]
    assert run.attributes is not None
    assert run.attributes["tidemill.run.state"] == "succeeded"
    failed, succeeded = finished["second"]
    assert not failed.status.is_ok
    assert failed.status.description == "once"
    assert succeeded.status.is_ok or succeeded.status.status_code.name == "UNSET"
    attempts = [span.attributes["tidemill.work.attempt"] for span in (failed, succeeded) if span.attributes]
    assert attempts == [1, 2]
    for span in (*finished["first"], failed, succeeded):
        assert span.parent is not None
        assert run.context is not None
        assert span.parent.span_id == run.context.span_id


async def test_the_span_of_work_that_is_stopped_ends_with_the_run() -> None:
    class Slow(Workflow):
        @step
        async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(HumanResponseEvent)
            return StopEvent()

    spans = Spans()
    handler = Slow(runtime=BasicRuntime(spans.trace)).run()
    await asyncio.sleep(0)
    await handler.cancel_run()
    finished = spans.finished()
    assert [event.name for event in finished["wait"][0].events] == ["stopped"]
    assert len(finished) == 2


class Late(ForwardingAdapter):
    """Journals when it is told to."""

    def __init__(self, inner: Adapter) -> None:
        super().__init__(inner)
        self.held: list[tuple[RunLoop, Sequence[Tick], Sequence[Command]]] = []

    def journal(self, loop: RunLoop, ticks: Sequence[Tick], commands: Sequence[Command]) -> None:
        self.held.append((loop, ticks, commands))

    def write(self) -> None:
        self.inner.journal(*self.held.pop(0))


async def test_decorators_go_around_each_other_and_one_may_hold_ticks_back() -> None:
    made: list[Any] = []

    def hold(run: Adapter, name: str) -> Adapter:
        made.append(Late(run))
        return made[-1]

    def record(run: Adapter, name: str) -> Adapter:
        made.append(Recording(run))
        return made[-1]

    handler = Simple(runtime=BasicRuntime(hold, record)).run()
    late, recording = made
    await turns()
    assert [type(tick) for tick in recording.ticks] == [Started]
    assert recording.commands == [], "what follows from a tick waits until the tick is written"
    while not handler.is_done():
        late.write()
        await turns()
    assert await handler == 1
    assert isinstance(recording.commands[-1], EndRun)
    assert [type(tick) for tick in recording.ticks].count(Completed) == 3
    assert not [command for command in recording.commands if isinstance(command, StopWork)]


async def test_workflows_made_in_a_runtimes_block_have_it() -> None:
    runtime = BasicRuntime()
    with runtime.registering():
        assert get_current_runtime() is runtime
        inside = Simple()
    assert inside.runtime is runtime
    assert Simple().runtime is get_current_runtime() is not runtime
    await runtime.launch()
    assert await inside.run() == 1
    await runtime.destroy()


def test_something_that_is_no_runtime_is_refused() -> None:
    with pytest.raises(WorkflowConfigurationError, match="pass a BasicRuntime"):
        Simple(runtime="fast")


async def test_a_recording_has_events_from_outside() -> None:
    class Asks(Workflow):
        @step
        async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=(await ctx.wait_for_event(HumanResponseEvent)).text)

    made: list[Recording] = []

    def record(run: Adapter, name: str) -> Adapter:
        made.append(Recording(run))
        return made[-1]

    handler = Asks(runtime=BasicRuntime(record)).run()
    await asyncio.sleep(0)
    await handler.send_event(HumanResponseEvent(text="hello"))
    assert await handler == "hello"
    assert [tick.event.text for tick in made[0].ticks if isinstance(tick, Received)] == ["hello"]
    assert [command.name for command in made[0].commands if isinstance(command, RunWork)] == ["wait"]
