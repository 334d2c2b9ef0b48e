"""Steps on queues: their jobs, results, retries and waits."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from tests.support import eventually
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.errors import WorkflowRuntimeError, WorkflowValidationError
from tidemill.store.database import Database

THRICE = retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(3))


class Part(Event):
    n: int


class Square(Event):
    n: int


class Uttered(Event):
    text: str


class Progress(Event):
    done: int


async def jobs_of(database: Database, run: int) -> list[dict[str, Any]]:
    rows = await database.fetch(
        "SELECT task, queue, state, attempt, note FROM tidemill.job_history WHERE run_id = $1 ORDER BY id", run
    )
    return [dict(row) for row in rows]


async def test_a_step_on_a_queue_is_a_job_and_its_result_comes_back(app: App, database: Database) -> None:
    @app.workflow
    class Far(Workflow):
        @step
        async def near(self, ev: StartEvent) -> Part:
            return Part(n=ev.n)

        @step(queue="gpu")
        async def far(self, ev: Part) -> StopEvent:
            return StopEvent(result=ev.n * ev.n)

    async with app.running():
        handle = await app.start(Far, n=7)
        assert await handle == 49
    assert await jobs_of(database, handle.id) == [
        {"task": "Far.far", "queue": "gpu", "state": "succeeded", "attempt": 1, "note": None}
    ]


async def test_the_jobs_of_a_step_have_its_budget_priority_and_model(app: App, database: Database) -> None:
    @app.workflow
    class Heavy(Workflow):
        @step(queue="gpu", budget="10m", priority=8, required_model="large")
        async def far(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

    async with running_run_worker(app):
        run = await app.start(Heavy)
        (row,) = await eventually(
            lambda: database.fetch(
                "SELECT priority, required_model, options FROM tidemill.job WHERE run_id = $1", run.id
            )
        )
    assert (row["priority"], row["required_model"]) == (8, "large")
    assert json.loads(row["options"])["budget"] == 600.0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": "10m"}, "only a step on a queue has jobs"), ({"queue": "gpu", "priority": 12}, "outside 0 to 9")],
)
def test_job_options_that_cannot_apply_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowValidationError, match=message):

        class Refused(Workflow):
            @step(**options)
            async def far(self, ev: StartEvent) -> StopEvent:
                return StopEvent()


async def test_a_step_on_a_queue_runs_in_place_when_the_run_is_in_memory() -> None:
    class Here(Workflow):
        @step(queue="gpu")
        async def far(self, ctx: Context, ev: StartEvent) -> StopEvent:
            answer = await ctx.wait_for_event(Uttered)
            return StopEvent(result=(os.getpid(), answer.text))

    handler = Here().run()
    await asyncio.sleep(0)
    handler.ctx.send_event(Uttered(text="hi"))
    assert await handler == (os.getpid(), "hi")


async def test_state_sends_and_shown_events_of_a_step_on_a_queue_reach_the_run(app: App) -> None:
    @app.workflow
    class Telling(Workflow):
        @step
        async def begin(self, ctx: Context, ev: StartEvent) -> Part:
            await ctx.store.set("words", ["one"])
            return Part(n=1)

        @step(queue="far")
        async def far(self, ctx: Context, ev: Part) -> Square | None:
            words = await ctx.store.get("words")
            await ctx.store.set("words", [*words, "two"])
            assert await ctx.store.get("words") == ["one", "two"]
            ctx.write_event_to_stream(Progress(done=1))
            ctx.send_event(Square(n=ev.n))

        @step
        async def end(self, ctx: Context, ev: Square) -> StopEvent:
            return StopEvent(result=await ctx.store.get("words"))

    async with app.running():
        handle = await app.start(Telling)
        shown = [event async for event in handle.stream_events()]
        assert await handle == ["one", "two"]
    assert Progress(done=1) in shown


async def test_what_a_step_on_a_queue_shows_last_is_published_in_order_before_its_run_ends(app: App) -> None:
    @app.workflow
    class Counting(Workflow):
        @step
        async def begin(self, ev: StartEvent) -> Part:
            return Part(n=1)

        @step(queue="far")
        async def far(self, ctx: Context, ev: Part) -> StopEvent:
            for n in range(50):
                ctx.write_event_to_stream(Progress(done=n))
            return StopEvent(result="counted")

    async with app.running():
        handle = await app.start(Counting)
        shown = [event async for event in handle.stream_events()]
    assert shown == [*(Progress(done=n) for n in range(50)), StopEvent(result="counted")]


async def test_edits_of_steps_on_a_queue_are_exclusive(app: App) -> None:
    @app.workflow
    class Tally(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Part]:
            return [Part(n=n) for n in range(8)]

        @step(queue="gpu")
        async def add(self, ctx: Context, ev: Part) -> Square:
            async with ctx.store.edit_state() as state:
                state.count = state.get("count", 0) + 1
                state.seen = [*state.get("seen", []), (ev.n, {f"{ev.n}"})]
            return Square(n=ev.n)

        @step
        async def join(self, ctx: Context, evs: list[Square]) -> StopEvent:
            state = await ctx.store.get_state()
            return StopEvent(result=(state.count, sorted(n for n, _ in state.seen)))

    async with app.running():
        assert await (await app.start(Tally)).result(timeout=150) == (8, list(range(8)))


async def test_a_fan_out_over_a_queue_is_collected_again(app: App, database: Database) -> None:
    @app.workflow
    class Wide(Workflow):
        @step
        async def split(self, ev: StartEvent) -> list[Part]:
            return [Part(n=n) for n in range(200)]

        @step(queue="far", num_workers=200)
        async def work(self, ev: Part) -> Square:
            return Square(n=ev.n * ev.n)

        @step
        async def join(self, events: list[Square]) -> StopEvent:
            return StopEvent(result=sum(event.n for event in events))

    async with app.running():
        handle = await app.start(Wide)
        assert await handle == sum(n * n for n in range(200))
    assert len(await jobs_of(database, handle.id)) == 200


async def test_the_retry_policy_of_a_step_on_a_queue_is_obeyed_and_failed_attempts_leave_nothing(
    app: App, database: Database
) -> None:
    @app.workflow
    class Flaky(Workflow):
        @step(queue="far", retry_policy=THRICE)
        async def far(self, ctx: Context, ev: StartEvent) -> StopEvent:
            await ctx.store.set("tried", await ctx.store.get("tried", default=0) + 1)
            if ctx.retry_info().retry_number < 2:
                raise ValueError("not yet")
            return StopEvent(result=await ctx.store.get("tried"))

    async with app.running():
        handle = await app.start(Flaky)
        assert await handle == 1
    assert len(await jobs_of(database, handle.id)) == 3


async def test_a_step_on_a_queue_that_fails_for_good_fails_its_run_with_the_same_exception(app: App) -> None:
    @app.workflow
    class Bad(Workflow):
        @step(queue="far")
        async def far(self, ev: StartEvent) -> StopEvent:
            raise ValueError("no good")

    async with app.running():
        with pytest.raises(ValueError, match="no good"):
            await (await app.start(Bad))


async def test_a_step_on_a_queue_that_exits_is_a_failed_attempt_of_the_step(app: App, database: Database) -> None:
    @app.workflow
    class Exits(Workflow):
        @step(queue="far", retry_policy=THRICE)
        async def far(self, ctx: Context, ev: StartEvent) -> StopEvent:
            if ctx.retry_info().retry_number < 2:
                raise SystemExit("not yet")
            return StopEvent(result=str(ctx.retry_info().last_exception))

    async with app.running():
        handle = await app.start(Exits)
        assert await handle == "step far raised SystemExit: not yet"
    assert [job["state"] for job in await jobs_of(database, handle.id)] == ["succeeded"] * 3


async def test_a_step_on_a_queue_that_waits_ends_its_job_and_is_a_job_again_when_answered(
    app: App, database: Database
) -> None:
    effects: list[int] = []

    @app.workflow
    class Asks(Workflow):
        @step(queue="far")
        async def far(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async def effect() -> int:
                effects.append(1)
                return len(effects)

            first = await ctx.once("first", effect)
            await ctx.store.set("before", True)
            answer = await ctx.wait_for_event(Uttered)
            return StopEvent(result=[answer.text, first, await ctx.store.get("before")])

    async with app.running():
        handle = await app.start(Asks)
        await eventually(lambda: jobs_of(database, handle.id))
        await handle.send_event(Uttered(text="yes"))
        assert await handle.result(timeout=120) == ["yes", 1, True]
    assert len(await jobs_of(database, handle.id)) == 2
    assert effects == [1]


async def test_what_cannot_be_had_on_a_queue_is_said_clearly(app: App) -> None:
    @app.workflow
    class Collects(Workflow):
        @step(queue="far")
        async def far(self, ctx: Context, ev: StartEvent) -> StopEvent:
            ctx.collect_events(ev, [StartEvent])
            return StopEvent()

    async with app.running():
        with pytest.raises(WorkflowRuntimeError, match="use a list of events"):
            await (await app.start(Collects))


async def test_cancelling_a_run_cancels_its_jobs(app: App, database: Database) -> None:
    begun = asyncio.Event()

    @app.workflow
    class Long(Workflow):
        @step
        async def split(self, ctx: Context, ev: StartEvent) -> Part | Square:
            ctx.send_event(Square(n=1))
            return Part(n=1)

        @step(queue="far")
        async def running(self, ev: Part) -> StopEvent:
            begun.set()
            await asyncio.Event().wait()
            return StopEvent()

        @step(queue="nobody")
        async def waiting(self, ev: Square) -> StopEvent:
            return StopEvent()

    async with app.running(queues=["far"]):
        handle = await app.start(Long)
        await begun.wait()
        await handle.cancel()
        await eventually(lambda: _no_jobs(database))
    jobs = await jobs_of(database, handle.id)
    assert {job["task"]: job["state"] for job in jobs} == {"Long.running": "cancelled", "Long.waiting": "cancelled"}


async def _no_jobs(database: Database) -> bool:
    return not await database.fetch("SELECT FROM tidemill.job")


async def test_a_job_that_an_operator_cancels_fails_its_step(app: App, database: Database) -> None:
    @app.workflow
    class Stuck(Workflow):
        @step(queue="nobody")
        async def far(self, ev: StartEvent) -> StopEvent:
            return StopEvent()

    async with app.running(queues=["other"]):
        handle = await app.start(Stuck)
        (row,) = await database.fetch("SELECT id FROM tidemill.job")
        await app.jobs.cancel(row["id"], by="an operator")
        with pytest.raises(WorkflowRuntimeError, match="was cancelled: cancelled by an operator"):
            await handle.result(timeout=120)
