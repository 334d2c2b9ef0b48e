"""Batches: a step returns a list, and another takes what came of it, together."""

from __future__ import annotations

from typing import Annotated

import pytest

from tests.support.flows import shown, told
from tests.support.waiting import turns
from tidemill.flows import Context, Workflow, catch_error, step
from tidemill.flows.definition.collect import Collect, Take
from tidemill.flows.definition.events import Event, StartEvent, StepFailedEvent, StopEvent
from tidemill.flows.errors import WorkflowRuntimeError, WorkflowValidationError


class Task(Event):
    n: int


class Done(Event):
    n: int


class Other(Event):
    n: int


class Total(Event):
    n: int


class Split(Workflow):
    @step
    async def split(self, ev: StartEvent) -> list[Task]:
        return [Task(n=n) for n in range(ev.n)]

    @step
    async def work(self, ev: Task) -> Done | None:
        return Done(n=ev.n)

    @step
    async def join(self, evs: list[Done]) -> StopEvent:
        return StopEvent(result=[event.n for event in evs])


async def test_a_batch_is_joined_when_everything_that_came_of_it_is_there() -> None:
    assert sorted(await Split().run(n=5)) == [0, 1, 2, 3, 4]


async def test_more_members_than_workers_are_all_joined() -> None:
    assert sorted(await Split().run(n=50)) == list(range(50))


async def test_an_empty_batch_is_joined_at_once() -> None:
    assert await Split().run(n=0) == []


async def test_members_come_in_the_order_in_which_they_were_done() -> None:
    class Slow(Split):
        @step
        async def work(self, ev: Task) -> Done | None:
            await turns(20 * (3 - ev.n))
            return Done(n=ev.n)

    assert await Slow().run(n=3) == [2, 1, 0]


async def test_members_that_came_to_nothing_are_missing() -> None:
    class Odd(Split):
        @step
        async def work(self, ev: Task) -> Done | None:
            return Done(n=ev.n) if ev.n % 2 else None

    assert sorted(await Odd().run(n=6)) == [1, 3, 5]


async def test_the_join_is_told_as_the_release_of_a_collection() -> None:
    lines = told(await shown(Split().run(n=2), internal=True))
    assert [line for line in lines if line.startswith("join")] == [
        "join:0 running CollectionReleaseEvent",
        "join:0 not_running",
    ]


async def test_take_goes_on_with_the_first_arrivals_while_the_others_still_run() -> None:
    class First(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(ev.n)]

        @step
        async def work(self, ev: Task) -> Done:
            await turns(20 * ev.n)
            return Done(n=ev.n)

        @step
        async def join(self, evs: Annotated[list[Done], Collect(Take(2))]) -> StopEvent:
            return StopEvent(result=[event.n for event in evs])

    assert await First().run(n=4) == [0, 1]
    assert await First().run(n=1) == [0]


async def test_a_batch_in_a_batch_is_joined_inside_out() -> None:
    class Nested(Workflow):
        @step
        async def outer(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in (1, 2, 3)]

        @step
        async def inner(self, ev: Task) -> list[Other]:
            return [Other(n=ev.n * 10 + n) for n in range(ev.n)]

        @step
        async def work(self, ev: Other) -> Done:
            return Done(n=ev.n)

        @step
        async def join_inner(self, evs: list[Done]) -> Total:
            return Total(n=sum(event.n for event in evs))

        @step
        async def join_outer(self, evs: list[Total]) -> StopEvent:
            return StopEvent(result=sorted(event.n for event in evs))

    assert await Nested().run() == [10, 41, 93]


async def test_two_joins_of_one_class_both_get_everything() -> None:
    class TwoJoins(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(3)]

        @step
        async def total(self, evs: list[Task]) -> Total:
            return Total(n=sum(event.n for event in evs))

        @step
        async def count(self, evs: list[Task]) -> Total:
            return Total(n=len(evs))

        @step
        async def end(self, ctx: Context, ev: Total) -> StopEvent | None:
            found = ctx.collect_events(ev, [Total, Total])
            return StopEvent(result=sorted(event.n for event in found)) if found else None

    assert await TwoJoins().run() == [3, 3]


async def test_a_join_may_take_several_classes() -> None:
    class Mixed(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task | Other]:
            return [Task(n=1), Other(n=2)]

        @step
        async def join(self, evs: list[Task | Other]) -> StopEvent:
            return StopEvent(result=[(type(event).__name__, event.n) for event in evs])

    assert await Mixed().run() == [("Task", 1), ("Other", 2)]


async def test_sent_events_are_in_no_batch() -> None:
    class Sending(Workflow):
        @step
        async def split(self, ctx: Context, ev: StartEvent) -> list[Task]:
            return [Task(n=1)]

        @step
        async def work(self, ctx: Context, ev: Task) -> Done | None:
            ctx.send_event(Done(n=ev.n))
            return None

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=len(evs))

    assert await Sending().run() == 0


async def test_what_a_handler_makes_of_a_failed_member_is_in_its_batch() -> None:
    class Rescued(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(3)]

        @step
        async def work(self, ev: Task) -> Done:
            if ev.n == 1:
                raise ValueError("one")
            return Done(n=ev.n)

        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> Done:
            return Done(n=-1)

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=sorted(event.n for event in evs))

    assert await Rescued().run() == [-1, 0, 2]


async def test_a_list_needs_to_be_declared_and_one_event_does_not_make_a_list() -> None:
    class Undeclared(Workflow):
        @step
        async def split(self, ev: StartEvent) -> Task:
            return [Task(n=1)]  # type: ignore[return-value]

        @step
        async def join(self, ev: Task) -> StopEvent:
            return StopEvent()

    class Bare(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return Task(n=1)  # type: ignore[return-value]

        @step
        async def join(self, evs: list[Task]) -> StopEvent:
            return StopEvent()

    class Wrong(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [1]  # type: ignore[list-item]

        @step
        async def join(self, evs: list[Task]) -> StopEvent:
            return StopEvent()

    class Tuple(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return (Task(n=1),)  # type: ignore[return-value]

        @step
        async def join(self, evs: list[Task]) -> StopEvent:
            return StopEvent()

    for flow in (Undeclared, Bare, Wrong, Tuple):
        with pytest.raises(WorkflowRuntimeError):
            await flow(timeout=60).run()


async def test_a_list_parameter_without_a_batch_is_refused() -> None:
    class NoBatch(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> Task:
            return Task(n=1)

        @step
        async def join(self, evs: list[Task]) -> StopEvent:
            return StopEvent()

    with pytest.raises(WorkflowValidationError):
        NoBatch().run()


async def test_the_first_stop_event_of_a_list_ends_the_run() -> None:
    class Stops(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[StopEvent]:
            return [StopEvent(result=1), StopEvent(result=2)]

    assert await Stops().run() == 1


async def test_several_event_parameters_take_one_of_each() -> None:
    class Pair(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Task | Other | None:
            for n in (1, 2):
                ctx.send_event(Task(n=n))
            for n in (3, 4):
                ctx.send_event(Other(n=n))
            return None

        @step
        async def both(self, task: Task, other: Other) -> Done:
            return Done(n=task.n * 10 + other.n)

        @step
        async def end(self, ctx: Context, ev: Done) -> StopEvent | None:
            found = ctx.collect_events(ev, [Done, Done])
            return StopEvent(result=[event.n for event in found]) if found else None

    assert await Pair().run() == [13, 24]


async def test_two_parameters_of_one_class_take_two_events() -> None:
    class Twins(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Task | None:
            ctx.send_event(Task(n=1))
            ctx.send_event(Task(n=2))
            return None

        @step
        async def both(self, first: Task, second: Task) -> StopEvent:
            return StopEvent(result=[first.n, second.n])

    assert await Twins().run() == [1, 2]


async def test_a_pair_inside_a_batch_meets_and_is_joined() -> None:
    class PairInBatch(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in (1, 2)]

        @step
        async def left(self, ev: Task) -> Done:
            return Done(n=ev.n)

        @step
        async def right(self, ev: Task) -> Other:
            return Other(n=ev.n * 10)

        @step
        async def both(self, done: Done, other: Other) -> Total:
            return Total(n=done.n + other.n)

        @step
        async def join(self, evs: list[Total]) -> StopEvent:
            return StopEvent(result=sum(event.n for event in evs))

    assert await PairInBatch().run() == 33


def test_take_needs_a_number_of_one_or_more() -> None:
    for wrong in (0, -1, "x"):
        with pytest.raises(ValueError):
            Take(wrong)  # type: ignore[arg-type]
