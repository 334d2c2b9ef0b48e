"""`catch_error`: what happens when a step has failed for the last time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.flows import shown, told
from tidemill.flows import Context, Workflow, catch_error, step
from tidemill.flows.definition.events import (
    CollectionReleaseEvent,
    Event,
    StartEvent,
    StepFailedEvent,
    StopEvent,
    WorkflowFailedEvent,
)
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_none
from tidemill.flows.errors import WorkflowTimeoutError, WorkflowValidationError


class Draft(Event):
    n: int = 0


class Rescued(Workflow):
    @step(retry_policy=retry_policy(wait=wait_none(), stop=stop_after_attempt(2)))
    async def work(self, ev: StartEvent) -> StopEvent:
        raise ValueError("broken")

    @catch_error
    async def rescue(self, ev: StepFailedEvent) -> StopEvent:
        return StopEvent(result=ev)


async def test_a_handler_gets_everything_about_the_failure_when_retries_are_exhausted() -> None:
    failed = await Rescued().run(topic="tides")
    assert isinstance(failed, StepFailedEvent)
    assert failed.step_name == "work"
    assert failed.input_event.topic == "tides"
    assert isinstance(failed.exception, ValueError)
    assert failed.attempts == 2
    assert failed.elapsed_seconds >= 0
    assert failed.failed_at.tzinfo is not None
    assert abs((datetime.now(UTC) - failed.failed_at).total_seconds()) < 60


async def test_the_handler_is_told_like_a_step() -> None:
    lines = told(await shown(Rescued().run(), internal=True))
    assert lines[-3:] == ["rescue:0 running StepFailedEvent", "rescue:0 not_running", "StopEvent"]


async def test_a_handler_for_named_steps_goes_before_one_for_all() -> None:
    class Both(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> Draft:
            if ev.get("early"):
                raise ValueError
            return Draft()

        @step
        async def work(self, ev: Draft) -> StopEvent:
            raise ValueError

        @catch_error
        async def any_failure(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result="any")

        @catch_error(for_steps=["work"])
        async def of_work(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result="work")

    assert await Both().run() == "work"
    assert await Both().run(early=True) == "any"


def looping(max_recoveries: int) -> tuple[type[Workflow], list[int]]:
    calls: list[int] = []

    class Loop(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> Draft:
            return Draft(n=0)

        @step
        async def work(self, ev: Draft) -> StopEvent:
            calls.append(ev.n)
            raise ValueError(f"failure {len(calls)}")

        @catch_error(max_recoveries=max_recoveries)
        async def again(self, ev: StepFailedEvent) -> Draft:
            return Draft(n=ev.input_event.n + 1)

    return Loop, calls


@pytest.mark.parametrize("budget", [1, 3])
async def test_a_line_of_events_is_recovered_as_often_as_the_budget_says(budget: int) -> None:
    flow, calls = looping(budget)
    handler = flow().run()
    with pytest.raises(ValueError, match=f"failure {budget + 1}"):
        await handler
    assert calls == list(range(budget + 1))


async def test_the_budget_is_of_each_line_of_events() -> None:
    class Lines(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Draft]:
            return [Draft(n=n) for n in range(3)]

        @step
        async def work(self, ev: Draft) -> Other:
            if ev.n < 10:
                raise ValueError
            return Other(n=ev.n)

        @catch_error
        async def again(self, ev: StepFailedEvent) -> Draft:
            return Draft(n=ev.input_event.n + 10)

        @step
        async def join(self, evs: list[Other]) -> StopEvent:
            return StopEvent(result=sorted(event.n for event in evs))

    assert await Lines().run() == [10, 11, 12]


class Other(Event):
    n: int = 0


async def test_a_failing_handler_fails_the_run_with_its_own_exception() -> None:
    class Worse(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise ValueError("first")

        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> StopEvent:
            raise KeyError("second")

    handler = Worse().run()
    with pytest.raises(KeyError):
        await handler
    last = (await shown(handler))[-1]
    assert isinstance(last, WorkflowFailedEvent)
    assert last.step_name == "rescue"


async def test_a_handler_that_returns_nothing_leaves_the_run_idle() -> None:
    class Quiet(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise ValueError("first")

        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> None:
            return None

    with pytest.raises(WorkflowTimeoutError):
        await Quiet(timeout=0.05).run()


async def test_a_timeout_of_the_run_is_not_for_handlers() -> None:
    class Slow(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent | None:
            return None

        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result="rescued")

    with pytest.raises(WorkflowTimeoutError):
        await Slow(timeout=0.05).run()


async def test_a_failed_join_shows_its_batch_to_the_handler() -> None:
    class Join(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Draft]:
            return [Draft(n=n) for n in range(2)]

        @step
        async def join(self, evs: list[Draft]) -> StopEvent:
            raise ValueError

        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result=ev.input_event)

    batch = await Join().run()
    assert isinstance(batch, CollectionReleaseEvent)
    assert [event.n for event in batch.events] == [0, 1]


async def test_an_empty_for_steps_covers_nothing() -> None:
    class Nothing(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise ValueError("mine")

        @catch_error(for_steps=[])
        async def rescue(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result="rescued")

    with pytest.raises(ValueError, match="mine"):
        await Nothing(disable_validation=True).run()


async def test_handlers_that_contradict_are_refused_even_without_validation() -> None:
    class TwoForAll(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

        @catch_error
        async def one(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent()

        @catch_error
        async def two(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent()

    class Unknown(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

        @catch_error(for_steps=["nope"])
        async def one(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent()

    flows: list[Any] = [TwoForAll, Unknown]
    for flow in flows:
        with pytest.raises(WorkflowValidationError):
            await flow(disable_validation=True).run()
