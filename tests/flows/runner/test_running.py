"""Running a workflow: how a run begins, what it gives, what its handler tells."""

from __future__ import annotations

import asyncio
import threading

import pytest
from pydantic import ValidationError

from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent
from tidemill.flows.errors import WorkflowConfigurationError, WorkflowRuntimeError, WorkflowValidationError


class Draft(Event):
    text: str


class Writing(Workflow):
    @step
    async def write(self, ev: StartEvent) -> Draft:
        return Draft(text=ev.topic)

    @step
    async def publish(self, ev: Draft) -> StopEvent:
        return StopEvent(result=f"on {ev.text}")


class Topic(StartEvent):
    name: str


class Published(StopEvent):
    title: str


class Custom(Workflow):
    @step
    async def write(self, ev: Topic) -> Published:
        return Published(title=ev.name)


async def test_the_keywords_of_run_become_the_start_event() -> None:
    assert await Writing().run(topic="tides") == "on tides"


async def test_a_start_event_can_be_given_as_it_is_and_wins_over_keywords() -> None:
    assert await Writing().run(start_event=StartEvent(topic="mills"), topic="tides") == "on mills"


async def test_a_custom_stop_event_is_the_result_itself() -> None:
    result = await Custom().run(name="tides")
    assert isinstance(result, Published)
    assert result.title == "tides"


async def test_a_handler_may_be_awaited_again_and_again() -> None:
    handler = Writing().run(topic="tides")
    assert [await handler, await handler] == ["on tides"] * 2
    assert (await handler.stop_event_result()).result == "on tides"


async def test_a_handler_can_be_waited_for_with_a_limit() -> None:
    assert await asyncio.wait_for(Writing().run(topic="tides"), 150) == "on tides"


async def test_a_handler_tells_whether_the_run_is_over() -> None:
    handler = Writing().run(topic="tides")
    assert not handler.is_done()
    assert not handler.done()
    assert not handler.cancelled()
    assert handler.get_stop_event() is None
    with pytest.raises(asyncio.InvalidStateError):
        handler.exception()
    await handler
    assert handler.is_done()
    assert handler.exception() is None
    stop = handler.get_stop_event()
    assert stop is not None
    assert stop.result == "on tides"


async def test_a_run_has_the_id_it_is_given_or_one_of_its_own() -> None:
    named = Writing().run(run_id="abc", topic="tides")
    assert named.run_id == "abc"
    first, second = Writing().run(topic="a"), Writing().run(topic="b")
    assert first.run_id != second.run_id
    assert len(first.run_id) == 10
    await asyncio.gather(named, first, second)


async def test_a_start_event_that_cannot_be_made_is_refused_by_run() -> None:
    with pytest.raises(WorkflowRuntimeError) as refused:
        Custom().run()
    assert isinstance(refused.value.__cause__ or refused.value.__context__, ValidationError)


async def test_a_start_event_must_be_one() -> None:
    with pytest.raises(ValueError):
        Writing().run(start_event=Draft(text="x"))  # type: ignore[arg-type]


def test_a_run_needs_an_event_loop() -> None:
    with pytest.raises(RuntimeError):
        Writing().run(topic="tides")


async def test_a_step_that_returns_nothing_ends_quietly() -> None:
    class Two(Workflow):
        @step
        async def quiet(self, ev: StartEvent) -> None:
            return None

        @step
        async def loud(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=1)

    assert await Two().run() == 1


async def test_the_first_stop_event_ends_the_run_and_stops_what_still_runs() -> None:
    stopped = asyncio.Event()

    class Race(Workflow):
        @step
        async def slow(self, ev: StartEvent) -> StopEvent:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.set()
                raise
            return StopEvent(result="slow")

        @step
        async def fast(self, ev: StartEvent) -> StopEvent:
            await turns()
            return StopEvent(result="fast")

    assert await Race().run() == "fast"
    await asyncio.wait_for(stopped.wait(), 150)


async def test_plain_functions_run_in_a_thread() -> None:
    class Blocking(Workflow):
        @step
        def work(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=threading.current_thread() is threading.main_thread())

    assert await Blocking().run() is False


async def test_a_workflow_can_run_another_inside_a_step() -> None:
    class Outer(Workflow):
        @step
        async def call(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await Writing().run(topic="inner"))

    assert await Outer().run() == "on inner"


async def test_free_functions_can_be_steps() -> None:
    class Free(Workflow):
        pass

    @step(workflow=Free)
    async def begin(ev: StartEvent) -> Draft:
        return Draft(text="free")

    @step(workflow=Free)
    async def end(ctx: Context, ev: Draft) -> StopEvent:
        return StopEvent(result=ev.text)

    assert await Free().run() == "free"


async def test_a_subclass_replaces_the_steps_it_declares_again() -> None:
    class Louder(Writing):
        @step
        async def publish(self, ev: Draft) -> StopEvent:
            return StopEvent(result=ev.text.upper())

    assert await Louder().run(topic="tides") == "TIDES"


async def test_a_parameter_that_nobody_fills_fails_the_run() -> None:
    class Lacking(Workflow):
        @step
        async def work(self, ev: StartEvent, n: int) -> StopEvent:
            return StopEvent(result=n)

    class Defaulted(Workflow):
        @step
        async def work(self, ev: StartEvent, n: int = 7) -> StopEvent:
            return StopEvent(result=n)

    with pytest.raises(TypeError):
        await Lacking().run()
    assert await Defaulted().run() == 7


async def test_a_workflow_is_checked_when_it_is_first_run() -> None:
    class Lost(Workflow):
        @step
        async def write(self, ev: StartEvent) -> Draft | StopEvent:
            return StopEvent()

    flow = Lost()
    with pytest.raises(WorkflowValidationError):
        flow.run()
    with pytest.raises(WorkflowValidationError):
        flow.validate()
    unchecked = Lost(disable_validation=True)
    await unchecked.run()
    with pytest.raises(WorkflowValidationError):
        unchecked.validate()


def test_a_workflow_without_a_beginning_or_an_end_cannot_be_made() -> None:
    class Endless(Workflow):
        @step
        async def write(self, ev: StartEvent) -> Draft:
            return Draft(text="")

        @step
        async def again(self, ev: Draft) -> None: ...

    class Unbegun(Workflow):
        @step
        async def write(self, ev: Draft) -> StopEvent:
            return StopEvent()

    class Twice(Workflow):
        @step
        async def one(self, ev: StartEvent | Topic) -> StopEvent:
            return StopEvent()

    for flow in (Endless, Unbegun, Twice):
        with pytest.raises(WorkflowConfigurationError):
            flow()


def test_options_that_mean_nothing_are_refused() -> None:
    for wrong in (0, -1, "x"):
        with pytest.raises(WorkflowValidationError):
            Writing(num_concurrent_runs=wrong)  # type: ignore[arg-type]
    with pytest.raises(WorkflowValidationError):
        Writing(skip_graph_checks={"nonsense"})
    with pytest.raises(TypeError):
        Writing(unknown=1)  # type: ignore[call-arg]


def test_a_workflow_tells_what_it_is_made_of() -> None:
    flow = Custom()
    assert flow.start_event_class is Topic
    assert flow.stop_event_class is Published
    assert set(flow.events) == {Topic, Published}
    assert flow.workflow_name == f"{__name__}.Custom"
    assert Custom(workflow_name="mine").workflow_name == "mine"
    assert flow.validate() is False


async def test_equal_events_of_one_attempt_are_all_sent() -> None:
    class Same(Event):
        pass

    class Twice(Workflow):
        @step
        async def send(self, ctx: Context, ev: StartEvent) -> Same | None:
            ctx.send_event(Same())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ctx.send_event(Same())

        @step(num_workers=1)
        async def take(self, ctx: Context, ev: Same) -> StopEvent | None:
            found = ctx.collect_events(ev, [Same, Same])
            return None if found is None else StopEvent(result=len(found))

    assert await Twice(timeout=60).run() == 2
