"""When a run ends badly: errors of steps, timeouts, cancelling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.flows import names, shown
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import (
    Event,
    StartEvent,
    StopEvent,
    WorkflowCancelledEvent,
    WorkflowFailedEvent,
    WorkflowTimedOutEvent,
)
from tidemill.flows.errors import WorkflowCancelledByUser, WorkflowRuntimeError, WorkflowTimeoutError
from tidemill.flows.testing import simulate


class Draft(Event):
    n: int = 0


class Broken(Exception):
    pass


class Failing(Workflow):
    @step
    async def write(self, ev: StartEvent) -> StopEvent:
        raise Broken("no ink")


class Sleeping(Workflow):
    @step
    async def sleep(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(60)
        return StopEvent()


class Idling(Workflow):
    @step
    async def nothing(self, ev: StartEvent) -> StopEvent | None:
        return None


async def test_awaiting_a_failed_run_raises_the_steps_own_exception() -> None:
    handler = Failing().run()
    with pytest.raises(Broken, match="no ink") as raised:
        await handler
    assert handler.is_done()
    assert handler.exception() is raised.value
    assert handler.get_stop_event() is None or isinstance(handler.get_stop_event(), WorkflowFailedEvent)
    assert not handler.cancelled()


class Verdict(BaseException):
    """As test frameworks raise: no `Exception`."""


@pytest.mark.parametrize("error", [Verdict("guilty"), GeneratorExit("guilty")])
async def test_a_step_that_raises_what_is_no_exception_fails_its_run_at_once(error: BaseException) -> None:
    class Judges(Workflow):
        @step
        async def judge(self, ev: StartEvent) -> StopEvent:
            raise error

    with pytest.raises(WorkflowRuntimeError, match=f"^step judge raised {type(error).__name__}: guilty$") as raised:
        await Judges(timeout=60).run()
    assert raised.value.__cause__ is error


async def test_the_stream_of_a_failed_run_ends_with_what_happened() -> None:
    handler = Failing().run()
    events = await shown(handler)
    last = events[-1]
    assert isinstance(last, WorkflowFailedEvent)
    assert last.step_name == "write"
    assert isinstance(last.exception, Broken)
    assert last.attempts == 1
    assert last.elapsed_seconds is not None
    assert last.elapsed_seconds >= 0


async def test_only_events_may_be_returned() -> None:
    class Wrong(Workflow):
        @step
        async def write(self, ev: StartEvent) -> StopEvent:
            return 5  # type: ignore[return-value]

    with pytest.raises(WorkflowRuntimeError):
        await Wrong().run()


async def test_a_run_that_takes_too_long_times_out_and_names_the_active_steps() -> None:
    handler = Sleeping(timeout=0.05).run()
    events = await shown(handler)
    assert isinstance(events[-1], WorkflowTimedOutEvent)
    assert events[-1].timeout == 0.05
    assert events[-1].active_steps == ["sleep"]
    with pytest.raises(WorkflowTimeoutError, match=r"^Operation timed out after 0\.05 seconds\..*sleep"):
        await handler


async def test_a_run_in_which_nothing_is_left_to_do_waits_for_its_timeout() -> None:
    handler = Idling(timeout=0.05).run()
    with pytest.raises(WorkflowTimeoutError):
        await handler
    events = await shown(handler)
    assert events[-1].active_steps == []


async def test_cancelling_ends_the_run_and_its_steps() -> None:
    stopped: list[str] = []

    class Long(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.write_event_to_stream(Draft())
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append("work")
            return StopEvent()

    handler = Long().run()
    events: list[Any] = []
    async for event in handler.stream_events():
        events.append(event)
        if isinstance(event, Draft):
            assert await handler.cancel_run() is None
    assert isinstance(events[-1], WorkflowCancelledEvent)
    with pytest.raises(WorkflowCancelledByUser):
        await handler
    assert handler.cancelled()
    assert handler.is_done()
    assert isinstance(handler.exception(), WorkflowCancelledByUser)
    assert isinstance(handler.get_stop_event(), WorkflowCancelledEvent)
    await handler.cancel_run()
    assert stopped == ["work"]


async def test_a_caller_that_stops_waiting_for_a_run_cancels_it() -> None:
    handler = Sleeping().run()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handler, 0.02)
    assert handler.is_done()
    assert handler.cancelled()


async def test_cancelling_the_handler_is_a_cancelled_error() -> None:
    handler = Sleeping().run()
    await asyncio.sleep(0)
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    assert handler.cancelled()


async def test_an_event_for_a_finished_run_is_ignored() -> None:
    class Quick(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=1)

    handler = Quick().run()
    await handler
    await handler.send_event(Draft())
    assert await handler == 1


async def test_an_event_returned_without_being_declared_goes_to_who_takes_it() -> None:
    class Undeclared(Workflow):
        @step
        async def write(self, ev: StartEvent) -> StopEvent:
            return Draft(n=3)  # type: ignore[return-value]

        @step(skip_graph_checks=["reachability"])
        async def read(self, ev: Draft) -> StopEvent:
            return StopEvent(result=ev.n)

    assert await Undeclared(disable_validation=True).run() == 3


async def test_a_returned_event_that_nobody_takes_is_told_and_the_run_goes_on() -> None:
    class Lost(Workflow):
        @step
        async def write(self, ev: StartEvent) -> StopEvent:
            return Draft(n=3)  # type: ignore[return-value]

    handler = Lost(timeout=0.05).run()
    events = await shown(handler, internal=True)
    assert "UnhandledEvent" in names(events)
    with pytest.raises(WorkflowTimeoutError):
        await handler


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class WithoutWords(Workflow):
    @step
    async def write(self, ev: StartEvent) -> StopEvent:
        raise Speechless


class OutOfThread(Workflow):
    @step
    def write(self, ev: StartEvent) -> StopEvent:
        return next(iter(()))


@pytest.mark.parametrize(("workflow", "kind"), [(WithoutWords, Speechless), (OutOfThread, RuntimeError)])
async def test_an_error_that_cannot_be_told_as_it_is_ends_the_run_all_the_same(
    workflow: type[Workflow], kind: type[Exception]
) -> None:
    """One without words; and a StopIteration, which no future carries out of a thread."""
    async with asyncio.timeout(120):
        with pytest.raises(kind):
            await workflow(timeout=None).run()


class Impatient(Workflow):
    """Has a step that takes too long, or fails with a timeout of its own."""

    @step(timeout=0.05)
    async def call(self, ev: StartEvent) -> StopEvent:
        if ev.own:
            raise TimeoutError("the bank does not answer")
        await asyncio.sleep(60)
        return StopEvent()


@pytest.mark.parametrize(
    ("own", "said"), [(False, r"^step call of run \S+ took longer than 0\.05 s$"), (True, "^the bank does not answer$")]
)
async def test_a_step_that_takes_too_long_is_named_with_its_timeout(own: bool, said: str) -> None:
    with pytest.raises(TimeoutError, match=said):
        await Impatient().run(own=own)
    outcome = await asyncio.to_thread(simulate, Impatient(), seed=1, own=own)
    with pytest.raises(TimeoutError, match=said):
        outcome.result()
