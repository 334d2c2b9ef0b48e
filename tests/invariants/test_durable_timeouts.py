"""A durable run has no timeout that was not given, and what is due is shown when it is due."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.flows import Context, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.runner.steps.context import Context as RunContext
from tidemill.ops.runs.inputs import ListInputs, list_inputs
from tidemill.store.database import Database


class Asking(Workflow):
    """Asks a person."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        answer = await ctx.wait_for_event(
            HumanResponseEvent,
            waiter_event=InputRequiredEvent(prompt="Go?"),
            **({"timeout": ev.wait} if ev.wait else {}),
        )
        return StopEvent(result=answer.text)


async def timers(database: Database, run: int) -> list[str]:
    return [row["timer"] for row in await database.fetch("SELECT timer FROM tidemill.inbox WHERE run_id = $1", run)]


async def test_a_durable_run_and_its_waits_have_no_timeout_unless_one_is_given(app: App, database: Database) -> None:
    app.workflow(Asking)
    async with running_run_worker(app):
        run = await app.start(Asking, wait=None)
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.run_input"))
        assert await timers(database, run.id) == []
        (asked,) = (await app.do(list_inputs, ListInputs())).items
        assert asked.due_at is None
        await run.send_event(HumanResponseEvent(text="yes"))
        assert await run.result(timeout=120) == "yes"


@pytest.mark.parametrize(
    ("timeout", "wait", "due"), [(3600, None, 3600), (3600, 60, 60), (60, 3600, 60), (None, 60, 60)]
)
async def test_a_question_is_due_when_its_wait_or_its_run_ends(
    app: App, database: Database, timeout: float | None, wait: float | None, due: float
) -> None:
    app.workflow(Asking, timeout=timeout)
    async with running_run_worker(app):
        await app.start(Asking, wait=wait)
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.run_input"))
        (asked,) = (await app.do(list_inputs, ListInputs())).items
        assert asked.due_at is not None
        assert abs((asked.due_at - asked.asked_at) - timedelta(seconds=due)) < timedelta(seconds=10)


@pytest.mark.parametrize(("timeout", "wait"), [(None, 3e11), (3e11, None)])
async def test_a_timeout_beyond_the_last_date_is_the_last_date(
    app: App, database: Database, timeout: float | None, wait: float | None
) -> None:
    app.workflow(Asking, timeout=timeout)
    async with running_run_worker(app):
        run = await app.start(Asking, wait=wait)
        await eventually(lambda: value(database, "SELECT seq > 1 FROM tidemill.run"))
        (asked,) = (await app.do(list_inputs, ListInputs())).items
        assert asked.due_at is not None
        assert asked.due_at.year == 9999
        await run.send_event(HumanResponseEvent(text="yes"))
        assert await run.result(timeout=120) == "yes"


async def test_runs_in_memory_keep_the_defaults_of_llama_index() -> None:
    from tidemill.flows.definition.declared import declared

    assert declared(Asking()).timeout == 45.0
    assert declared(Asking(timeout=None)).timeout is None


async def test_the_delay_of_a_retry_is_saved_with_the_context() -> None:
    class Failing(Workflow):
        @step(retry_policy=retry_policy(wait=wait_fixed(3600), stop=stop_after_attempt(2)))
        async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
            if ctx.retry_info().retry_number == 0:
                raise RuntimeError("once")
            return StopEvent(result="again")

    flow = Failing()
    handler = flow.run()
    await eventually(lambda: handler.ctx.to_dict()["run"]["pending"] == 1)
    saved = json.loads(json.dumps(handler.ctx.to_dict()))
    await handler.cancel_run()
    waiting = flow.run(ctx=RunContext.from_dict(flow, saved))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.stop_event_result(), 0.2)
    saved["run"]["works"][0]["retry_at"] -= 3600
    assert await flow.run(ctx=RunContext.from_dict(flow, saved)) == "again"


class Slow(Workflow):
    """Its step may take an hour, waits included, and is tried twice."""

    @step(timeout="1h", retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(2)))
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        if ctx.retry_info().retry_number == 1:
            return StopEvent(result=type(ctx.retry_info().last_exception).__name__)
        await ctx.wait_for_event(Go)
        return StopEvent(result="answered")


async def test_the_timeout_of_a_step_holds_while_its_run_is_released(app: App, database: Database) -> None:
    app.workflow(Slow)
    async with running_run_worker(app) as run_worker:
        run, other = await app.start(Slow), await app.start(Slow)
        await eventually(
            lambda: not run_worker.work.runs and value(database, "SELECT count(*) = 2 FROM tidemill.snapshot")
        )
        assert await timers(database, run.id) == ["step:1"]
    # As if an hour had passed for one of them.
    await database.fetch("UPDATE tidemill.inbox SET due_at = now() WHERE run_id = $1", run.id)
    await database.fetch(
        "UPDATE tidemill.snapshot SET data = jsonb_set(data::jsonb, '{works,0,since}', '1')::json WHERE run_id = $1",
        run.id,
    )
    async with running_run_worker(app):
        assert await run.result(timeout=150) == "TimeoutError"
        await other.send_event(Go(word="now"))
        assert await other.result(timeout=150) == "answered"
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0, "its timer goes with the step"
