"""Workflows for run workers in real processes. Their steps note every execution in the table `deed`.

`deed` has a row per time that a step was really entered, whatever the journal says; a step that waits at a gate goes on
once its name is in `gate`. Both are made by `make_tables`.

TIDEMILL_IDLE   how long a run that only waits stays in the memory of its process, where a test counts on that
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from tests.support.waiting import PATIENCE, PATIENT
from tidemill import App
from tidemill.engine.roles.role import Role
from tidemill.engine.runs import durable_run
from tidemill.engine.runs.run_store import PostgresRunStore
from tidemill.engine.runs.run_worker import RunWorker, run_worker_role
from tidemill.flows import CompensationEvent, Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.store.database import Database

TABLES = """
CREATE TABLE deed (id bigserial, tag text NOT NULL, what text NOT NULL, pid integer NOT NULL);
CREATE TABLE gate (name text PRIMARY KEY);
"""

#: The statement of a run worker that writes down what has happened to runs, as the database shows it.
TURN = "%UPDATE tidemill.run%SET seq = %"

_pools: dict[asyncio.AbstractEventLoop, asyncpg.Pool] = {}


class Began(Event):
    tag: str


class Passed(Event):
    tag: str


class Go(Event):
    word: str


class Seen(Event):
    tag: str
    word: str


class Side(Event):
    tag: str


class Tour(Workflow):
    """Every phase that a run can be in: at work, waiting, about to retry."""

    @step
    async def begin(self, ev: StartEvent) -> Began:
        await note(ev.tag, "begin")
        return Began(tag=ev.tag)

    @step
    async def work(self, ev: Began) -> Passed:
        await note(ev.tag, "work")
        await pass_gate(f"{ev.tag} work")
        return Passed(tag=ev.tag)

    @step
    async def ask(self, ctx: Context, ev: Passed) -> Seen | Side:
        await note(ev.tag, "ask")
        async with ctx.store.edit_state() as state:
            state.asked = state.get("asked", 0) + 1
        ctx.send_event(Side(tag=ev.tag))
        await ctx.once("effect", lambda: note(ev.tag, "effect"))
        go = await ctx.wait_for_event(Go)
        return Seen(tag=ev.tag, word=go.word)

    @step
    async def aside(self, ctx: Context, ev: Side) -> None:
        await note(ev.tag, "aside")
        async with ctx.store.edit_state() as state:
            state.sides = state.get("sides", 0) + 1

    @step(retry_policy=retry_policy(wait=wait_fixed(0.6), stop=stop_after_attempt(3)))
    async def finish(self, ctx: Context, ev: Seen) -> StopEvent:
        await note(ev.tag, "finish")
        if ctx.retry_info().retry_number == 0:
            raise RuntimeError("not the first time")
        state = await ctx.store.get_state()
        return StopEvent(result=[ev.word, state.asked, state.sides])


class Count(Event):
    n: int


class Chain(Workflow):
    """Many small steps, one after the other."""

    @step
    async def begin(self, ev: StartEvent) -> Count:
        return Count(n=0)

    @step
    async def count(self, ctx: Context, ev: Count) -> Count | StopEvent:
        ctx.write_event_to_stream(Count(n=ev.n))
        await ctx.store.set("sum", await ctx.store.get("sum", default=0) + ev.n)
        if ev.n < 9:
            return Count(n=ev.n + 1)
        return StopEvent(result=await ctx.store.get("sum"))


class Ask(Workflow):
    """Waits for one word and ends with it."""

    @step
    async def ask(self, ctx: Context, ev: StartEvent) -> StopEvent:
        go = await ctx.wait_for_event(Go)
        return StopEvent(result=go.word)


class Stubborn(Workflow):
    """A step that takes no notice when it is cancelled."""

    @step
    async def stay(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await note(ev.tag, "stay")
        while True:
            try:
                await pass_gate(ev.tag)
                return StopEvent(result=ev.tag)
            except asyncio.CancelledError:
                continue


class Undo(CompensationEvent):
    pass


class Answer(Workflow):
    """The child of a run."""

    @step
    async def reply(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=ev.word)


class Fragile(Workflow):
    """Its process is killed once, right behind the `await` that its start event names."""

    @step
    async def work(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await note(ev.tag, "enter")
        before = await ctx.store.get("n", default=0)
        await self.survive(ev, "get")
        await ctx.store.set("n", before + 1)
        await self.survive(ev, "set")
        await ctx.once("effect", lambda: note(ev.tag, "effect"))
        await self.survive(ev, "once")
        go = await ctx.wait_for_event(Go)
        await self.survive(ev, "wait")
        async with ctx.store.edit_state() as state:
            state.n += 10
        await self.survive(ev, "edit")
        await ctx.sleep("0.1s")
        await self.survive(ev, "sleep")
        await ctx.compensate(self.undo, Undo())
        await self.survive(ev, "compensate")
        answer = await ctx.child("Answer", word=go.word)
        await self.survive(ev, "child")
        both = await ctx.gather(self.add(ctx, "a"), self.add(ctx, "b"))
        await self.survive(ev, "gather")
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO deed (tag, what, pid) VALUES ($1, 'transaction', 0)", ev.tag)
        await self.survive(ev, "transaction")
        state = await ctx.store.get_state()
        await self.survive(ev, "state")
        return StopEvent(result=[before, state.n, answer, both])

    @step
    async def undo(self, ev: Undo) -> None:
        raise AssertionError("a run that succeeds undoes nothing")

    async def add(self, ctx: Context, name: str) -> str:
        await ctx.store.set(name, 1)
        await ctx.sleep("0.05s")
        return name

    async def survive(self, ev: StartEvent, point: str) -> None:
        if ev.tag == point and not await (await _pool()).fetchval("SELECT count(*) FROM gate WHERE name = $1", point):
            await (await _pool()).execute("INSERT INTO gate VALUES ($1)", point)
            os.kill(os.getpid(), signal.SIGKILL)


app = App("test")


class Part(Event):
    tag: str
    n: int


class Added(Event):
    ticket: int


class Adding(Workflow):
    """Six steps change the same values; those with an odd number then wait at the gate, and the fifth fails once."""

    @step
    async def begin(self, ev: StartEvent) -> list[Part]:
        return [Part(tag=ev.tag, n=n) for n in range(1, 7)]

    @step(num_workers=6, retry_policy=retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(2)))
    async def add(self, ctx: Context, ev: Part) -> Added:
        async with ctx.store.edit_state() as state:
            state["total"] = state.get("total", 0) + ev.n
            state["names"] = [*state.get("names", []), ev.n]
            state["nested"] = {**state.get("nested", {}), str(ev.n): {"n": ev.n}}
            state["tickets"] = ticket = state.get("tickets", 0) + 1
        await note(ev.tag, f"added {ev.n}")
        if ev.n % 2:
            await pass_gate(f"{ev.tag} odd")
        if ev.n == 5 and ctx.retry_info().retry_number == 0:
            raise ValueError("not yet")
        return Added(ticket=ticket)

    @step
    async def end(self, ctx: Context, ev: list[Added]) -> StopEvent:
        state = await ctx.store.get_state()
        nested = sorted(each["n"] for each in state["nested"].values())
        tickets = sorted(each.ticket for each in ev)
        return StopEvent(result=[state["total"], sorted(state["names"]), nested, tickets])


for each in (Tour, Chain, Ask, Stubborn, Fragile, Answer, Adding):
    app.workflow(each, timeout=None)
durable_run.IDLE_BEFORE_RELEASE = float(os.environ.get("TIDEMILL_IDLE", durable_run.IDLE_BEFORE_RELEASE))


# -- for steps ------------------------------------------------------------------------------------


async def note(tag: str, what: str) -> None:
    """Note that this is being done, by this process."""
    await (await _pool()).execute("INSERT INTO deed (tag, what, pid) VALUES ($1, $2, $3)", tag, what, os.getpid())


async def pass_gate(name: str) -> None:
    """Go on when the test opens the gate."""
    while not await (await _pool()).fetchval("SELECT count(*) FROM gate WHERE name IN ($1, '*')", name):
        await asyncio.sleep(0.02)


async def _pool() -> asyncpg.Pool:
    loop = asyncio.get_running_loop()
    if loop not in _pools:
        pool = await asyncpg.create_pool(os.environ["TIDEMILL_DATABASE_URL"], min_size=0, max_size=4)
        if loop in _pools:
            await pool.close()
        _pools.setdefault(loop, pool)
    return _pools[loop]


# -- for tests ------------------------------------------------------------------------------------


async def make_tables(database: Database) -> None:
    await database.run(lambda connection: connection.execute(TABLES))


async def deeds(database: Database, tag: str) -> list[tuple[str, int]]:
    """What was done for a tag, and by which process."""
    rows = await database.fetch("SELECT what, pid FROM deed WHERE tag = $1 ORDER BY id", tag)
    return [(row["what"], row["pid"]) for row in rows]


async def open_gates(database: Database, *names: str) -> None:
    await database.fetch("INSERT INTO gate SELECT * FROM unnest($1::text[])", list(names))


async def ticks_of(database: Database, run_id: int) -> list[dict[str, Any]]:
    """A run's journal as JSON, after a look at its numbering: from 1, without a gap."""
    rows = await database.fetch("SELECT seq, data FROM tidemill.tick WHERE run_id = $1 ORDER BY seq", run_id)
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    return [msgspec.json.decode(row["data"]) for row in rows]


async def completed_once(database: Database, run_id: int) -> int:
    """How many pieces of work ended well; asserts that the journal says so once for each."""
    ended = [tick["work"] for tick in await ticks_of(database, run_id) if is_success(tick)]
    assert len(ended) == len(set(ended)), f"run {run_id} has counted a result twice: {ended}"
    return len(ended)


def is_success(tick: Mapping[str, Any]) -> bool:
    return tick["kind"] == "completed" and "error" not in tick


@asynccontextmanager
async def running_run_worker(app: App, **options: Any) -> AsyncIterator[Role[RunWorker]]:
    """A run worker in this process, stopped as SIGTERM would stop it."""
    database = app.database(label="test run worker")
    store = PostgresRunStore(database)
    run_worker = run_worker_role(RunWorker(store, app.runs.kinds), store, database, **{**PATIENT, **options})
    life = asyncio.create_task(run_worker.run())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait(
                [life, asyncio.create_task(run_worker.wait_ready())], return_when=asyncio.FIRST_COMPLETED
            )
        if life.done():
            life.result()
        yield run_worker
        run_worker.stop()
        async with asyncio.timeout(PATIENCE):
            await life
    finally:
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await database.close()
