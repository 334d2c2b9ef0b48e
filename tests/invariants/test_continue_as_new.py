"""A run that continues as new keeps its state, its early events and its compensations, and drops its journal."""

from __future__ import annotations

import pytest

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.engine.worker.log_capture import find_listener
from tidemill.flows import Context, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.simulate import simulate
from tidemill.ops.runs.journal import GetStateAt, get_state_at
from tidemill.store.database import Database


class Endless(Workflow):
    """Counts in its state, and continues as new after every few rounds."""

    @step
    async def count(self, ctx: Context, ev: StartEvent) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.rounds = state.get("rounds", 0) + 1
        if ev.left:
            return ctx.continue_as_new(left=ev.left - 1)
        go = await ctx.wait_for_event(Go, waiter_event=InputRequiredEvent())
        return StopEvent(result=[await ctx.store.get("rounds"), go.word])


async def test_the_journal_of_a_run_without_end_stays_short(app: App, database: Database) -> None:
    app.workflow(Endless)
    async with running_run_worker(app) as run_worker:
        run = await app.start(Endless, left=200)
        await run.send_event(Go(word="early"))
        assert await run.result(timeout=120) == [201, "early"]
        other = await app.start(Endless, left=200)
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.snapshot WHERE run_id = $1", other.id))
        await eventually(lambda: not run_worker.work.runs)
    ticks = await value(database, "SELECT count(*) FROM tidemill.tick WHERE run_id = $1", other.id)
    assert ticks < 30, "what came before the last beginning is gone"
    assert await value(database, "SELECT seq FROM tidemill.run WHERE id = $1", other.id) > 200
    shown = await app.do(get_state_at, GetStateAt(id=other.id))
    assert shown.state["store"]["fields"]["rounds"] == 201
    for refused in (app.runs.fork(other, at=1), app.do(get_state_at, GetStateAt(id=other.id, at=1))):
        with pytest.raises(ConfigError, match="has continued as new"):
            await refused
    async with running_run_worker(app):
        await other.send_event(Go(word="late"))
        assert await other.result(timeout=120) == [201, "late"]


class Talkative(Workflow):
    """Logs in every round, and continues as new."""

    @step
    async def talk(self, ctx: Context, ev: StartEvent) -> StopEvent:
        listener = find_listener()
        assert listener is not None
        listener.keep_line(b'{"event": "round"}')
        return ctx.continue_as_new(left=ev.left - 1) if ev.left else StopEvent(result="silent")


async def test_what_the_steps_of_a_run_without_end_have_logged_is_trimmed(app: App, database: Database) -> None:
    app.workflow(Talkative)
    async with running_run_worker(app):
        run = await app.start(Talkative, left=600)
        assert await run.result(timeout=120) == "silent"
    kept = await value(database, "SELECT count(*) FROM tidemill.run_log WHERE run_id = $1", run.id)
    assert 0 < kept < 500


def test_continuing_as_new_holds_under_faults() -> None:
    for seed in range(10):
        outcome = simulate(Endless(), seed=seed, left=5, person=lambda event: Go(word="go"), limit=3600)
        assert outcome.result() == [6, "go"]
