"""Answers are handed out one at a time, each when the step has come to rest, on the loops of asyncio and uvloop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest
import uvloop

from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.flows.reducer.record import RecordedOperation
from tidemill.flows.runner.in_memory import FlowRun
from tidemill.flows.runner.replay.record_order import END, RecordOrder
from tidemill.flows.runner.replay.turns import Turns
from tidemill.flows.runner.state_store import StateCell
from tidemill.flows.runner.steps.current_step import enter_step

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Idle(Workflow):
    @step
    async def work(self, ev: StartEvent) -> StopEvent:
        return StopEvent()


class Step:
    """A step with tasks that wait for answers and pass them on to each other."""

    def __init__(self, order: RecordOrder | None = None) -> None:
        self.run = FlowRun(Idle(), "r1", StateCell())
        enter_step(self.run, 1)
        self.turns = Turns(asyncio.get_running_loop(), (self.run.weak, 1), "work", order)
        self.seen: list[Any] = []

    def future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    async def pass_on(self, future: asyncio.Future[Any], hops: int) -> None:
        """Receive an answer, and see it after so many turns of the loop."""
        word = await future
        for _ in range(hops):
            await asyncio.sleep(0)
        self.seen.append(word)


def run(loop: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_next_answer_comes_when_the_code_rests_after_the_one_before(loop: Any) -> None:
    async def main() -> list[Any]:
        step = Step()
        futures = [step.future() for _ in range(3)]
        tasks = [
            asyncio.create_task(step.pass_on(each, hops)) for each, hops in zip(futures, (200, 50, 0), strict=True)
        ]
        await asyncio.sleep(0)
        for n, each in enumerate(futures):
            step.turns.give("", each, n)
        await asyncio.gather(*tasks)
        return step.seen

    assert run(loop, main) == [0, 1, 2]


@pytest.mark.parametrize("loop", LOOPS)
def test_own_work_does_not_keep_answers_back(loop: Any) -> None:
    async def main() -> list[Any]:
        step = Step()
        asleep = asyncio.create_task(asyncio.sleep(60))
        future = step.future()
        task = asyncio.create_task(step.pass_on(future, 3))
        step.turns.give("", future, "now")
        await task
        asleep.cancel()
        return step.seen

    assert run(loop, main) == ["now"]


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_run_has_left_behind_does_not_keep_answers_back(loop: Any) -> None:
    async def main() -> list[Any]:
        left = copy_context()
        left.run(Step)  # The run is gone, and callbacks of its step are still to run.
        step = Step()
        future = step.future()
        task = asyncio.create_task(step.pass_on(future, 3))
        step.turns.give("", future, "now")
        asyncio.get_running_loop().call_soon(gc.collect, context=left)
        await task
        return step.seen

    assert run(loop, main) == ["now"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_that_only_spins_does_not_keep_answers_back(loop: Any) -> None:
    async def main() -> list[Any]:
        step = Step()

        async def spin() -> None:
            while not step.seen:
                await asyncio.sleep(0)

        future = step.future()
        tasks = [asyncio.create_task(spin()), asyncio.create_task(step.pass_on(future, 0))]
        await asyncio.sleep(0)
        step.turns.give("", future, "at last")
        await asyncio.gather(*tasks)
        return step.seen

    assert run(loop, main) == ["at last"]


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_follow_the_order_of_the_record(loop: Any) -> None:
    async def main() -> list[Any]:
        order = RecordOrder([RecordedOperation(lane, "answered", "") for lane in "cab"])
        step = Step(order)

        async def part(lane: str, position: int) -> None:
            await step.turns.take(lane, position)
            order.do(position)
            step.turns.progress()
            step.seen.append(lane)

        async def after() -> None:
            await step.turns.take("d", END)
            step.seen.append("d")

        await asyncio.gather(after(), part("a", 1), part("b", 2), part("c", 0))
        return step.seen

    assert run(loop, main) == ["c", "a", "b", "d"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_task_that_ends_is_not_waited_for(loop: Any) -> None:
    async def main() -> list[Any]:
        order = RecordOrder([RecordedOperation(lane, "set", "x") for lane in "ab"])
        step = Step(order)
        task = asyncio.create_task(step.turns.take("b", 1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        order.end_lane("a")
        step.turns.progress()
        await task
        return step.seen

    assert run(loop, main) == []
