"""`ctx.wait_for_event`: a step that waits for an event."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.flows import names
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent


class Reply(HumanResponseEvent):
    text: str = ""
    by: str = ""


class LongReply(Reply):
    pass


class Question(InputRequiredEvent):
    text: str = ""


class Part(Event):
    n: int


class Asking(Workflow):
    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        reply = await ctx.wait_for_event(Reply, waiter_event=Question(text="who?"))
        return StopEvent(result=reply.text)


async def play(handler: Any, *answers: Event) -> tuple[Any, list[Any]]:
    """Answer each time the run is idle; the result, and everything that the run has shown."""
    left, seen = list(answers), []
    async for event in handler.stream_events(expose_internal=True):
        seen.append(event)
        if type(event).__name__ == "WorkflowIdleEvent" and left:
            await handler.send_event(left.pop(0))
    return await handler, seen


async def test_a_waiting_step_goes_on_with_the_event_that_comes() -> None:
    result, seen = await play(Asking().run(), Reply(text="Ada"))
    assert result == "Ada"
    assert [event.text for event in seen if isinstance(event, Question)] == ["who?"]


async def test_an_event_sent_right_after_run_finds_the_waiting_step() -> None:
    handler = Asking().run()
    await turns()
    await handler.send_event(Reply(text="early"))
    assert await handler == "early"


async def test_a_waiting_run_tells_what_it_is_doing() -> None:
    _, seen = await play(Asking().run(), Reply(text="Ada"))
    assert names(seen) == [
        "StepStateChanged",
        "StepStateChanged",
        "Question",
        "WorkflowIdleEvent",
        "StepStateChanged",
        "StepStateChanged",
        "StopEvent",
    ]
    assert [event.step_state.value for event in seen if names([event]) == ["StepStateChanged"]] == [
        "running",
        "not_running",
        "running",
        "not_running",
    ]
    assert seen[1].output_event_name is None


async def test_only_events_that_meet_the_requirements_are_taken() -> None:
    class Picky(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            reply = await ctx.wait_for_event(Reply, requirements={"by": "Ada"})
            return StopEvent(result=reply.text)

    result, seen = await play(Picky().run(), Reply(by="Bob", text="no"), Reply(by="Ada", text="yes"))
    assert result == "yes"
    assert "UnhandledEvent" in names(seen)


async def test_requirements_may_name_dynamic_values() -> None:
    class Picky(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            reply = await ctx.wait_for_event(HumanResponseEvent, requirements={"who": "Ada"})
            return StopEvent(result=reply.text)

    result, _ = await play(
        Picky().run(), HumanResponseEvent(who="Bob", text="no"), HumanResponseEvent(who="Ada", text="yes")
    )
    assert result == "yes"


async def test_a_subclass_is_not_what_was_waited_for() -> None:
    result, seen = await play(Asking().run(), LongReply(text="long"), Reply(text="short"))
    assert result == "short"
    assert "UnhandledEvent" in names(seen)


async def test_two_waits_of_one_name_have_the_same_answer_and_others_have_one_each() -> None:
    class Same(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            first = await ctx.wait_for_event(Reply, waiter_id="name")
            second = await ctx.wait_for_event(Reply, waiter_id="name")
            return StopEvent(result=[first.text, second.text])

    class Unnamed(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=[(await ctx.wait_for_event(Reply)).text for _ in range(3)])

    class Named(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            first = await ctx.wait_for_event(Reply, waiter_id="first", waiter_event=Question(text="1"))
            second = await ctx.wait_for_event(Reply, waiter_id="second", waiter_event=Question(text="2"))
            return StopEvent(result=[first.text, second.text])

    result, _ = await play(Same().run(), Reply(text="a"))
    assert result == ["a", "a"]
    result, _ = await play(Unnamed().run(), Reply(text="a"), Reply(text="b"), Reply(text="c"))
    assert result == ["a", "b", "c"]
    result, seen = await play(Named().run(), Reply(text="a"), Reply(text="b"))
    assert result[1] == "b"
    assert [event.text for event in seen if isinstance(event, Question)] == ["1", "2"]


async def test_one_event_answers_all_that_wait_for_it() -> None:
    class Parallel(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> list[Part]:
            return [Part(n=n) for n in range(2)]

        @step
        async def ask(self, ctx: Context, ev: Part) -> Part2:
            reply = await ctx.wait_for_event(Reply)
            return Part2(text=f"{ev.n}{reply.text}")

        @step
        async def join(self, evs: list[Part2]) -> StopEvent:
            return StopEvent(result=sorted(event.text for event in evs))

    result, _ = await play(Parallel().run(), Reply(text="a"))
    assert result == ["0a", "1a"]


class Part2(Event):
    text: str


async def test_an_event_that_answers_also_goes_to_the_steps_that_take_it() -> None:
    class Both(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> Part2:
            reply = await ctx.wait_for_event(Reply)
            return Part2(text=f"waiter {reply.text}")

        @step
        async def hear(self, ev: Reply) -> Part2:
            return Part2(text=f"step {ev.text}")

        @step
        async def end(self, ctx: Context, ev: Part2) -> StopEvent | None:
            found = ctx.collect_events(ev, [Part2, Part2])
            return StopEvent(result=sorted(event.text for event in found)) if found else None

    result, _ = await play(Both().run(), Reply(text="a"))
    assert result == ["step a", "waiter a"]


async def test_waiting_can_end_with_a_timeout_that_the_step_may_catch() -> None:
    class Patient(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            try:
                await ctx.wait_for_event(Reply, timeout=0.02)
            except TimeoutError:
                return StopEvent(result="nobody came")
            return StopEvent(result="somebody came")

    assert await Patient().run() == "nobody came"


async def test_a_timeout_that_nobody_catches_fails_the_run() -> None:
    class Impatient(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(Reply, timeout=0.02)
            return StopEvent()

    with pytest.raises(TimeoutError):
        await Impatient().run()


async def test_an_event_from_another_step_can_be_waited_for() -> None:
    class Inside(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            reply = await ctx.wait_for_event(Reply)
            return StopEvent(result=reply.text)

        @step
        async def answer(self, ctx: Context, ev: StartEvent) -> None:
            await turns()
            ctx.send_event(Reply(text="from inside"))

    assert await Inside().run() == "from inside"


async def test_a_waiting_step_holds_no_worker() -> None:
    class OneWorker(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> list[Part]:
            return [Part(n=n) for n in range(3)]

        @step(num_workers=1)
        async def ask(self, ctx: Context, ev: Part) -> Part2:
            reply = await ctx.wait_for_event(Reply, requirements={"by": str(ev.n)}, waiter_event=Question())
            return Part2(text=reply.text)

        @step
        async def join(self, evs: list[Part2]) -> StopEvent:
            return StopEvent(result=[event.text for event in evs])

    handler = OneWorker().run()
    asked = 0
    async for event in handler.stream_events():
        if isinstance(event, Question):
            asked += 1
            if asked == 3:
                for by in "210":
                    await handler.send_event(Reply(by=by, text=f"for {by}"))
    assert sorted(await handler) == ["for 0", "for 1", "for 2"]
