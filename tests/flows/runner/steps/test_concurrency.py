"""How much happens at once: workers of a step, runs of a workflow."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.waiting import turns
from tidemill.engine.worker.threads import STEP_THREADS
from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent


class Task(Event):
    n: int = 0


class Done(Event):
    pass


class Gauge:
    def __init__(self) -> None:
        self.now = self.most = 0

    async def __aenter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await turns()

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_a_step_runs_as_often_at_once_as_it_has_workers(workers: int) -> None:
    gauge = Gauge()

    class Fan(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Task]:
            return [Task(n=n) for n in range(8)]

        @step(num_workers=workers)
        async def work(self, ev: Task) -> Done:
            async with gauge:
                return Done()

        @step
        async def join(self, evs: list[Done]) -> StopEvent:
            return StopEvent(result=len(evs))

    assert await Fan().run() == 8
    assert gauge.most == workers


async def test_four_workers_are_the_default() -> None:
    gauge = Gauge()

    class Fan(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Task | None:
            for n in range(10):
                ctx.send_event(Task(n=n))
            return None

        @step
        async def work(self, ctx: Context, ev: Task) -> StopEvent | None:
            async with gauge:
                return StopEvent() if ctx.collect_events(ev, [Task] * 10) else None

    await Fan().run()
    assert gauge.most == 4


async def test_runs_wait_for_their_turn() -> None:
    gauge = Gauge()

    class Work(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            async with gauge:
                return StopEvent(result=ev.n)

    flow = Work(num_concurrent_runs=2)
    assert await asyncio.gather(*(flow.run(n=n) for n in range(5))) == [0, 1, 2, 3, 4]
    assert gauge.most == 2
    gauge.most = 0
    unlimited = Work()
    await asyncio.gather(*(unlimited.run(n=n) for n in range(5)))
    assert gauge.most == 5


async def test_a_failed_run_makes_room_for_the_next() -> None:
    class Work(Workflow):
        @step
        async def work(self, ev: StartEvent) -> StopEvent:
            if ev.n == 0:
                raise ValueError
            return StopEvent(result=ev.n)

    flow = Work(num_concurrent_runs=1)
    first, second = flow.run(n=0), flow.run(n=1)
    with pytest.raises(ValueError):
        await first
    assert await second == 1


async def test_plain_steps_that_hang_fail_at_their_timeout_and_take_no_thread_from_others() -> None:
    may_end = threading.Event()

    class Hanging(Workflow):
        @step(timeout=0.5)
        def hang(self, ev: StartEvent) -> StopEvent:
            if ev.hangs:
                may_end.wait()
            return StopEvent(result="done")

    try:
        hung = [Hanging().run(hangs=True) for _ in range(STEP_THREADS + 2)]
        ended = await asyncio.gather(*hung, return_exceptions=True)
        assert all(isinstance(each, TimeoutError) for each in ended), ended
        assert "step hang of run" in str(ended[0])
        assert await Hanging().run(hangs=False) == "done"
    finally:
        may_end.set()
