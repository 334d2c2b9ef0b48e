"""Time travel: what a run was at any tick, and new runs that begin there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.roles import running_worker
from tests.support.rows import value
from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.runner.restore import replay_ticks
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database
from tidemill.store.runs.runs import forget_runs, read_ticks, show_run


class Doubled(Event):
    n: int


class Ask(Workflow):
    @step
    async def double(self, ctx: Context, ev: StartEvent) -> Doubled:
        await ctx.store.set("asked", ev.n)
        return Doubled(n=ev.n * 2)

    @step
    async def ask(self, ctx: Context, ev: Doubled) -> StopEvent:
        answer = await ctx.wait_for_event(HumanResponseEvent, waiter_event=InputRequiredEvent(), timeout=3600)
        return StopEvent(result=[await ctx.store.get("asked"), ev.n, answer.word])


@pytest.fixture
def asking(app: App) -> App:
    app.workflow(Ask, timeout=7200)
    return app


async def asks(database: Database, run: RunHandle) -> None:
    await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.published WHERE run_id = $1", run.id))


async def answered(app: App, database: Database, word: str) -> RunHandle:
    run = await app.start(Ask, n=1)
    await asks(database, run)
    await run.send_event(HumanResponseEvent(word=word))
    assert await run.result(timeout=120) == [1, 2, word]
    return run


async def test_the_state_after_any_tick_can_be_seen(asking: App, database: Database) -> None:
    async with asking.running():
        run = await answered(asking, database, "yes")
    ticks = [row["data"] for row in await read_ticks(database, run.id)]
    workflow = asking.runs.flows["Ask"].workflow
    seen = [replay_ticks(workflow, ticks[:count], {})[0] for count in range(len(ticks) + 1)]
    assert [state.status for state in seen] == ["running"] * len(ticks) + ["succeeded"]
    assert dict(seen[0].store.items()) == {}
    assert dict(seen[2].store.items()) == {"asked": 1}
    assert set(replay_ticks(workflow, ticks[:4], {})[1]) == {"run", f"wait:2:{next(iter(seen[4].works[2].waiting))}"}


async def test_a_fork_goes_on_from_a_tick_and_leaves_the_other_run_alone(asking: App, database: Database) -> None:
    async with asking.running():
        run = await answered(asking, database, "yes")
        before = dict(await show_run(database, run.id))
        fork = await asking.runs.fork(run, at=4)
        await fork.send_event(HumanResponseEvent(word="no"))
        assert await fork.result(timeout=120) == [1, 2, "no"]
        assert dict(await show_run(database, run.id)) == before
        assert (await show_run(database, fork.id))["forked_from"] == run.id


async def test_a_fork_from_any_tick_leaves_memory_and_goes_on_when_it_is_answered(
    asking: App, database: Database
) -> None:
    rests = "SELECT count(*) FROM tidemill.run WHERE id = $1 AND seq > $2 AND owner IS NULL AND NOT awake"
    async with asking.running():
        run = await answered(asking, database, "yes")
        forks = {at: await asking.runs.fork(run, at=at) for at in range(1, 5)}
        forks |= {0: await asking.runs.fork(run, at=1, event=StartEvent(n=1))}
        for at, fork in forks.items():
            await eventually(lambda fork=fork, at=at: value(database, rests, fork.id, at))
            await fork.send_event(HumanResponseEvent(word="no"))
            assert await fork.result(timeout=120) == [1, 2, "no"], at


class Chapter(Workflow):
    """The child of a run: it ends when it is told to."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> StopEvent:
        return StopEvent(result=(await ctx.wait_for_event(HumanResponseEvent)).word)


class Book(Workflow):
    """Waits for two children at the same time, and then for another."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> StopEvent:
        both = await ctx.gather(ctx.child(Chapter, n=1), ctx.child(Chapter, n=2))
        return StopEvent(result=[*both, await ctx.child(Chapter, n=3)])


async def write_chapters(app: App, database: Database, book: RunHandle) -> Any:
    """Answer the children of a run one after the other, and return its result."""
    written = set[int]()
    while await book.state() == "running":
        rows = await database.fetch("SELECT id, input FROM tidemill.run WHERE parent = $1 ORDER BY id", book.id)
        for row in (row for row in rows if row["id"] not in written):  # One with a lower id may be stored later.
            written.add(row["id"])
            n = decode(row["input"])["value"]["n"]
            await (await app.runs.get(row["id"])).send_event(HumanResponseEvent(word=f"{n} of r{book.id}"))
        await asyncio.sleep(0.02)
    return await book.result(timeout=120)


async def test_a_fork_has_children_of_its_own_and_the_results_of_those_that_had_ended(
    app: App, database: Database
) -> None:
    for each in (Book, Chapter):
        app.workflow(each)
    async with app.running():
        run = await app.start(Book)
        assert await write_chapters(app, database, run) == [f"{n} of r{run.id}" for n in (1, 2, 3)]
        ticks = [decode(row["data"]) for row in await read_ticks(database, run.id)]
        for at in range(1, len(ticks)):
            ended = {result_of_child(each) for each in ticks[:at]}
            fork = await app.runs.fork(run, at=at)
            own = [f"{n} of r{run.id}" for n in (1, 2, 3)]
            expected = [each if each in ended else f"{each[0]} of r{fork.id}" for each in own]
            async with asyncio.timeout(60):
                assert await write_chapters(app, database, fork) == expected, at


def result_of_child(tick: dict[str, Any]) -> Any:
    """The result of the child whose end a tick is."""
    is_end = tick["kind"] == "received" and tick["event"]["type"].endswith("ChildEnded")
    return tick["event"]["value"]["result"]["$event"]["value"]["result"] if is_end else None


class Placed(Workflow):
    """A step on a queue that waits, between two others."""

    @step
    async def begin(self, ev: StartEvent) -> Doubled:
        return Doubled(n=ev.n * 2)

    @step(queue="elsewhere")
    async def ask(self, ctx: Context, ev: Doubled) -> StopEvent:
        await ctx.store.set("asked", ev.n)
        await ctx.sleep(0.01)
        return StopEvent(result=[await ctx.store.get("asked"), ev.n])


async def test_a_fork_puts_steps_on_their_queues_again(app: App, database: Database) -> None:
    app.workflow(Placed)
    async with app.running(), running_worker(app, ["elsewhere"]):
        run = await app.start(Placed, n=1)
        assert await run.result(timeout=120) == [2, 2]
        for at in range(1, len(await read_ticks(database, run.id))):
            fork = await app.runs.fork(run, at=at)
            assert await fork.result(timeout=60) == [2, 2], at


async def test_a_fork_asks_people_what_the_other_run_was_asking(asking: App, database: Database) -> None:
    asked = "SELECT node, prompt, schema::text, due_at FROM tidemill.run_input WHERE run_id = $1"
    async with asking.running():
        run = await asking.start(Ask, n=1)
        await asks(database, run)
        open_questions = await database.fetch(asked, run.id)
        await run.send_event(HumanResponseEvent(word="yes"))
        await run.result(timeout=120)
        before, fork = await asking.runs.fork(run, at=2), await asking.runs.fork(run, at=4)
        assert await database.fetch(asked, fork.id) == open_questions
        await asks(database, before)
        assert len(await database.fetch(asked, before.id)) == 1
        await asking.submit(fork.id, open_questions[0]["node"], {"word": "no"})
        assert await fork.result(timeout=120) == [1, 2, "no"]
        assert await database.fetch(asked, fork.id) == []


async def test_a_fork_may_begin_with_another_event(asking: App, database: Database) -> None:
    async with asking.running():
        run = await answered(asking, database, "yes")
        fork = await asking.runs.fork(run, at=1, event=StartEvent(n=10))
        await asks(database, fork)
        await fork.send_event(HumanResponseEvent(word="so"))
        assert await fork.result(timeout=120) == [10, 20, "so"]


async def test_the_timers_of_a_run_are_the_timers_of_its_fork(asking: App, database: Database) -> None:
    async with asking.running():
        run = await answered(asking, database, "yes")
        fork = await asking.runs.fork(run, at=4)
        timers = await database.fetch("SELECT timer FROM tidemill.inbox WHERE run_id = $1", fork.id)
        assert {row["timer"].partition(":")[0] for row in timers} == {"run", "wait"}
        await fork.cancel()


async def test_a_fork_that_makes_no_sense_is_refused(asking: App, database: Database) -> None:
    async with asking.running():
        run = await answered(asking, database, "yes")
        last = len(await read_ticks(database, run.id))
        for at, message in ((0, "no tick 0"), (last + 1, f"no tick {last + 1}"), (last, "had ended at tick")):
            with pytest.raises(ConfigError, match=message):
                await asking.runs.fork(run, at=at)
        with pytest.raises(ConfigError, match="is not an event from outside"):
            await asking.runs.fork(run, at=2, event=StartEvent(n=3))
        with pytest.raises(NotFoundError, match="there is no run 999"):
            await asking.runs.fork(999, at=1)


async def test_runs_that_ended_long_ago_are_forgotten_and_no_others(asking: App, database: Database) -> None:
    async with asking.running():
        old, new = await answered(asking, database, "a"), await answered(asking, database, "b")
    await database.fetch("UPDATE tidemill.run SET ended_at = now() - interval '40 days' WHERE id = $1", old.id)
    assert await forget_runs(database, keep_days=30) == 1
    assert await forget_runs(database, keep_days=30) == 0
    for table in ("run WHERE id", "tick WHERE run_id", "published WHERE run_id"):
        assert await value(database, f"SELECT count(*) FROM tidemill.{table} = $1", old.id) == 0
        assert await value(database, f"SELECT count(*) FROM tidemill.{table} = $1", new.id) > 0
