"""`ctx.store`: the state that the steps of a run share."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from tidemill.flows import Context, Workflow, step
from tidemill.flows.definition.events import Event, StartEvent, StopEvent


class Draft(Event):
    n: int = 0


class Draft2(Event):
    pass


class Plain(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=await ctx.store.get("seen", default="nothing"))


class Counter(BaseModel):
    count: int = 0
    names: list[str] = Field(default_factory=list)


class Counting(Workflow):
    @step
    async def split(self, ev: StartEvent) -> list[Draft]:
        return [Draft(n=n) for n in range(20)]

    @step
    async def work(self, ctx: Context[Counter], ev: Draft) -> Draft2:
        async with ctx.store.edit_state() as state:
            before = state.count
            await asyncio.sleep(0)
            state.count = before + 1
        return Draft2()

    @step
    async def join(self, ctx: Context[Counter], evs: list[Draft2]) -> StopEvent:
        return StopEvent(result=(await ctx.store.get_state()).count)


async def test_a_run_sees_what_was_set_before_it() -> None:
    flow = Plain()
    ctx: Context = Context(flow)
    await ctx.store.set("seen", "something")
    assert await flow.run(ctx=ctx) == "something"
    assert await flow.run() == "nothing"


async def test_paths_go_through_dicts_lists_and_attributes() -> None:
    store: Any = Context(Plain()).store
    await store.set("user.name", "Ada")
    await store.set("items", [{"price": 1}, {"price": 2}])
    await store.set("draft", Draft(n=7))
    assert await store.get("user") == {"name": "Ada"}
    assert await store.get("user.name") == "Ada"
    assert await store.get("items.1.price") == 2
    assert await store.get("draft.n") == 7
    assert isinstance(await store.get("draft"), Draft)


async def test_what_is_not_there_is_an_error_unless_there_is_a_default() -> None:
    store: Any = Context(Plain()).store
    with pytest.raises(ValueError):
        await store.get("nothing")
    assert await store.get("nothing", default=None) is None
    with pytest.raises(ValueError):
        await store.set("", 1)


async def test_the_whole_state_can_be_read_replaced_and_cleared() -> None:
    store: Any = Context(Counting()).store
    assert await store.get_state() == Counter()
    await store.set_state(Counter(count=4))
    assert await store.get("count") == 4
    with pytest.raises(ValueError):
        await store.set_state({"count": 4})
    await store.clear()
    assert await store.get("count") == 0


async def test_a_typed_state_refuses_fields_it_does_not_have() -> None:
    store: Any = Context(Counting()).store
    with pytest.raises(ValueError):
        await store.set("nope", 1)


async def test_editing_is_exclusive() -> None:
    assert await Counting().run() == 20


async def test_an_edit_that_raises_changes_nothing() -> None:
    store: Any = Context(Counting()).store

    async def edit() -> None:
        async with store.edit_state() as state:
            state.count = 5
            state.names.append("Ada")
            raise KeyError

    with pytest.raises(KeyError):
        await edit()
    assert await store.get_state() == Counter()


async def test_an_untyped_state_is_edited_like_a_dict_with_attributes() -> None:
    store: Any = Context(Plain()).store
    async with store.edit_state() as state:
        state.count = 1
        state["other"] = 2
    assert await store.get("count") == 1
    assert await store.get("other") == 2


async def test_a_state_that_needs_values_is_refused_by_run() -> None:
    class Needy(BaseModel):
        name: str

    class Needing(Workflow):
        @step
        async def work(self, ctx: Context[Needy], ev: StartEvent) -> StopEvent:
            return StopEvent()

    with pytest.raises(ValidationError):
        Needing().run()


async def test_states_that_have_nothing_in_common_are_refused() -> None:
    class Mine(BaseModel):
        a: int = 0

    class Mixed(Workflow):
        @step
        async def one(self, ctx: Context[Mine], ev: StartEvent) -> Draft:
            return Draft()

        @step
        async def two(self, ctx: Context[Counter], ev: Draft) -> StopEvent:
            return StopEvent()

    with pytest.raises(ValueError):
        Mixed().run()


async def test_the_most_derived_state_is_the_runs() -> None:
    class More(Counter):
        extra: str = "more"

    class Derived(Workflow):
        @step
        async def one(self, ctx: Context[Counter], ev: StartEvent) -> Draft:
            await ctx.store.set("count", 3)
            return Draft()

        @step
        async def two(self, ctx: Context[More], ev: Draft) -> StopEvent:
            state = await ctx.store.get_state()
            return StopEvent(result=(state.count, state.extra))

    assert await Derived().run() == (3, "more")


async def test_the_state_can_be_read_from_the_handler() -> None:
    class Setting(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("n", 1)
            return StopEvent()

    handler = Setting().run()
    await handler
    assert await handler.ctx.store.get("n") == 1


async def test_a_context_used_again_keeps_its_state() -> None:
    class Adding(Workflow):
        @step
        async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
            n = await ctx.store.get("n", default=0) + 1
            await ctx.store.set("n", n)
            return StopEvent(result=n)

    flow = Adding()
    ctx: Context = Context(flow)
    assert [await flow.run(ctx=ctx) for _ in range(3)] == [1, 2, 3]
