"""A step's own transaction: its writes are committed with its result."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import pytest

from tests.support.waiting import PATIENCE
from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.errors import WorkflowRuntimeError
from tidemill.store.database import Database

THRICE = retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(3))


class Part(Event):
    n: int


@pytest.fixture
async def ledger(database: Database) -> Database:
    await database.fetch("CREATE TABLE public.ledger (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    return database


async def entries(database: Database) -> list[int]:
    return [row["n"] for row in await database.fetch("SELECT n FROM public.ledger ORDER BY n")]


async def test_a_steps_own_writes_are_committed_with_its_result(app: App, ledger: Database) -> None:
    seen: list[int] = []

    @app.workflow
    class Pays(Workflow):
        @step
        async def pay(self, ctx: Context, ev: StartEvent) -> Part:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO public.ledger VALUES ($1)", ev.n)
            seen.append(len(await entries(ledger)))  # Not yet: the step has not ended.
            return Part(n=1)

        @step
        async def end(self, ev: Part) -> StopEvent:
            return StopEvent(result=await entries(ledger))

    async with app.running():
        assert await (await app.start(Pays, n=7)) == [7]
    assert seen == [0]


async def test_writes_of_a_step_that_fails_are_gone(app: App, ledger: Database) -> None:
    @app.workflow
    class Fails(Workflow):
        @step(retry_policy=THRICE)
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO public.ledger VALUES (1)")
            if ctx.retry_info().retry_number < 2:
                raise ValueError("after the writes")
            return StopEvent(result="paid")

    async with app.running():
        assert await (await app.start(Fails)) == "paid"
    assert await entries(ledger) == [1]


async def test_a_constraint_that_is_checked_at_the_commit_fails_the_step(app: App, ledger: Database) -> None:
    await ledger.fetch("INSERT INTO public.ledger VALUES (1)")

    @app.workflow
    class Twice(Workflow):
        @step
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO public.ledger VALUES (1)")
            return StopEvent()

    async with app.running():
        with pytest.raises(Exception, match="duplicate key"):
            await (await app.start(Twice)).result(timeout=120)
    assert await entries(ledger) == [1]


async def refused(how: str, connection: asyncpg.Connection) -> None:
    """Leave a transaction in a state in which nothing can be committed."""
    match how:
        case "a swallowed error":
            with suppress(asyncpg.UndefinedTableError):
                await connection.execute("SELECT FROM missing")
        case "a time limit":
            await connection.execute("SET LOCAL statement_timeout = 1")
        case "a closed connection":
            await connection.close()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("a swallowed error", "InFailedSQLTransactionError: current transaction is aborted"),
        ("a time limit", "QueryCanceledError: canceling statement due to statement timeout"),
        ("a closed connection", "InterfaceError: connection is closed"),
    ],
)
async def test_a_step_whose_transaction_cannot_be_committed_fails_and_is_retried_by_its_policy(
    app: App, ledger: Database, how: str, why: str
) -> None:
    @app.workflow
    class Refused(Workflow):
        @step(retry_policy=retry_policy(wait=wait_fixed(0.01), stop=stop_after_attempt(2)))
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO public.ledger VALUES (1)")
            if ctx.retry_info().retry_number == 0:
                await refused(how, connection)
            return StopEvent(result=str(ctx.retry_info().last_exception))

    async with app.running():
        said = await asyncio.wait_for(await app.start(Refused), PATIENCE)
        assert said.startswith(f"the transaction of step pay cannot be committed: {why}")
    assert await entries(ledger) == [1]


async def test_a_transaction_that_is_cut_before_its_commit_is_done_again_once(
    app: App, ledger: Database, database_url: str
) -> None:
    attempts: list[int] = []

    @app.workflow
    class Cut(Workflow):
        @step
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            attempts.append(1)
            async with ctx.transaction() as connection:
                await connection.execute("INSERT INTO public.ledger VALUES (1)")
                pid = await connection.fetchval("SELECT pg_backend_pid()")
            if len(attempts) == 1:
                cutter = await asyncpg.connect(database_url)
                await cutter.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
                await cutter.close()
            return StopEvent(result="paid")

    async with app.running():
        assert await (await app.start(Cut)).result(timeout=120) == "paid"
    assert await entries(ledger) == [1]
    assert len(attempts) == 2


async def test_a_transaction_needs_a_durable_run() -> None:
    class Here(Workflow):
        @step
        async def pay(self, ctx: Context, ev: StartEvent) -> StopEvent:
            async with ctx.transaction():
                return StopEvent()

    with pytest.raises(WorkflowRuntimeError, match="is only available in durable runs"):
        await Here().run()
