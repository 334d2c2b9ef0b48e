"""Where flows are better than what they are modelled on: each promise is one test."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest

from tests.support.flows import names, shown
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, catch_error, step
from tidemill.flows.definition.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    StartEvent,
    StepFailedEvent,
    StopEvent,
)
from tidemill.flows.definition.resource import Resource
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed, wait_none
from tidemill.flows.errors import WorkflowRuntimeError

TWICE = retry_policy(wait=wait_none(), stop=stop_after_attempt(2))


class Task(Event):
    n: int = 0


class Done(Event):
    n: int = 0


class Reply(HumanResponseEvent):
    text: str = ""


class Question(InputRequiredEvent):
    text: str = ""


@pytest.mark.parametrize("wait", [wait_none(), wait_fixed(0.01)])
async def test_a_failed_attempt_leaves_no_state_behind(wait: Any) -> None:
    class Flaky(Workflow):
        @step(retry_policy=retry_policy(wait=wait, stop=stop_after_attempt(3)))
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("n", await ctx.store.get("n", default=0) + 1)
            await ctx.store.set("deep.er", True)
            async with ctx.store.edit_state() as state:
                state.edits = [*state.get("edits", []), 1]
            if ctx.retry_info().retry_number < 2:
                raise ValueError
            return StopEvent(result=(await ctx.store.get("n"), await ctx.store.get("edits")))

    assert await Flaky().run() == (1, [1])


async def test_a_failed_attempt_takes_back_only_what_it_has_written() -> None:
    class Beside(Workflow):
        @step(retry_policy=TWICE)
        async def flaky(self, ctx: Context, ev: StartEvent) -> Done:
            await ctx.store.set("mine", 1)
            await turns()
            if ctx.retry_info().retry_number == 0:
                raise ValueError
            return Done()

        @step
        async def beside(self, ctx: Context, ev: StartEvent) -> None:
            await turns(50)
            await ctx.store.set("other", 2)

        @step
        async def end(self, ctx: Context, ev: Done) -> StopEvent:
            return StopEvent(result=(await ctx.store.get("mine"), await ctx.store.get("other")))

    assert await Beside().run() == (1, 2)


async def test_a_failed_attempt_has_sent_nothing() -> None:
    class Flaky(Workflow):
        @step(retry_policy=TWICE)
        async def work(self, ctx: Context, ev: StartEvent) -> Task | None:
            ctx.send_event(Task(n=ctx.retry_info().retry_number))
            await asyncio.sleep(0)
            if ctx.retry_info().retry_number == 0:
                raise ValueError
            return None

        @step
        async def count(self, ctx: Context, ev: Task) -> StopEvent | None:
            await turns()
            seen = [*await ctx.store.get("seen", default=[]), ev.n]
            await ctx.store.set("seen", seen)
            return StopEvent(result=seen)

    assert await Flaky().run() == [1]


async def test_a_step_that_a_handler_rescues_has_sent_and_written_nothing() -> None:
    class Rescued(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> Task | StopEvent:
            ctx.send_event(Task())
            await ctx.store.set("n", 1)
            raise ValueError

        @step
        async def never(self, ev: Task) -> StopEvent:
            return StopEvent(result="sent")

        @catch_error
        async def rescue(self, ctx: Context, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result=await ctx.store.get("n", default="nothing"))

    assert await Rescued().run() == "nothing"


async def test_what_a_failed_attempt_collected_is_not_collected_twice() -> None:
    class Flaky(Workflow):
        @step
        async def split(self, ctx: Context, ev: StartEvent) -> Task | None:
            for n in (1, 2):
                ctx.send_event(Task(n=n))
            return None

        @step(num_workers=1, retry_policy=TWICE)
        async def collect(self, ctx: Context, ev: Task) -> StopEvent | None:
            found = ctx.collect_events(ev, [Task, Task])
            if ctx.retry_info().retry_number == 0:
                raise ValueError
            return StopEvent(result=[event.n for event in found]) if found else None

    assert await Flaky().run() == [1, 2]


async def test_the_body_of_a_step_that_waits_runs_once() -> None:
    begun: list[int] = []

    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            begun.append(1)
            try:
                first = await ctx.wait_for_event(Reply, waiter_event=Question(text="1"), waiter_id="1")
                second = await ctx.wait_for_event(Reply, waiter_event=Question(text="2"), waiter_id="2")
            except Exception as error:  # noqa: BLE001 - waiting is not to be seen as an exception
                return StopEvent(result=error)
            return StopEvent(result=[first.text, second.text])

    handler = Asking().run()
    async for event in handler.stream_events():
        if isinstance(event, Question):
            await handler.send_event(Reply(text=f"to {event.text}"))
    assert await handler == ["to 1", "to 2"]
    assert begun == [1]


async def test_a_second_event_does_not_change_what_the_first_has_answered() -> None:
    class Asking(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            first = await ctx.wait_for_event(Reply, waiter_id="1")
            ctx.write_event_to_stream(Question(text="2"))
            second = await ctx.wait_for_event(Reply, waiter_id="2")
            again = await ctx.wait_for_event(Reply, waiter_id="1")
            return StopEvent(result=[first.text, second.text, again.text])

    handler = Asking().run()
    await turns()
    await handler.send_event(Reply(text="a"))
    async for event in handler.stream_events():
        if isinstance(event, Question):
            await turns()
            await handler.send_event(Reply(text="b"))
    assert await handler == ["a", "b", "a"]


async def test_two_steps_that_wait_for_the_same_do_not_steal_from_each_other() -> None:
    class Two(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=1), Task(n=2)]

        @step
        async def ask(self, ctx: Context, ev: Task) -> Done:
            reply = await ctx.wait_for_event(Reply, waiter_event=Question(text=str(ev.n)))
            return Done(n=ev.n * len(reply.text))

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=sorted(event.n for event in evs))

    handler = Two().run()
    asked = 0
    async for event in handler.stream_events():
        if isinstance(event, Question):
            asked += 1
            if asked == 2:
                await handler.send_event(Reply(text="ab"))
    assert await handler == [2, 4]


async def test_the_body_of_a_joining_step_runs_once() -> None:
    calls: list[int] = []

    class Join(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(10)]

        @step
        async def join(self, evs: list[Task]) -> StopEvent:
            calls.append(len(evs))
            return StopEvent()

    await Join().run()
    assert calls == [10]


async def test_a_step_that_cancels_itself_fails_the_run() -> None:
    class Suicidal(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            raise asyncio.CancelledError

    with pytest.raises(WorkflowRuntimeError) as failed:
        await Suicidal(timeout=60).run()
    assert isinstance(failed.value.__cause__, asyncio.CancelledError)


async def test_an_inner_side_effect_happens_once_however_often_the_step_is_tried() -> None:
    charged: list[int] = []

    class Charging(Workflow):
        @step(retry_policy=TWICE)
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async def charge() -> int:
                charged.append(1)
                return 42

            receipt = await ctx.once("charge", charge)
            if ctx.retry_info().retry_number == 0:
                raise ValueError
            return StopEvent(result=receipt)

    assert await Charging().run() == 42
    assert charged == [1]


async def test_a_step_may_have_a_time_limit_of_its_own() -> None:
    class Limited(Workflow):
        @step(timeout=0.02)
        async def work(self, ev: StartEvent) -> StopEvent:
            await asyncio.sleep(60)
            return StopEvent()

    with pytest.raises(TimeoutError):
        await Limited().run()


async def test_a_fan_out_of_thousands_is_collected_in_linear_time() -> None:
    class Fan(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Task | None:
            for n in range(ev.n):
                ctx.send_event(Task(n=n))
            return None

        @step
        async def collect(self, ctx: Context, ev: Task) -> StopEvent | None:
            found = ctx.collect_events(ev, [Task] * 4000)
            return StopEvent(result=len(found)) if found else None

    assert await asyncio.wait_for(Fan().run(n=4000), 60) == 4000


async def test_a_run_in_which_a_step_ignores_its_cancelling_still_ends() -> None:
    class Stubborn(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.write_event_to_stream(Task())
            for _ in range(3):
                try:
                    await turns()
                except asyncio.CancelledError:
                    continue
            return StopEvent()

    handler = Stubborn().run()
    await turns()
    await handler.cancel_run()
    assert handler.cancelled()
    assert names(await shown(handler))[-1] == "WorkflowCancelledEvent"


async def test_a_plain_function_can_send_show_and_collect() -> None:
    class Blocking(Workflow):
        @step
        def work(self, ctx: Context, ev: StartEvent) -> Task | None:
            ctx.write_event_to_stream(Event(note="working"))
            for text in (1, 2):
                ctx.send_event(Task(n=text))
            return None

        @step
        def gather(self, ctx: Context, ev: Task) -> StopEvent | None:
            found = ctx.collect_events(ev, [Task, Task])
            return StopEvent(result=sorted(one.n for one in found)) if found else None

    handler = Blocking().run()
    seen = [event async for event in handler.stream_events()]
    assert seen[0].note == "working"
    assert await handler == [1, 2]


async def test_parallel_steps_make_a_slow_resource_once() -> None:
    made: list[int] = []

    async def slow() -> object:
        made.append(1)
        await turns()
        return object()

    class Parallel(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(4)]

        @step
        async def work(self, ev: Task, client: Annotated[object, Resource(slow)]) -> Done:
            return Done()

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=len(evs))

    assert await Parallel().run() == 4
    assert made == [1]
