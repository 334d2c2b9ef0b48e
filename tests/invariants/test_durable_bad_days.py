"""One bad run never ends the run worker or damages another: bad values, bad steps, changed code, refused writes."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg
import pytest

from tests.support import eventually, value
from tests.support.durable import Ask, Chain, Count, Go, completed_once, running_run_worker, ticks_of
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.errors import PayloadError
from tidemill.core.limits.size_limits import SizeLimits, use_size_limits
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.errors import WorkflowCancelledByUser, WorkflowRuntimeError
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database


class Left(Event):
    word: str


class Bad(Workflow):
    """Does what its start event says."""

    @step
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set("good", 1)
        return await self.deeds[ev.deed](ctx)

    async def result_without_json(self, ctx: Context) -> StopEvent:
        return StopEvent(result=object())

    async def result_not_a_number(self, ctx: Context) -> StopEvent:
        return StopEvent(result={"deep": [float("nan")]})

    async def state_without_json(self, ctx: Context) -> StopEvent:
        await ctx.store.set("bad", object())
        return StopEvent()

    async def show_without_json(self, ctx: Context) -> StopEvent:
        ctx.write_event_to_stream(Left.model_construct(word=object()))
        return StopEvent()

    async def send_without_json(self, ctx: Context) -> StopEvent:
        ctx.send_event(Go.model_construct(word=object()))
        await ctx.wait_for_event(Left)
        return StopEvent()

    async def effect_without_json(self, ctx: Context) -> StopEvent:
        await ctx.once("effect", object)
        return StopEvent()

    async def exits(self, ctx: Context) -> StopEvent:
        sys.exit(3)

    async def interrupts(self, ctx: Context) -> StopEvent:
        raise KeyboardInterrupt

    async def strange_end(self, ctx: Context) -> StopEvent:
        raise BaseException("strange")

    async def strange_message(self, ctx: Context) -> StopEvent:
        raise ValueError("a NUL \x00 and half a pair \ud800")

    @property
    def deeds(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FAILURES}


#: What a run of `Bad` ends with.
FAILURES: dict[str, tuple[type[Exception], str]] = {
    "result_without_json": (PayloadError, "StopEvent cannot be stored as JSON"),
    "result_not_a_number": (PayloadError, "NaN or an infinity"),
    "state_without_json": (
        PayloadError,
        "step act: the value at 'bad' in the state cannot be stored: class builtins",
    ),
    "show_without_json": (PayloadError, "Left cannot be stored as JSON"),
    "send_without_json": (PayloadError, "Go cannot be stored as JSON"),
    "effect_without_json": (PayloadError, r"step act: the result of once\('effect'\) cannot be stored as JSON: class"),
    "exits": (WorkflowRuntimeError, "step act raised SystemExit: 3"),
    "interrupts": (WorkflowRuntimeError, "step act raised KeyboardInterrupt"),
    "strange_end": (WorkflowRuntimeError, "step act raised BaseException: strange"),
    "strange_message": (ValueError, r"a NUL \\x00 and half a pair \\ud800"),
}


class Hoarding(Workflow):
    """Writes the same place of its state again and again, then one place after the other."""

    @step
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        for _ in range(50):
            await ctx.store.set("same", "x" * 1000)
        for number in range(50):
            await ctx.store.set(f"at{number}", "x" * 1000)
        return StopEvent()


class Forgiving(Workflow):
    """Its first attempt cannot be stored; its second can."""

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(2)))
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        number = ctx.retry_info().retry_number
        await ctx.store.set("count", await ctx.store.get("count", default=0) + 1)
        if number == 0:
            await ctx.store.set("bad", object())
        return StopEvent(result=await ctx.store.get("count"))


class Sly(Workflow):
    """Stores a list, and puts something into it later that has no JSON form."""

    @step
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        kept: list[Any] = [1]
        await ctx.store.set("kept", kept)
        kept.append(object())
        go = await ctx.wait_for_event(Go)
        return StopEvent(result=[go.word, len(await ctx.store.get("kept")) >= 1])


class Broken(Workflow):
    """Its retry policy is broken as well."""

    class Policy:
        def next(self, *_: Any, **__: Any) -> float:
            raise ZeroDivisionError("no policy")

    @step(retry_policy=Policy())
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        raise RuntimeError("the step")


class Deaf(Workflow):
    """Goes on as if nothing had happened when it is cancelled, and then speaks."""

    ended: int = 0

    @step
    async def act(self, ctx: Context, ev: StartEvent) -> StopEvent:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        type(self).ended += 1
        ctx.write_event_to_stream(Left(word="too late"))
        return StopEvent(result="too late")


gate = asyncio.Event()


class Old(Workflow):
    """Two steps, one after the other, with a wait in the second."""

    @step
    async def begin(self, ev: StartEvent) -> Left:
        return Left(word="left")

    @step
    async def ask(self, ctx: Context, ev: Left) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        return StopEvent(result=[ev.word, go.word])


class Renamed(Workflow):
    """The same with another name for its second step."""

    @step
    async def begin(self, ev: StartEvent) -> Left:
        return Left(word="left")

    @step
    async def question(self, ctx: Context, ev: Left) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        return StopEvent(result=[ev.word, go.word])


class Longer(Workflow):
    """The same with a step more, where no run has been yet."""

    @step
    async def begin(self, ev: StartEvent) -> Left:
        return Left(word="left")

    @step
    async def ask(self, ctx: Context, ev: Left) -> Count:
        go = await ctx.wait_for_event(Go)
        return Count(n=len(go.word))

    @step
    async def end(self, ev: Count) -> StopEvent:
        return StopEvent(result=ev.n)


@pytest.fixture
def app(app: App) -> App:
    for each in (Bad, Forgiving, Sly, Broken, Deaf, Ask, Chain):
        app.workflow(each, timeout=None)
    app.workflow(Old, name="Changing", timeout=None)
    return app


def changed(app: App, workflow: type[Workflow]) -> App:
    """The application after a deployment."""
    newer = App("test", database_url=app.settings.database_url, **PATIENT)
    newer.workflow(workflow, name="Changing", timeout=None)
    return newer


async def test_a_state_that_is_too_large_fails_its_step_and_says_which_limit_it_has_broken(app: App) -> None:
    app.workflow(Hoarding, timeout=None)
    try:
        async with running_run_worker(app):
            use_size_limits(SizeLimits(max_state=10_000))
            with pytest.raises(
                PayloadError, match=r"step act: the state of the run would take 10\.\d kB, and the limit is 10 kB"
            ):
                await (await app.start(Hoarding)).result()
    finally:
        use_size_limits(SizeLimits())


# -- starting -------------------------------------------------------------------------------------


async def test_a_start_is_one_statement_and_twenty_starts_with_one_key_are_one_run(
    app: App, database: Database
) -> None:
    handles = await asyncio.gather(*(app.start(Chain, unique_key="one") for _ in range(20)))
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles].count(True) == 1
    other = await app.start(Ask, unique_key="one")
    assert other.created, "the key is the workflow's own"
    async with running_run_worker(app):
        assert await handles[0].result(timeout=120) == 45
    again = await app.start(Chain, unique_key="one")
    assert (again.id, again.created) == (handles[0].id, False)


async def test_a_start_that_cannot_be_stored_leaves_nothing(app: App, database: Database) -> None:
    for bad in (object(), float("nan")):
        with pytest.raises(PayloadError, match="cannot be stored as JSON"):
            await app.start(Chain, what=bad)
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 0


# -- bad values and bad steps ---------------------------------------------------------------------


async def test_what_cannot_be_stored_or_endured_fails_the_step_and_nothing_else(app: App, database: Database) -> None:
    async with running_run_worker(app):
        runs = {deed: await app.start(Bad, deed=deed) for deed in FAILURES}
        chains = [await app.start(Chain) for _ in range(20)]
        for deed, (kind, message) in FAILURES.items():
            with pytest.raises(kind, match=message):
                await runs[deed].result(timeout=120)
        assert await asyncio.gather(*(run.result(timeout=120) for run in chains)) == [45] * 20
    for run in (*runs.values(), *chains):
        await ticks_of(database, run.id)


async def test_a_value_that_cannot_be_stored_is_an_attempt_that_failed(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Forgiving)
        assert await run.result(timeout=120) == 1, "what the first attempt had written is taken back"


async def test_a_broken_retry_policy_fails_its_run_only(app: App) -> None:
    async with running_run_worker(app):
        with pytest.raises(ZeroDivisionError, match="the retry policy of step act failed: no policy"):
            await (await app.start(Broken)).result(timeout=120)
        assert await (await app.start(Chain)).result(timeout=120) == 45


async def test_a_live_object_put_into_a_stored_list_hinders_no_release_and_is_refused_by_key_and_step(
    app: App, database: Database
) -> None:
    async with running_run_worker(app) as run_worker:
        run = await app.start(Sly)
        await eventually(lambda: not run_worker.work.runs and asked(database, run))
        await run.send_event(Go(word="x"))
        with pytest.raises(PayloadError, match=r"step act: the value at 'kept\.1' in the state cannot be stored"):
            await run.result(timeout=120)


async def test_a_step_that_will_not_be_cancelled_is_left_behind_and_not_heard(app: App, database: Database) -> None:
    gate.clear()
    async with running_run_worker(app) as run_worker:
        run = await app.start(Deaf)
        await eventually(lambda: run_worker.work.runs and run_worker.work.runs[run.id]._tasks)  # pyright: ignore
        await run.cancel()
        with pytest.raises(WorkflowCancelledByUser):
            await run.result(timeout=120)
        journal = await ticks_of(database, run.id)
        gate.set()
        await eventually(lambda: Deaf.ended == 1)
        assert await (await app.start(Chain)).result(timeout=120) == 45
        assert [type(each).__name__ async for each in run.stream_events()] == ["WorkflowCancelledEvent"]
    assert await ticks_of(database, run.id) == journal


async def test_a_write_that_the_database_refuses_parks_that_run_alone(app: App, database: Database) -> None:
    await database.fetch(
        "ALTER TABLE tidemill.tick ADD CONSTRAINT no_spite CHECK (data::text NOT LIKE '%spite%') NOT VALID"
    )
    async with running_run_worker(app):
        bad = await app.start(Ask)
        await eventually(lambda: asked(database, bad))
        await bad.send_event(Go(word="spite"))
        chains = [await app.start(Chain) for _ in range(50)]
        assert await asyncio.gather(*(run.result(timeout=120) for run in chains)) == [45] * 50
        assert await eventually(lambda: needs_attention(database, bad))
        note = await value(database, "SELECT note FROM tidemill.run WHERE id = $1", bad.id)
        assert "no_spite" in note
        assert "could not be written" in note
        await bad.cancel()
        assert await bad.state() == "cancelled"
    for run in (bad, *chains):
        await ticks_of(database, run.id)
    with pytest.raises(asyncpg.CheckViolationError):
        await database.fetch("INSERT INTO tidemill.tick VALUES (0, 0, '\"spite\"')")


# -- changed code ---------------------------------------------------------------------------------


async def waiting_runs(app: App, database: Database) -> list[RunHandle]:
    """Two runs of `Changing` in their second step: one known from its journal alone, one from a snapshot."""
    async with running_run_worker(app) as run_worker:
        released = await app.start("Changing")
        await eventually(lambda: not run_worker.work.runs and asked(database, released))
        journaled = await app.start("Changing")
        await eventually(lambda: asked(database, journaled))
    await database.fetch("DELETE FROM tidemill.snapshot WHERE run_id = $1", journaled.id)
    return [released, journaled]


async def test_a_run_whose_step_was_renamed_parks_with_the_reason_and_can_be_cancelled_or_go_on(
    app: App, database: Database
) -> None:
    runs = await waiting_runs(app, database)
    async with running_run_worker(changed(app, Renamed)):
        for run in runs:
            await run.send_event(Go(word="go"))
            await eventually(lambda run=run: needs_attention(database, run))
            note = await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id)
            assert "ask" in note
            assert "which the workflow no longer has" in note
            assert "deploy that, and then `tidemill runs migrate`; or cancel the run" in note
        await runs[0].cancel()
        with pytest.raises(WorkflowCancelledByUser):
            await runs[0].result(timeout=120)
        fresh = await RunHandle(database, (await app.start("Changing")).id).state()
        assert fresh == "running"
    async with running_run_worker(app):
        assert await runs[1].result(timeout=120) == ["left", "go"]
    assert await completed_once(database, runs[1].id) == 2


async def test_a_run_whose_ticks_still_fit_goes_on_with_the_new_code(app: App, database: Database) -> None:
    runs = await waiting_runs(app, database)
    async with running_run_worker(changed(app, Longer)):
        for run in runs:
            await run.send_event(Go(word="four"))
            assert await run.result(timeout=120) == 4


async def test_a_snapshot_or_a_journal_from_a_newer_version_parks_its_run_alone(app: App, database: Database) -> None:
    runs = await waiting_runs(app, database)
    await database.fetch("UPDATE tidemill.snapshot SET data = '{\"format\": 99}'")
    await database.fetch(
        'UPDATE tidemill.tick SET data = \'{"kind": "dreamt", "at": 1}\' WHERE run_id = $1 AND seq = 2', runs[1].id
    )
    async with running_run_worker(app):
        for run in runs:
            await run.send_event(Go(word="go"))
            await eventually(lambda run=run: needs_attention(database, run))
        notes = [await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id) for run in runs]
        assert "this snapshot has format 99, but this version of Tidemill reads only 2" in notes[0]
        assert "unknown kind of tick 'dreamt'" in notes[1]
        assert await (await app.start(Chain)).result(timeout=120) == 45


async def test_a_run_whose_input_cannot_be_read_parks(app: App, database: Database) -> None:
    run = await app.start(Chain)
    await database.fetch('UPDATE tidemill.run SET input = \'{"type": "gone.Start", "value": {}}\'')
    async with running_run_worker(app):
        await eventually(lambda: needs_attention(database, run))
        assert await (await app.start(Ask)).state() == "running"


# -- what is shown --------------------------------------------------------------------------------


async def test_what_a_run_shows_can_be_read_from_any_point_in_order(app: App, database: Database) -> None:
    async with running_run_worker(app):
        runs = [await app.start(Chain) for _ in range(10)]
        live = await asyncio.gather(*(counts(run) for run in runs))
    assert live == [list(range(10))] * 10
    for run in runs:
        assert await counts(run) == list(range(10)), "a late reader sees the same"
        numbers = [number async for number, _ in run.stream_events(numbered=True)]
        assert await counts(run, after=numbers[3]) == list(range(4, 10))


async def counts(run: RunHandle, *, after: int = 0) -> list[int]:
    return [event.n async for event in run.stream_events(after=after) if isinstance(event, Count)]


async def asked(database: Database, run: RunHandle) -> bool:
    return any((tick.get("note") or {}).get("kind") == "asked" for tick in await ticks_of(database, run.id))


async def needs_attention(database: Database, run: RunHandle) -> bool:
    return await run.state() == "needs_attention"
