"""What a durable run keeps has the same value and type in every process, or is refused by name when it is written."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr, field_serializer

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.core.errors import PayloadError
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Size(Enum):
    SMALL = "s"


class Line(BaseModel):
    price: Decimal
    made: datetime = NOON


class Order(BaseModel):
    id: UUID = UUID(int=7)
    size: Size = Size.SMALL
    lines: list[Line] = Field(default_factory=list)
    seen: set[int] = Field(default_factory=set)
    by_number: dict[int, str] = Field(default_factory=dict)
    raw: bytes = b"\xff"
    place: Path = Path("a/b")
    key: SecretStr = SecretStr("s3cret")
    client: Any = Field(default=None, exclude=True)
    hidden: int = 0

    @field_serializer("hidden")
    def _hide(self, hidden: int) -> str:
        return str(hidden)


class Filled(Event):
    pass


class Typed(Workflow):
    """Fills a typed state and reads it again after its run has left memory."""

    @step
    async def fill(self, ctx: Context[Order], ev: StartEvent) -> Filled:
        async with ctx.store.edit_state() as order:
            order.lines.append(Line(price=Decimal("1.10")))
            order.seen |= {1, 2}
            order.by_number[3] = "three"
            order.client = threading.Lock()
            order.hidden = 5
        return Filled()

    @step
    async def read(self, ctx: Context[Order], ev: Filled) -> StopEvent:
        await ctx.wait_for_event(Go)
        return StopEvent(result=await ctx.store.get_state())


class Untyped(Workflow):
    """The same without a declared state, and with values in the events."""

    @step
    async def fill(self, ctx: Context, ev: StartEvent) -> Filled:
        await ctx.store.set("at", NOON)
        await ctx.store.set("order.lines", (Line(price=Decimal(2)), {1: {"x"}}))
        await ctx.store.set("client", threading.Lock(), durable=False)
        assert await ctx.store.get("client")
        return Filled(**{"when": ev.when, "tags": frozenset({"a"})})

    @step
    async def read(self, ctx: Context, ev: Filled) -> StopEvent:
        await ctx.wait_for_event(Go)
        state = await ctx.store.get_state()
        left = await ctx.store.get("client", default="gone")
        return StopEvent(result=(state.at, state.order["lines"], ev.when, ev.tags, left))


class Careless(Workflow):
    """Puts a live object into its state."""

    @step
    async def connect(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set("user", {"name": "Ada", "lock": threading.Lock()})
        return StopEvent()


async def released_and_answered(app: App, database: Database, run: RunHandle) -> Any:
    """Wait until a run has left memory, and let another process finish it."""
    async with running_run_worker(app) as run_worker:
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.snapshot WHERE run_id = $1", run.id))
        await eventually(lambda: not run_worker.work.runs)
    async with running_run_worker(app):
        await run.send_event(Go(word="on"))
        return await run.result(timeout=120)


async def test_a_typed_state_is_the_same_after_the_run_has_left_memory(app: App, database: Database) -> None:
    app.workflow(Typed)
    order = await released_and_answered(app, database, await app.start(Typed))
    assert order == Order(
        lines=[Line(price=Decimal("1.10"))], seen={1, 2}, by_number={3: "three"}, key=SecretStr("s3cret"), hidden=5
    )
    assert order.key.get_secret_value() == "s3cret"
    assert order.client is None, "it is excluded, so it is not stored"


async def test_an_untyped_state_and_events_keep_the_types_of_their_values(app: App, database: Database) -> None:
    app.workflow(Untyped)
    result = await released_and_answered(app, database, await app.start(Untyped, when=NOON))
    assert result == (NOON, (Line(price=Decimal(2)), {1: {"x"}}), NOON, frozenset({"a"}), "gone")
    assert type(result[1][0]) is Line


async def test_a_result_has_the_same_types_in_the_process_of_the_run_and_in_every_other(app: App) -> None:
    @app.workflow
    class Mixed(Workflow):
        @step
        async def end(self, ev: StartEvent) -> StopEvent:
            return StopEvent(result={"pair": (1, 2), "at": NOON, "line": Line(price=Decimal(1)), "ids": {UUID(int=1)}})

    async with running_run_worker(app):
        run = await app.start(Mixed)
        near = await run
        far = await (await app.runs.get(run.id)).result(timeout=120)
    assert near == far
    assert [type(each) for each in far.values()] == [tuple, datetime, Line, set]


async def test_a_live_object_is_refused_with_its_key_and_step(app: App) -> None:
    app.workflow(Careless)
    async with running_run_worker(app):
        run = await app.start(Careless)
        with pytest.raises(PayloadError, match=r"step connect: the value at 'user\.lock' in the state .*_thread\.lock"):
            await run.result(timeout=120)


async def test_values_that_a_step_has_read_do_not_reach_the_state_unwritten(app: App) -> None:
    @app.workflow
    class Sharing(Workflow):
        @step
        async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.store.edit_state() as state:
                state.items_seen = [1]
                state.lock = None
            before = (await ctx.store.get_state()).items_seen
            async with ctx.store.edit_state() as state:
                state.items_seen.append(2)
            return StopEvent(result=(before, await ctx.store.get("items_seen")))

    async with running_run_worker(app):
        assert await (await app.start(Sharing)).result(timeout=120) == ([1], [1, 2])


async def test_an_edit_in_memory_shares_live_objects() -> None:
    lock = threading.Lock()

    class Live(Workflow):
        @step
        async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("lock", lock)
            async with ctx.store.edit_state() as state:
                state.count = 1
            return StopEvent(result=[await ctx.store.get("lock") is lock, await ctx.store.get("count")])

    assert await Live().run() == [True, 1]


async def test_a_secret_is_shown_masked(app: App, database: Database) -> None:
    from tidemill.ops.runs.journal import GetStateAt, GetTicks, get_state_at, get_ticks

    @app.workflow
    class Keeping(Workflow):
        @step
        async def keep(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("key", SecretStr("s3cret"))
            await ctx.wait_for_event(Go)
            return StopEvent(result=(await ctx.store.get("key")).get_secret_value())

    async with running_run_worker(app):
        run = await app.start(Keeping, key=SecretStr("s3cret"))
        await eventually(lambda: value(database, "SELECT count(*) > 1 FROM tidemill.tick WHERE run_id = $1", run.id))
        assert "s3cret" not in repr(await app.do(get_ticks, GetTicks(id=run.id)))
        assert "s3cret" not in repr(await app.do(get_state_at, GetStateAt(id=run.id)))
        await run.send_event(Go(word="on"))
        assert await run.result(timeout=120) == "s3cret"
