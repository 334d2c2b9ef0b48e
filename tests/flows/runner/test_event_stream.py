"""What a run shows: its own events, requests for input, and what goes on inside."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.flows import names, shown, told
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepState,
    StepStateChanged,
    StopEvent,
    UnhandledEvent,
)
from tidemill.flows.errors import WorkflowRuntimeError


class Draft(Event):
    n: int = 0


class Progress(Event):
    done: int = 0


class Two(Workflow):
    @step
    async def a(self, ctx: Context, ev: StartEvent) -> Draft:
        ctx.write_event_to_stream(Progress(done=1))
        return Draft()

    @step
    async def b(self, ctx: Context, ev: Draft) -> StopEvent:
        ctx.write_event_to_stream(Progress(done=2))
        return StopEvent(result="over")


async def test_the_stream_has_what_steps_show_and_the_stop_event_at_its_end() -> None:
    handler = Two().run()
    events = await shown(handler)
    assert names(events) == ["Progress", "Progress", "StopEvent"]
    assert [events[0].done, events[1].done, events[2].result] == [1, 2, "over"]
    assert await handler == "over"


async def test_a_finished_run_can_still_be_streamed_once() -> None:
    handler = Two().run()
    await handler
    assert names(await shown(handler)) == ["Progress", "Progress", "StopEvent"]
    with pytest.raises(WorkflowRuntimeError):
        await shown(handler)


async def test_a_second_reader_of_the_stream_is_refused() -> None:
    handler = Two().run()
    first, second = await asyncio.gather(shown(handler), shown(handler), return_exceptions=True)
    assert isinstance(first, list)
    assert isinstance(second, WorkflowRuntimeError)


async def test_writes_are_seen_while_the_step_still_runs() -> None:
    go_on = asyncio.Event()

    class Telling(Workflow):
        @step
        async def a(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.write_event_to_stream(Progress(done=1))
            await go_on.wait()
            return StopEvent()

    handler = Telling().run()
    async for event in handler.stream_events():
        if isinstance(event, Progress):
            assert not handler.is_done()
            go_on.set()
    await handler


async def test_a_returned_request_for_input_is_shown_and_answered_by_a_step() -> None:
    class Question(InputRequiredEvent):
        text: str

    class Asking(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> Question:
            return Question(text="ok?")

        @step
        async def hear(self, ev: HumanResponseEvent) -> StopEvent:
            return StopEvent(result=ev.answer)

    flow = Asking()
    assert flow.validate() is True
    handler = flow.run()
    async for event in handler.stream_events():
        if isinstance(event, Question):
            assert event.text == "ok?"
            await handler.send_event(HumanResponseEvent(answer="yes"))
    assert await handler == "yes"


async def test_sent_requests_for_input_and_stop_events_are_not_shown_and_end_nothing() -> None:
    class Sending(Workflow):
        @step
        async def a(self, ctx: Context, ev: StartEvent) -> Draft:
            ctx.send_event(InputRequiredEvent())
            ctx.send_event(StopEvent(result="no"))
            return Draft()

        @step
        async def b(self, ev: Draft) -> StopEvent:
            await turns()
            return StopEvent(result="yes")

    handler = Sending().run()
    events = await shown(handler, internal=True)
    assert names(events).count("InputRequiredEvent") == 0
    assert [event.event_type for event in events if isinstance(event, UnhandledEvent)] == ["StopEvent"]
    assert await handler == "yes"


async def test_internal_events_tell_every_step_in_order() -> None:
    events = await shown(Two().run(), internal=True)
    assert told(events) == [
        "a:0 running StartEvent",
        "Progress",
        "a:0 not_running",
        "b:0 running Draft",
        "Progress",
        "b:0 not_running",
        "StopEvent",
    ]
    ended = events[2]
    assert isinstance(ended, StepStateChanged)
    assert ended.step_state is StepState.NOT_RUNNING
    assert ended.input_event_name == str(StartEvent)
    assert ended.output_event_name == str(Draft)
    assert events[0].output_event_name is None


async def test_internal_events_are_kept_from_those_who_do_not_ask() -> None:
    assert not any(isinstance(event, StepStateChanged) for event in await shown(Two().run()))


async def test_a_step_that_returns_nothing_says_so() -> None:
    class Quiet(Workflow):
        @step
        async def a(self, ctx: Context, ev: StartEvent) -> Draft | None:
            ctx.send_event(Draft())
            return None

        @step
        async def b(self, ev: Draft) -> StopEvent:
            return StopEvent()

    events = await shown(Quiet().run(), internal=True)
    over = next(
        event for event in events if isinstance(event, StepStateChanged) and event.step_state.value != "running"
    )
    assert over.output_event_name == str(type(None))


async def test_a_run_says_that_it_is_idle_after_asking() -> None:
    class Asking(Workflow):
        @step
        async def ask(self, ev: StartEvent) -> InputRequiredEvent:
            return InputRequiredEvent()

        @step
        async def hear(self, ev: HumanResponseEvent) -> StopEvent:
            return StopEvent()

    handler = Asking().run()
    seen = []
    async for event in handler.stream_events(expose_internal=True):
        seen.append(event)
        if type(event).__name__ == "WorkflowIdleEvent":
            await handler.send_event(HumanResponseEvent())
    assert told(seen) == [
        "ask:0 running StartEvent",
        "ask:0 not_running",
        "InputRequiredEvent",
        "WorkflowIdleEvent",
        "hear:0 running HumanResponseEvent",
        "hear:0 not_running",
        "StopEvent",
    ]


async def test_an_event_that_nobody_takes_is_told_and_the_run_is_idle_again() -> None:
    class Waiting(Workflow):
        @step
        async def a(self, ev: StartEvent) -> InputRequiredEvent:
            return InputRequiredEvent()

        @step
        async def b(self, ev: HumanResponseEvent) -> StopEvent:
            return StopEvent()

    handler = Waiting().run()
    seen = []
    async for event in handler.stream_events(expose_internal=True):
        seen.append(event)
        if type(event).__name__ == "WorkflowIdleEvent":
            first = names(seen).count("WorkflowIdleEvent") == 1
            await handler.send_event(Draft() if first else HumanResponseEvent())
    assert told(seen)[3:6] == ["WorkflowIdleEvent", "UnhandledEvent", "WorkflowIdleEvent"]
    lost = seen[4]
    assert (lost.event_type, lost.qualified_name) == ("Draft", f"{__name__}.Draft")
    assert (lost.step_name, lost.idle) == (None, True)


async def test_anything_may_be_written_to_the_stream() -> None:
    class Loose(Workflow):
        @step
        async def a(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.write_event_to_stream(None)
            return StopEvent()

    assert names(await shown(Loose().run())) == ["StopEvent"]


async def test_workers_are_numbered_from_the_lowest_free_slot() -> None:
    class Fan(Workflow):
        @step
        async def a(self, ctx: Context, ev: StartEvent) -> Draft | None:
            for n in range(3):
                ctx.send_event(Draft(n=n))
            return None

        @step(num_workers=2)
        async def b(self, ctx: Context, ev: Draft) -> StopEvent | None:
            await turns()
            return StopEvent() if ctx.collect_events(ev, [Draft] * 3) else None

    lines = [line for line in told(await shown(Fan().run(), internal=True)) if "not_running" not in line]
    assert lines[:4] == ["a:0 running StartEvent", "b:0 running Draft", "b:1 running Draft", "b:<enqueued> preparing"]
    assert lines[4] in ("b:0 running Draft", "b:1 running Draft")


async def test_a_verbose_run_prints_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    await Two(verbose=True).run(x=1)
    printed = capsys.readouterr().out.splitlines()
    assert "[a:0] started from StartEvent" in printed
    assert "[a:0] complete with Draft" in printed
    assert "[b:0] complete with StopEvent" in printed
    assert "[result] StopEvent(result='over')" in printed
