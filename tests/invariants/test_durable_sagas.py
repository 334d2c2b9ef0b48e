"""A run that fails or is cancelled runs its compensations first, in reverse order; a reply reaches its asker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ConfigDict

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.flows import CompensationEvent, Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.errors import (
    RunNeedsAttentionError,
    WorkflowCancelledByUser,
    WorkflowRuntimeError,
    WorkflowTimeoutError,
)
from tidemill.store.database import Database

done: list[str] = []


class Refund(CompensationEvent):
    order: int


class Paid(Event):
    pass


class Question(HumanResponseEvent):
    n: int


class Booking(Workflow):
    """Charges twice, and then fails, waits or is done."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(2)))
    async def pay(self, ctx: Context, ev: StartEvent) -> Paid:
        for order in (1, 2):
            await ctx.compensate(self.refund, Refund(order=order))
            await ctx.once(f"charge {order}", lambda order=order: done.append(f"charge {order}"))
        if ctx.retry_info().retry_number == 0:
            raise OSError("try again")
        return Paid()

    @step
    async def deliver(self, ctx: Context, ev: Paid) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        if go.word != "deliver":
            raise LookupError("no such address")
        return StopEvent(result="delivered")

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(2)))
    async def refund(self, ctx: Context, ev: Refund) -> None:
        if ev.order == 2 and ctx.retry_info().retry_number == 0:
            raise OSError("try again")
        done.append(f"refund {ev.order}")


@pytest.fixture
def app(app: App) -> App:
    done.clear()
    app.workflow(Booking, timeout=3600)
    return app


async def waiting_booking(app: App, database: Database) -> Any:
    run = await app.start(Booking)
    await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.snapshot WHERE run_id = $1", run.id))
    assert done == ["charge 1", "charge 2"]
    return run


async def test_a_run_that_fails_undoes_in_reverse_order_what_it_did(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await waiting_booking(app, database)
    async with running_run_worker(app):
        await run.send_event(Go(word="nowhere"))
        with pytest.raises(LookupError, match="no such address"):
            await run.result(timeout=120)
        assert done == ["charge 1", "charge 2", "refund 2", "refund 1"]
        assert await run.state() == "failed"


async def test_a_cancelled_run_and_one_that_times_out_are_undone_too(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await waiting_booking(app, database)
        await run.cancel()
        with pytest.raises(WorkflowCancelledByUser):
            await run.result(timeout=120)
        assert done[2:] == ["refund 2", "refund 1"]
        done.clear()
        run = await waiting_booking(app, database)
        await database.fetch("UPDATE tidemill.inbox SET due_at = now() WHERE run_id = $1", run.id)
        with pytest.raises(WorkflowTimeoutError):
            await run.result(timeout=120)
        assert done[2:] == ["refund 2", "refund 1"]


async def test_a_run_that_needs_attention_is_undone_when_it_is_cancelled(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await waiting_booking(app, database)
    await database.fetch("UPDATE tidemill.run SET state = 'needs_attention', note = 'diverged' WHERE id = $1", run.id)
    await run.cancel("enough")
    assert await run.state() == "running", "its run worker undoes first what it did"
    async with running_run_worker(app):
        with pytest.raises(WorkflowCancelledByUser):
            await run.result(timeout=120)
    assert done[2:] == ["refund 2", "refund 1"]
    assert await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id) == "enough"


async def test_a_run_that_cannot_be_undone_any_more_ends_when_it_is_cancelled_once_more(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        run = await waiting_booking(app, database)
    await database.fetch("UPDATE tidemill.snapshot SET data = replace(data::text, '\"deliver\"', '\"gone\"')::json")
    async with running_run_worker(app):
        await run.cancel("enough")
        with pytest.raises(RunNeedsAttentionError):
            await run.result(timeout=120)
        await run.cancel("now")
        with pytest.raises(WorkflowCancelledByUser):
            await run.result(timeout=120)
    assert done == ["charge 1", "charge 2"]


async def test_a_run_that_succeeds_undoes_nothing(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await waiting_booking(app, database)
        await run.send_event(Go(word="deliver"))
        assert await run.result(timeout=120) == "delivered"
    assert done == ["charge 1", "charge 2"]


async def test_a_compensation_that_fails_is_named_and_the_others_run(app: App, database: Database) -> None:
    @app.workflow
    class Hopeless(Workflow):
        @step
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.compensate("refund", Refund(order=1))
            await ctx.compensate("refund", Refund(order=2))
            raise LookupError("lost")

        @step
        async def refund(self, ev: Refund) -> None:
            if ev.order == 2:
                raise OSError("the bank is closed")
            done.append(f"refund {ev.order}")

    async with running_run_worker(app):
        run = await app.start(Hopeless)
        with pytest.raises(LookupError, match="lost"):
            await run.result(timeout=120)
    assert done == ["refund 1"]
    note = await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id)
    assert note == "LookupError: lost; compensation failed: refund: the bank is closed"


class Counter(Workflow):
    """Answers questions about a number that it keeps."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Go)
        return StopEvent()

    @step(num_workers=1)
    async def answer(self, ctx: Context, ev: Question) -> None:
        total = await ctx.store.get("total", default=0) + ev.n
        await ctx.store.set("total", total)
        ctx.reply({"total": total, "of": (ev.n,)})


async def test_an_asker_gets_the_reply_to_its_own_question(app: App) -> None:
    app.workflow(Counter, skip_graph_checks=["dead_end"])
    async with running_run_worker(app):
        run = await app.start(Counter)
        replies = await asyncio.gather(*(run.ask(Question(n=n), timeout=150) for n in range(1, 6)))
        assert sorted(each["of"] for each in replies) == [(1,), (2,), (3,), (4,), (5,)]
        assert sorted(each["total"] for each in replies)[-1] == 15
        await run.send_event(Question(n=1))
        assert (await run.ask(Question(n=1), timeout=150))["total"] == 17
        await run.send_event(Go(word="end"))
        await run.result(timeout=120)


class Guarded(Workflow):
    """Waits beside its own end, or another beginning."""

    @step
    async def guard(self, ctx: Context, ev: StartEvent) -> None:
        await ctx.compensate(self.refund, Refund(order=ev.round))
        try:
            await ctx.wait_for_event(Go)
        finally:
            done.append(f"stopped {ev.round}")

    @step
    async def go_on(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Question, requirements={"n": ev.round})
        if ev.round == 1:
            return ctx.continue_as_new(round=2)
        raise LookupError("enough")

    @step
    async def refund(self, ev: Refund) -> None:
        done.append(f"refund {ev.order}")


GUARDED = ["stopped 1", "stopped 2", "refund 2", "refund 1"]


async def test_a_step_that_waits_is_stopped_before_the_run_is_undone_or_begins_again() -> None:
    done.clear()
    run = Guarded(timeout=None).run(round=1)
    for n in (1, 2):
        await run.send_event(Question(n=n))
    with pytest.raises(LookupError, match="enough"):
        await run
    assert done == GUARDED


async def test_a_step_that_waits_in_memory_is_stopped_before_its_durable_run_is_undone_or_begins_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 600.0)
    app.workflow(Guarded)
    async with running_run_worker(app):
        run = await app.start(Guarded, round=1)
        for n in (1, 2):
            await run.send_event(Question(n=n))
        with pytest.raises(LookupError, match="enough"):
            await run.result(timeout=120)
    assert done == GUARDED


async def test_asking_a_run_that_ends_without_a_reply_raises(app: App) -> None:
    @app.workflow
    class Silent(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.wait_for_event(Question)
            return StopEvent()

    async with running_run_worker(app):
        run = await app.start(Silent)
        with pytest.raises(WorkflowRuntimeError, match="ended without a reply to Question"):
            await run.ask(Question(n=1), timeout=150)
    with pytest.raises(WorkflowRuntimeError, match="ended without a reply to Question"):
        await Silent().run().ask(Question(n=1), timeout=150)


class Letter(HumanResponseEvent):
    """Has a field and a strictness of its own: what a reply is for is beside its values."""

    model_config = ConfigDict(extra="forbid")

    reply_to: str


class Offer(HumanResponseEvent):
    price: int


class Bid(HumanResponseEvent):
    price: int


class Office(Workflow):
    """Answers a letter, and an offer together with a bid."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Go)
        return StopEvent()

    @step
    async def read(self, ctx: Context, ev: Letter) -> None:
        ctx.reply([ev.reply_to, len(ev)])

    @step
    async def match(self, ctx: Context, offer: Offer, bid: Bid) -> None:
        ctx.reply(bid.price - offer.price)


async def test_a_reply_reaches_its_asker_whatever_the_fields_of_the_event_and_the_parameters_of_the_step(
    app: App,
) -> None:
    app.workflow(Office, skip_graph_checks=["dead_end"])
    async with running_run_worker(app):
        for run in (await app.start(Office), Office().run()):
            assert await run.ask(Letter(reply_to="ada@example.org"), timeout=150) == ["ada@example.org", 0]
            asked = [run.ask(each, timeout=150) for each in (Offer(price=3), Bid(price=5))]
            assert await asyncio.gather(*asked) == [2, 2]
            await run.send_event(Go(word="end"))
            await run
