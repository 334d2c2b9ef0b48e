"""Runs that are started by runs: their results, and their end with the parent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import eventually
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.errors import WorkflowCancelledByUser
from tidemill.store.database import Database


class Uttered(Event):
    text: str


async def test_a_child_run_gives_its_result_to_the_step_that_started_it(app: App, database: Database) -> None:
    @app.workflow
    class Child(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            if ev.n < 0:
                raise ValueError("negative")
            return StopEvent(result=ev.n * 10)

    @app.workflow
    class Parent(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            first = await ctx.child(Child, n=1)
            second = await ctx.child("Child", n=first)
            try:
                await ctx.child(Child, n=-1)
            except ValueError as error:
                return StopEvent(result=[first, second, str(error)])
            return StopEvent(result="no error")

    async with app.running():
        handle = await app.start(Parent)
        assert await handle.result(timeout=120) == [10, 100, "negative"]
    rows = await database.fetch("SELECT workflow, parent, state FROM tidemill.run ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("Parent", None, "succeeded"),
        ("Child", handle.id, "succeeded"),
        ("Child", handle.id, "succeeded"),
        ("Child", handle.id, "failed"),
    ]


async def test_a_child_runs_in_memory_when_its_parent_does() -> None:
    class Child(Workflow):
        @step
        async def only(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result=ev.n + 1)

    class Parent(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await ctx.child(Child, n=1))

    assert await Parent().run() == 2


async def test_children_end_with_their_parent(app: App) -> None:
    @app.workflow(timeout=None)
    class Child(Workflow):
        @step
        async def only(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(Uttered)
            return StopEvent()

    @app.workflow
    class Parent(Workflow):
        @step
        async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
            return StopEvent(result=await ctx.child(Child))

    async with app.running():
        parent = await app.start(Parent)

        async def child_is_there() -> Any:
            database = await app.declarations.reach()
            return await database.fetch("SELECT id FROM tidemill.run WHERE parent = $1", parent.id)

        ((number,),) = await eventually(child_is_there)
        await parent.cancel()
        child = await app.runs.get(number)

        async def child_is_over() -> bool:
            return await child.state() == "cancelled"

        await eventually(child_is_over)


async def test_a_child_that_is_stored_after_its_parents_end_ends_too(app: App, database: Database) -> None:
    @app.workflow(timeout=None)
    class Waiting(Workflow):
        @step
        async def only(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(Uttered)
            return StopEvent()

    async with app.running():
        parent = await app.start(Waiting)
        await parent.cancel()
        with pytest.raises(WorkflowCancelledByUser):
            await parent.result(timeout=120)
        starter = app.runs.flows["Waiting"].starter
        assert await starter("Waiting", {}, "late", (parent.id, 1)) is None, "it has just been stored"
        late = (await database.fetch("SELECT id FROM tidemill.run WHERE parent = $1", parent.id))[0]["id"]
        with pytest.raises(WorkflowCancelledByUser):
            await (await app.runs.get(late)).result(timeout=120)
