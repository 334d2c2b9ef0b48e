"""A run that waits costs nothing and misses nothing: events, timers and time-outs are rows, in memory or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support import eventually, locked_out, value
from tests.support.durable import TURN, Ask, Chain, Go, completed_once, running_run_worker, ticks_of
from tidemill import App
from tidemill.core.errors import NotFoundError, PayloadError
from tidemill.core.ticks import Received
from tidemill.engine.runs.run_store import PostgresRunStore
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.encoding.journal import encode_tick
from tidemill.flows.errors import WorkflowTimeoutError
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.store.database import Database
from tidemill.store.runs.inbox import send_to_run
from tidemill.store.runs.run_turn import RunTurn

effects: list[str] = []


class Note(Event):
    n: int
    remark: str | None = None


class Approved(Event):
    by: str


class TwoWaits(Workflow):
    """Two questions in one step, with writes, sends, effects and shown events around them."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent | Note:
        effects.append("entered")
        await add(ctx, "asked")
        ctx.send_event(Note(n=1))
        ctx.write_event_to_stream(Note(n=10))
        await ctx.once("charge", lambda: effects.append("charged"))
        first = await ctx.wait_for_event(Go)
        await add(ctx, "asked")
        ctx.send_event(Note(n=2))
        ctx.write_event_to_stream(Note(n=20))
        second = await ctx.wait_for_event(Approved)
        state = await ctx.store.get_state()
        return StopEvent(result=[first.word, second.by, state.asked, state.noted])

    @step
    async def noting(self, ctx: Context, ev: Note) -> None:
        await add(ctx, "noted")


class TwoWaiters(Workflow):
    """Two steps wait for one type of event; each takes what is meant for it."""

    @step
    async def split(self, ctx: Context, ev: StartEvent) -> list[Note]:
        return [Note(n=1), Note(n=2)]

    @step(num_workers=2)
    async def ask(self, ctx: Context, ev: Note) -> Approved:
        answer = await ctx.wait_for_event(HumanResponseEvent, requirements={"n": ev.n})
        return Approved(by=f"{ev.n}{answer.text}")

    @step
    async def join(self, evs: list[Approved]) -> StopEvent:
        return StopEvent(result=sorted(ev.by for ev in evs))


class Impatient(Workflow):
    """Waits for a while only."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        effects.append("entered")
        try:
            await ctx.wait_for_event(Go, timeout=ev.seconds)
        except TimeoutError:
            return StopEvent(result="nobody came")
        return StopEvent(result="somebody came")


class SecondTry(Workflow):
    """Fails once, and is tried again after a while."""

    @step(retry_policy=retry_policy(wait=wait_fixed(3600), stop=stop_after_attempt(2)))
    async def once_more(self, ctx: Context, ev: StartEvent) -> StopEvent:
        if ctx.retry_info().retry_number == 0:
            raise RuntimeError("once")
        return StopEvent(result=ctx.retry_info().retry_number)


class Pairs(Workflow):
    """Collects by twos, and waits in between."""

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Note | None:
        for n in (1, 2):
            ctx.send_event(Note(n=n))

    @step(num_workers=1)
    async def collect(self, ctx: Context, ev: Note) -> Note | StopEvent | None:
        pair = ctx.collect_events(ev, [Note, Note])
        if pair is None:
            return None
        if ev.n > 2:
            return StopEvent(result=[each.n for each in pair])
        await ctx.wait_for_event(Go)
        for n in (3, 4):
            ctx.send_event(Note(n=n))
        return None


@pytest.fixture
def app(app: App) -> App:
    effects.clear()
    for each in (Ask, Chain, Pairs, TwoWaits, TwoWaiters, Impatient, SecondTry):
        app.workflow(each, timeout=None)
    app.workflow(Ask, name="Hurried", timeout=3600)
    return app


def look_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """From their next turn on run workers do not look by themselves: whatever they find they were told of."""
    monkeypatch.setattr("tidemill.engine.runs.run_worker.SAFETY_POLL", 600.0)


async def test_a_run_that_only_waits_leaves_memory_and_is_woken_by_its_event(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_run_worker(app) as run_worker:
        run = await app.start(Ask)
        await eventually(lambda: is_asleep(database, run))
        await eventually(lambda: run_worker.work.runs == {})
        look_no_more(monkeypatch)
        await (await app.start(Chain)).result(timeout=120)
        await run.send_event(Go(word="hello"))
        assert await run.result(timeout=120) == "hello"
        assert await completed_once(database, run.id) == 1


async def test_a_step_that_is_run_again_has_its_waits_answered_and_doubles_nothing(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        run = await app.start(TwoWaits)
        await eventually(lambda: is_asleep(database, run))
        await run.send_event(Go(word="a"))
        await eventually(lambda: is_asleep(database, run, notes=6))
        await run.send_event(Approved(by="b"))
        assert await run.result(timeout=120) == ["a", "b", 2, 2]
        shown = [event.n async for event in run.stream_events() if isinstance(event, Note)]
    assert effects == ["entered", "charged", "entered", "entered"]
    assert shown == [10, 20]


async def test_what_a_step_had_collected_before_it_waited_is_collected_once(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Pairs, nothing=None)
        await eventually(lambda: is_asleep(database, run))
        await run.send_event(Go(word="on"))
        assert await run.result(timeout=120) == [3, 4]


async def test_two_waiters_of_one_type_do_not_steal_from_each_other(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(TwoWaiters)
        await eventually(lambda: is_asleep(database, run))
        await run.send_event(HumanResponseEvent(n=2, text="b"))
        await eventually(lambda: is_asleep(database, run, received=1))
        await run.send_event(HumanResponseEvent(n=1, text="a"))
        assert await run.result(timeout=120) == ["1a", "2b"]
        assert await completed_once(database, run.id) == 4


async def test_a_wait_ends_at_its_time_though_the_run_was_released_or_its_owner_stopped(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        runs = [await app.start(Impatient, seconds=3600.0) for _ in range(2)]
        await eventually(lambda: is_asleep(database, runs[0]))
    due = await timer_due(database, runs[0])
    async with running_run_worker(app):
        # A visitor that means nothing to it wakes the run: its step goes on waiting, and its time stays.
        await runs[0].send_event(Approved(by="nobody"))
        await eventually(lambda: is_asleep(database, runs[0], received=1))
        assert effects.count("entered") == 2
        assert await timer_due(database, runs[0]) == due
    await let_time_pass(database, runs[0])
    async with running_run_worker(app):
        # The question may be asked once more before its time is noticed, and with it the hour is set again.
        await eventually(lambda: let_time_pass(database, runs[0]))
        assert await runs[0].result(timeout=120) == "nobody came"
        await runs[1].send_event(Go(word="now"))
        assert await runs[1].result(timeout=120) == "somebody came"
        assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0, "its timer goes with the run"


async def test_the_time_out_of_a_run_and_the_delay_of_a_retry_survive_a_change_of_owner(
    app: App, database: Database
) -> None:
    async with running_run_worker(app):
        runs = [await app.start("Hurried"), await app.start(SecondTry)]
        for run in runs:
            await eventually(lambda run=run: timer_due(database, run))
        await eventually(lambda: is_asleep(database, runs[0]))
    for run in runs:
        await let_time_pass(database, run)
    async with running_run_worker(app):
        with pytest.raises(WorkflowTimeoutError):
            await runs[0].result(timeout=120)
        assert await runs[1].result(timeout=120) == 1


async def test_an_event_that_is_sent_as_the_run_is_being_released_is_not_lost(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many runs fall asleep all the time, and each is sent its event at about that moment."""
    monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 0.0)
    look_no_more(monkeypatch)

    async def one(number: int) -> str:
        async with room:
            run = await app.start(Ask)
            await eventually(lambda: has_asked(database, run), interval=0.001)
            await asyncio.sleep((number % 8) * 0.0015)
            await run.send_event(Go(word=str(number)))
            return await run.result(timeout=120)

    room = asyncio.Semaphore(6)
    async with running_run_worker(app):
        results = await asyncio.gather(*(one(number) for number in range(150)))
    assert results == [str(number) for number in range(150)]


@pytest.mark.parametrize("others", [0, 1])
async def test_a_run_that_is_claimed_before_its_release_was_heard_of_goes_on_from_its_journal(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """The answer to the release is late: the run is still in memory when it is claimed, alone or with others."""
    monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 0.0)
    monkeypatch.setattr("tidemill.engine.runs.run_claims.FIND_OWN_EVERY", 600.0)
    released, heard = asyncio.Event(), asyncio.Event()
    commit, load = PostgresRunStore.commit, PostgresRunStore.load

    async def answer_late(store: PostgresRunStore, owner: int, number: int, turns: Sequence[RunTurn]) -> set[int]:
        mine = await commit(store, owner, number, turns)
        if any(turn.release for turn in turns) and not released.is_set():
            released.set()
            await heard.wait()
        return mine

    async def load_late(store: PostgresRunStore, numbers: Sequence[int]) -> Any:
        if released.is_set() and not heard.is_set():
            heard.set()
            await eventually(lambda: run.id not in run_worker.work.runs)
        return await load(store, numbers)

    async with running_run_worker(app) as run_worker:
        asleep = [await app.start(Ask) for _ in range(others)]
        for other in asleep:
            await eventually(lambda waits=other: is_asleep(database, waits))
        await eventually(lambda: not run_worker.work.runs)
        monkeypatch.setattr(PostgresRunStore, "commit", answer_late)
        monkeypatch.setattr(PostgresRunStore, "load", load_late)
        run = await app.start(Ask)
        await released.wait()
        async with database.transaction() as together:
            for each in (run, *asleep):
                await each.send_event(Go(word="again"), conn=together)
        if not others:
            await eventually(lambda: is_owned(database, run))
            heard.set()
        assert await run.result(timeout=120) == "again"


async def test_a_send_that_meets_a_release_under_lock_wakes_the_run_again(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release has taken its snapshot, waits for the row, and then cannot see what has come meanwhile."""
    monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 600.0)
    async with running_run_worker(app):
        run = await app.start(Ask)
        await eventually(lambda: has_asked(database, run))
        async with database.transaction() as sender:
            await sender.execute("UPDATE tidemill.run SET awake = true WHERE id = $1", run.id)
            monkeypatch.setattr("tidemill.engine.runs.durable_run.IDLE_BEFORE_RELEASE", 0.0)
            await eventually(lambda: locked_out(database, TURN))
            look_no_more(monkeypatch)
            tick = encode_tick(Received(time.time(), Go(word="in between")))
            await sender.execute("INSERT INTO tidemill.inbox (run_id, data) VALUES ($1, $2)", run.id, tick)
        assert await run.result(timeout=120) == "in between"


async def test_an_event_is_taken_in_once_however_often_the_inbox_is_read(app: App, database: Database) -> None:
    """The inbox is read again and again while the turn that uses an event up is being written."""
    async with running_run_worker(app) as run_worker:
        run = await app.start(Ask)
        await eventually(lambda: has_asked(database, run))
        async with database.transaction() as holder:
            await holder.execute("SELECT FROM tidemill.tick LIMIT 0")
            await holder.execute("LOCK TABLE tidemill.tick IN SHARE MODE")
            await run.send_event(Go(word="once"))
            await eventually(lambda: locked_out(database, TURN))
            for _ in range(5):
                run_worker.work._wake.set()
                await asyncio.sleep(0.02)
        assert await run.result(timeout=120) == "once"
    assert [tick["kind"] for tick in await ticks_of(database, run.id)].count("received") == 1


async def test_an_event_for_a_run_that_is_over_or_never_was_is_a_clear_error(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Chain)
        await run.result(timeout=120)
        with pytest.raises(NotFoundError, match=r"has ended \(succeeded\)"):
            await run.send_event(Go(word="late"))
        with pytest.raises(NotFoundError, match="there is no run 404"):
            await RunHandle(database, 404).send_event(Go(word="?"))
        with pytest.raises(NotFoundError, match="there is no run 404"):
            await app.runs.get(404)
        with pytest.raises(PayloadError, match="cannot be stored"):
            await run.send_event(HumanResponseEvent(what=object()))
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0


async def test_an_event_that_nobody_can_read_is_told_and_does_no_damage(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Ask)
        unknown = b'{"kind":"received","at":1.0,"event":{"type":"elsewhere.Unheard","value":{}}}'
        await send_to_run(database, run.id, unknown)
        await send_to_run(database, run.id, b'{"kind":"from the future","at":1.0}')
        await send_to_run(database, run.id, b'["nonsense"]')
        await eventually(lambda: has_asked(database, run))
        said = "something that was sent to it could not be read: Expected `object`, got `array`"
        await eventually(lambda: says(database, run, said))
        await run.send_event(Go(word="fine"))
        assert await run.result(timeout=120) == "fine"
    assert await says(database, run, None), "it has gone on"
    assert await value(database, "SELECT count(*) FROM tidemill.inbox") == 0


# -- looking --------------------------------------------------------------------------------------


async def add(ctx: Context, name: str) -> None:
    async with ctx.store.edit_state() as state:
        state[name] = state.get(name, 0) + 1


async def is_asleep(database: Database, run: RunHandle, *, notes: int = 0, received: int = 0) -> bool:
    """Whether nobody owns the run, after so many notes and events from outside."""
    row = await database.fetchrow("SELECT owner, awake, seq FROM tidemill.run WHERE id = $1", run.id)
    assert row is not None
    if row["owner"] is not None or row["awake"] or row["seq"] == 0:
        return False
    kinds = [tick["kind"] for tick in await ticks_of(database, run.id)]
    return kinds.count("noted") >= notes and kinds.count("received") >= received


async def test_a_run_no_longer_tells_of_a_wrong_event_once_it_goes_on(app: App, database: Database) -> None:
    wrong = b'{"kind":"received","at":1.0,"event":{"type":"tests.support.durable.Go","value":{"word":["a","b"]}}}'
    said = (
        "something that was sent to it could not be read: these values do not fit the event class Go: "
        "word must be a valid string, and not ['a', 'b']"
    )
    async with running_run_worker(app):
        run, other = await app.start(TwoWaits), await app.start(TwoWaits)
        for each in (run, other):
            await eventually(lambda each=each: has_asked(database, each))
            await send_to_run(database, each.id, wrong)
            await eventually(lambda each=each: says(database, each, said))
        await run.send_event(Go(word="one"))
        await eventually(lambda: says(database, run, None))
        await send_to_run(database, run.id, wrong)
        await eventually(lambda: says(database, run, said))
        await run.send_event(Approved(by="two"))
        assert (await run.result(timeout=120))[:2] == ["one", "two"]
        assert await says(database, run, None), "it has ended"
    await other.send_event(Go(word="three"))
    async with running_run_worker(app):
        await eventually(lambda: says(database, other, None))


async def says(database: Database, run: RunHandle, note: str | None) -> bool:
    return await value(database, "SELECT note FROM tidemill.run WHERE id = $1", run.id) == note


async def has_asked(database: Database, run: RunHandle) -> bool:
    rows = await database.fetch("SELECT data FROM tidemill.tick WHERE run_id = $1", run.id)
    return any(b'"asked"' in row["data"] for row in rows)


async def is_owned(database: Database, run: RunHandle) -> bool:
    return await value(database, "SELECT owner IS NOT NULL FROM tidemill.run WHERE id = $1", run.id)


async def let_time_pass(database: Database, run: RunHandle) -> bool:
    """Make a run's timers due, as if the hour that they were set to had passed; whether it had none any more."""
    past = "UPDATE tidemill.inbox SET due_at = now() WHERE run_id = $1 AND timer IS NOT NULL RETURNING id"
    return not await database.fetch(past, run.id)


async def timer_due(database: Database, run: RunHandle) -> Mapping[str, Any] | None:
    return await value(database, "SELECT due_at FROM tidemill.inbox WHERE run_id = $1 AND timer IS NOT NULL", run.id)
