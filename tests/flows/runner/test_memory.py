"""A run that has ended leaves memory, whatever its steps have left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from tests.support import eventually
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.simulate import simulate


async def _sleep_for_ever() -> None:
    await asyncio.Event().wait()


def _task(left: list[Any]) -> None:
    left.append(asyncio.create_task(_sleep_for_ever()))


def _timer(left: list[Any]) -> None:
    left.append(asyncio.get_running_loop().call_later(3600, print))


def _thread(left: list[Any]) -> None:
    stop = asyncio.get_running_loop().create_future()
    left.append(asyncio.ensure_future(asyncio.to_thread(print, end="")))
    left.append(stop)


class Middle(Event):
    pass


class Leaving(Workflow):
    def __init__(self, leave: Callable[[list[Any]], None], left: list[Any]) -> None:
        super().__init__()
        self.leave, self.left = leave, left

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Middle:
        self.leave(self.left)
        await ctx.store.set("n", 1)
        return Middle()

    @step
    async def end(self, ev: Middle) -> StopEvent:
        self.leave(self.left)
        return StopEvent(result="done")


@pytest.mark.parametrize("leave", [_task, _timer, _thread])
async def test_what_a_step_leaves_behind_does_not_keep_its_run(leave: Callable[[list[Any]], None]) -> None:
    left: list[Any] = []
    flow = Leaving(leave, left)
    handler = flow.run()
    assert await handler == "done"
    kept = [weakref.ref(flow), weakref.ref(handler._run), weakref.ref(handler.ctx)]
    del flow, handler
    gc.collect()
    assert [each() for each in kept] == [None, None, None]
    for each in left:
        each.cancel()


async def test_code_that_a_step_calls_finds_the_context_of_the_step() -> None:
    async def inner() -> int:
        return await Context.get_step_context().store.get("n")

    class Asking(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("n", 7)
            return StopEvent(result=await asyncio.create_task(inner()))

    assert await Asking().run() == 7


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
async def test_a_durable_run_is_freed_without_the_garbage_collector_when_it_ends(app: App) -> None:
    begun: list[weakref.ref[Any]] = []

    class Logging(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Middle:
            begun.append(weakref.ref(ctx._run))
            structlog.get_logger("test").info("begun")
            await ctx.store.set("n", 1)
            return Middle()

        @step
        async def end(self, ev: Middle) -> StopEvent:
            return StopEvent(result="done")

    app.workflow(Logging)
    async with app.running():
        for _ in range(3):
            assert await (await app.start(Logging)) == "done"
        await eventually(lambda: [each() for each in begun] == [None, None, None])


class Together(Workflow):
    """Its tasks take turns."""

    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async def one(n: int) -> int:
            await ctx.sleep(1)
            return n

        return StopEvent(result=await asyncio.gather(one(1), one(2)))


def count_loops() -> int:
    gc.collect()
    return sum(isinstance(each, asyncio.AbstractEventLoop) for each in gc.get_objects())


def test_simulated_steps_of_several_tasks_keep_no_event_loop() -> None:
    before = count_loops()
    for seed in range(3):
        assert simulate(Together(timeout=None), seed=seed).result() == [1, 2]
    assert count_loops() <= before
