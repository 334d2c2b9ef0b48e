"""A step that is brought back follows its record: it gets what it got, repeats nothing, and stops if it cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.support import eventually, value
from tests.support.durable import Go, running_run_worker, ticks_of
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConflictError
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.ops.operator.local import Local
from tidemill.ops.runs.cancel import retry_run
from tidemill.ops.runs.runs import RunRef, get_run
from tidemill.store.database import Database

heard: list[Any] = []
code: dict[str, Any] = {}


class Second(Event):
    n: int = 0


class Part(Event):
    n: int


class Branches(Workflow):
    """Writes what is not there yet, and waits."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        if not await ctx.store.get("asked", default=False):
            await ctx.store.set("asked", True)
        go = await ctx.wait_for_event(Go)
        await ctx.store.set("answer", go.word)
        await ctx.wait_for_event(Second)
        return StopEvent(result=[await ctx.store.get("answer"), await ctx.store.get("asked")])


class Changing(Workflow):
    """Its code is changed by the test while it waits."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set(code["name"], True)
        try:
            await ctx.wait_for_event(Go)
        except Exception:  # noqa: BLE001 - as a careless program does
            heard.append("swallowed")
        return StopEvent(result=[code["name"], sorted((await ctx.store.get_state()).keys())])


class Waiters(Workflow):
    """Six pieces of work that wait for one event, of a step with one worker."""

    @step
    async def split(self, ev: StartEvent) -> list[Part]:
        return [Part(n=n) for n in range(6)]

    @step(num_workers=1)
    async def work(self, ctx: Context, ev: Part) -> Second:
        await ctx.wait_for_event(Go)
        code["now"] = code.get("now", 0) + 1
        code["most"] = max(code.get("most", 0), code["now"])
        await asyncio.sleep(0.02)
        code["now"] -= 1
        return Second(n=ev.n)

    @step
    async def join(self, evs: list[Second]) -> StopEvent:
        return StopEvent(result=sorted(ev.n for ev in evs))


class Effects(Workflow):
    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.once("effect", lambda: heard.append("effect"))
        heard.append("behind it")
        return StopEvent()


class Large(Workflow):
    """Reads a large state twice before each of its waits."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set("text", "x" * 50_000)
        await ctx.store.set("rows", [{"n": n} for n in range(4_000)])
        for _ in range(10):
            await ctx.store.get_state()
            await ctx.store.get("rows")
            await ctx.wait_for_event(Second)
        return StopEvent(result=len(await ctx.store.get("rows")))


@pytest.fixture
def app(app: App) -> App:
    heard.clear()
    code.clear()
    for each in (Branches, Changing, Waiters, Effects, Large):
        app.workflow(each, timeout=None)
    return app


async def test_what_a_step_writes_after_its_wait_is_there_however_often_it_is_brought_back(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        run = await app.start(Branches)
        await eventually(lambda: is_asleep(database, run))
        await run.send_event(Go(word="42"))
        await eventually(lambda: is_asleep(database, run, asked=2))
        await run.send_event(Second())
        assert await run.result(timeout=120) == ["42", True]


async def test_a_step_that_does_not_follow_its_record_stops_its_run_and_can_be_tried_again(
    app: App, database: Database
) -> None:
    code["name"] = "old"
    async with running_run_worker(app):
        run = await app.start(Changing)
        await eventually(lambda: is_asleep(database, run))
        code["name"] = "new"
        await run.send_event(Go(word="on"))
        await eventually(lambda: needs_attention(database, run))
        note = await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id)
        assert note.startswith(
            "step work does not follow the record of its earlier run: the record continues with set(old), wait("
        )
        assert "but the step now does set(new); start the step again as a failed attempt (`tidemill retry`)" in note
        assert heard == [], "the step cannot handle it"
        local = Local(database, Caller("ann", "operator"))
        await local.do(retry_run, RunRef(id=run.id))
        assert await run.result(timeout=120) == ["new", ["new"]], "what the first attempt wrote is undone"
        with pytest.raises(ConflictError, match="does not need attention"):
            await local.do(retry_run, RunRef(id=run.id))


async def test_code_that_follows_the_record_again_goes_on_with_it(app: App, database: Database) -> None:
    code["name"] = "old"
    async with running_run_worker(app):
        run = await app.start(Changing)
        await eventually(lambda: is_asleep(database, run))
        code["name"] = "new"
        await run.send_event(Go(word="on"))
        await eventually(lambda: needs_attention(database, run))
    code["name"] = "old"
    async with running_run_worker(app):
        assert await run.result(timeout=120) == ["old", ["old"]]


async def test_a_step_that_waits_for_a_free_worker_continues_before_new_work_and_never_exceeds_them(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        run = await app.start(Waiters)
        await eventually(lambda: is_asleep(database, run, asked=6))
        await run.send_event(Go(word="all"))
        assert await run.result(timeout=120) == [0, 1, 2, 3, 4, 5]
    assert code["most"] == 1


async def test_an_effect_has_returned_only_when_its_result_is_committed(app: App, database: Database) -> None:
    async with running_run_worker(app):
        async with database.transaction() as holder:
            await holder.execute("LOCK TABLE tidemill.tick IN SHARE MODE")
            starting = asyncio.create_task(app.start(Effects))
            await asyncio.sleep(0.05)
            assert "behind it" not in heard
        run = await starting
        await run.result(timeout=120)
    assert heard == ["effect", "behind it"]


async def test_a_run_shows_what_it_has_buffered_until_it_is_taken(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Branches)
        for n in (1, 2):
            await run.send_event(Second(n=n))
        await eventually(lambda: is_asleep(database, run))
        shown = await Local(database, Caller("ann", "operator")).do(get_run, RunRef(id=run.id))
        assert shown.buffered is not None
        assert list(shown.buffered.events.values()) == [2]
        assert "Buffered, until a step waits for them: 2 Second." in shown.why
        await run.send_event(Go(word="early ones are kept"))
        assert await run.result(timeout=120) == ["early ones are kept", True]


async def test_a_large_state_is_not_stored_with_every_read(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Large)
        for count in range(10):
            await eventually(lambda count=count: is_asleep(database, run, asked=count + 1))
            await run.send_event(Second())
        assert await run.result(timeout=120) == 4_000
    size = await value(database, "SELECT sum(length(data::text)) FROM tidemill.tick WHERE run_id = $1", run.id)
    assert size < 150_000


#: The journal of a run of `Branches` as version 1 of the rules has written it, up to its first wait.
OLD_JOURNAL = (
    b'{"kind":"started","at":1.0,"event":{"type":"tidemill.flows.definition.events.StartEvent","value":{}},'
    b'"begun":[[1,"work"]]}',
    b'{"kind":"noted","at":1.1,"work":1,"note":{"kind":"wrote","path":"asked","value":true}}',
    b'{"kind":"noted","at":1.2,"work":1,"note":{"kind":"asked","question":"tests.support.durable.Go []",'
    b'"of":"tests.support.durable.Go","requirements":{},"show":null,"timeout":null,"shown":0,"lapses":0}}',
)


async def test_a_run_that_an_older_version_has_suspended_ends_by_count_and_records_from_there_on(
    app: App, database: Database
) -> None:
    run = await app.start(Branches)
    for seq, tick in enumerate(OLD_JOURNAL, 1):
        await database.fetch("INSERT INTO tidemill.tick (run_id, seq, data) VALUES ($1, $2, $3)", run.id, seq, tick)
    await database.fetch("UPDATE tidemill.run SET seq = 3, awake = false WHERE id = $1", run.id)
    async with running_run_worker(app):
        await run.send_event(Go(word="old"))
        await eventually(lambda: is_asleep(database, run, asked=2))
        notes = [tick["note"] for tick in await ticks_of(database, run.id) if tick["kind"] == "noted"]
        kinds = [each[1] for note in notes for each in note.get("operations", ())]
        assert kinds == ["get", "wait", "set", "wait"], "all of it is recorded, from the beginning of the step"
        await run.send_event(Second())
        assert await run.result(timeout=120) == ["old", True]


# -- looking --------------------------------------------------------------------------------------


async def is_asleep(database: Database, run: RunHandle, *, asked: int = 1) -> bool:
    row = await database.fetchrow("SELECT owner, awake FROM tidemill.run WHERE id = $1", run.id)
    assert row is not None
    if row["owner"] is not None or row["awake"]:
        return False
    rows = await database.fetch("SELECT data FROM tidemill.tick WHERE run_id = $1", run.id)
    notes = [msgspec.json.decode(row["data"]).get("note", {}) for row in rows]
    return len({note["question"] for note in notes if note.get("kind") == "asked"}) >= min(asked, 1) and (
        sum(note.get("kind") == "asked" for note in notes) >= asked
    )


async def needs_attention(database: Database, run: RunHandle) -> bool:
    return await value(database, "SELECT state FROM tidemill.run WHERE id = $1", run.id) == "needs_attention"
