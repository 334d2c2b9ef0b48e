"""What is written in one transaction exists as a whole or not at all, wherever the process is killed.

A forked child kills itself with SIGKILL after its n-th statement, for every n; the parent then counts what is there.
`TIDEMILL_KILLS` repeats the walk until there were so many kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.invariants.own_transaction.test_start_table import notes
from tests.invariants.own_transaction.test_starting_is_atomic import Asking, Word, order
from tests.support import eventually, value
from tests.support.roles import running_worker
from tidemill import App, current_job
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database

KILLS = int(os.environ.get("TIDEMILL_KILLS", "0"))

EFFECTS = """
SELECT (SELECT count(*) FROM purchase) AS rows, (SELECT count(*) FROM tidemill.job WHERE task = 'follow') AS jobs,
       (SELECT count(*) FROM tidemill.run WHERE tags = '{made}') AS runs,
       (SELECT count(*) FROM tidemill.inbox) AS events,
       (SELECT coalesce(sum(messages), 0)::int FROM tidemill.event_log) AS messages,
       (SELECT count(*) FROM tidemill.state_blob) AS states,
       (SELECT count(*) FROM tidemill.job_history WHERE task = 'pay' AND state = 'succeeded') AS ended
"""


def make_app(database_url: str) -> App:
    app = App("test", database_url=database_url)

    @app.task(queue="mail")
    async def follow(n: int = 0) -> None: ...

    app.workflow(Asking)
    app.dag(order)
    app.pipeline(notes)
    return app


async def write_all(app: App, connection: Any, run: int) -> None:
    """Everything that a transaction can hold."""
    handle = await app.runs.get(run)
    async with app.atomic(connection) as tx:
        await connection.execute("INSERT INTO purchase VALUES (1)")
        await tx.enqueue(app.declarations.tasks["follow"].call(n=1))
        await tx.enqueue_many(app.declarations.tasks["follow"].call(n=n) for n in range(3))
        await tx.start(Asking, topic="a", tags=["made"])
        await tx.start(order, tags=["made"])
        await tx.send_event(handle, Word(text="w"))
        await tx.publish("news", {"n": 1})
        await tx.write_state("raw/{name}.txt", {"name": "a"}, "text")
        await connection.execute("INSERT INTO purchase VALUES (2)")


ALL = {"rows": 2, "jobs": 4, "runs": 2, "events": 1, "messages": 1, "states": 1, "ended": 0}
NOTHING = dict.fromkeys(ALL, 0)


def in_child(work: Callable[[], Awaitable[None]]) -> bool:
    """Run this in a forked child; returns whether it came to its end."""
    child = os.fork()
    if child == 0:  # Here is no way back into the test.
        try:
            asyncio.run(work())  # pyright: ignore[reportArgumentType]
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent is told by the status
            traceback.print_exc()
            os._exit(3)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, status
    return not os.WIFSIGNALED(status)


def die_after(statements: int, connection: asyncpg.Connection) -> None:
    """Kill this process once the connection has answered so many statements."""
    seen = 0

    def count(_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == statements:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.add_query_logger(count)


async def effects(database: Database) -> dict[str, int]:
    (row,) = await database.fetch(EFFECTS)
    return dict(row)


async def remove_all(database: Database) -> None:
    for table in (
        "purchase",
        "tidemill.job",
        "tidemill.inbox",
        "tidemill.event_log",
        "tidemill.job_history",
        "tidemill.state_blob",
    ):
        await database.fetch(f"DELETE FROM {table}")
    await database.fetch("DELETE FROM tidemill.run WHERE tags = '{made}'")


async def test_a_kill_after_any_statement_of_an_atomic_block_leaves_all_of_it_or_nothing(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)
    run = (await app.start(Asking, topic="before")).id
    await app.close()
    kills, statement, found = 0, 0, set[bool]()
    while True:
        statement += 1

        async def attempt(after: int = statement) -> None:
            child = make_app(database_url)
            connection = await asyncpg.connect(database_url)
            die_after(after, connection)
            await write_all(child, connection, run)

        completed = await asyncio.to_thread(in_child, attempt)
        await eventually(lambda: no_open_transactions(database))
        seen = await effects(database)
        assert seen in (ALL, NOTHING), f"killed after statement {statement}"
        assert completed is False or seen == ALL
        found.add(seen == ALL)
        await remove_all(database)
        kills += not completed
        if completed and kills >= KILLS:
            break
        statement = 0 if completed else statement
    assert kills > 8
    assert found == {True, False}


async def no_open_transactions(database: Database) -> bool:
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()"
    return await value(database, open_ones) == 0


async def test_an_error_in_an_atomic_block_leaves_nothing_for_every_driver(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)
    follow = app.declarations.tasks["follow"]
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(database_url), poolclass=NullPool
    )
    async with await psycopg.AsyncConnection.connect(database_url) as second, engine.connect() as third:
        first = await asyncpg.connect(database_url)
        for connection in (first, second, third):
            with contextlib.suppress(RuntimeError):
                async with app.atomic(connection) as tx:
                    await tx.enqueue(follow.call(n=1))
                    await tx.publish("news", 1)
                    raise RuntimeError
            async with app.atomic(connection) as tx:
                await tx.enqueue(follow.call(n=2))
        await second.commit()
        await first.close()
    plain = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url), poolclass=NullPool)
    with psycopg.connect(database_url) as fourth, plain.connect() as fifth:
        for connection in (fourth, fifth):
            with contextlib.suppress(RuntimeError), app.atomic_sync(connection) as tx:
                tx.enqueue(follow.call(n=1))
                raise RuntimeError
            with app.atomic_sync(connection) as tx:
                tx.enqueue(follow.call(n=2))
    with pytest.raises(ConfigError, match="atomic_sync"):
        await app.atomic(fourth).__aenter__()
    assert await value(database, "SELECT count(*) FROM tidemill.job WHERE args::text = '{\"n\":2}'") == 5
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 5
    app.close_sync()
    await app.close()


def paying(app: App, die: int | None = None) -> Any:
    """A task whose rows and follow-up job commit with its result; it kills its process after a statement."""

    @app.task(queue="pay", retry=app.retry(max_attempts=3, backoff=0.01))
    async def pay(fails: int = 0) -> str:
        async with current_job().transaction() as connection:
            if die is not None:
                die_after(die, connection)
            await connection.execute("INSERT INTO purchase VALUES (1)")
            await app.enqueue(app.declarations.tasks["follow"].call(n=1), conn=connection)
        async with current_job().transaction() as connection:
            await connection.execute("INSERT INTO purchase VALUES (2)")
        if current_job().attempt <= fails:
            raise RuntimeError("not yet")
        return "paid"

    return pay


async def test_what_a_job_writes_in_its_transaction_commits_with_its_result_once(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)
    pay = paying(app)
    async with running_worker(app, queues=("pay",)):
        job = await app.enqueue(pay.call(fails=2))
        assert await job == "paid"
    assert await effects(database) == {**NOTHING, "rows": 2, "jobs": 1, "ended": 1}
    assert (await app.jobs.get(job)).attempt == 3
    await app.close()


async def test_a_kill_of_the_worker_after_any_statement_leaves_the_jobs_writes_with_its_end_or_not_at_all(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    both, kills, statement = {**NOTHING, "rows": 2, "jobs": 1, "ended": 1}, 0, 0
    while True:
        statement += 1

        async def attempt(after: int = statement) -> None:
            app = make_app(database_url)
            pay = paying(app, after)
            async with running_worker(app, queues=("pay",)):
                await (await app.enqueue(pay.call()))

        completed = await asyncio.to_thread(in_child, attempt)
        await eventually(lambda: no_open_transactions(database))
        seen = await effects(database)
        assert seen in (both, NOTHING), f"killed after statement {statement}"
        assert completed is False or seen == both
        await remove_all(database)
        kills += not completed
        if completed:
            break
    assert kills >= 6


async def test_blocks_that_a_job_opens_at_the_same_time_all_commit_with_its_result(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)

    @app.task(queue="pay", name="pay")
    async def pay() -> None:
        async def write(number: int) -> None:
            async with current_job().transaction() as connection:
                await connection.execute("INSERT INTO purchase VALUES ($1)", number)
                with contextlib.suppress(RuntimeError):
                    async with current_job().transaction():
                        await connection.execute("INSERT INTO purchase VALUES (99)")
                        raise RuntimeError

        await asyncio.gather(*map(write, range(3)))

    async with running_worker(app, queues=("pay",)):
        await (await app.enqueue(pay.call()))
    rows = await database.fetch("SELECT id FROM purchase ORDER BY id")
    assert [row["id"] for row in rows] == [0, 1, 2]
    await app.close()


async def test_a_block_does_not_wait_for_itself_when_its_own_tasks_open_blocks(
    database_url: str, database: Database
) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)
    left: list[asyncio.Task[None]] = []

    @app.task(queue="pay", name="pay", budget="20s")
    async def pay() -> None:
        async def write(number: int) -> None:
            async with current_job().transaction() as connection:
                await connection.execute("INSERT INTO purchase VALUES ($1)", number)
                with contextlib.suppress(RuntimeError):
                    async with current_job().transaction():
                        await connection.execute("INSERT INTO purchase VALUES (99)")
                        raise RuntimeError

        async def write_later(event: asyncio.Event) -> None:
            await event.wait()
            await write(9)

        after = asyncio.Event()
        async with current_job().transaction():
            await asyncio.gather(*map(write, range(3)))
            await asyncio.wait_for(asyncio.create_task(write(3)), timeout=10)
            left.append(asyncio.create_task(write_later(after)))
        after.set()
        await asyncio.gather(*left, *map(write, range(4, 7)))

    async with running_worker(app, queues=("pay",)):
        await (await app.enqueue(pay.call()))
    rows = await database.fetch("SELECT id FROM purchase ORDER BY id")
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, 9]
    await app.close()


async def test_a_job_that_has_another_owner_by_now_writes_nothing(database_url: str, database: Database) -> None:
    await database.fetch("CREATE TABLE purchase (id integer)")
    app = make_app(database_url)
    taken = asyncio.Event()

    @app.task(queue="pay", name="pay")
    async def late() -> None:
        async with current_job().transaction() as connection:
            await connection.execute("INSERT INTO purchase VALUES (1)")
        if current_job().attempt == 1:
            await database.fetch("UPDATE tidemill.job SET attempt = attempt + 1 WHERE task = 'pay'")
            taken.set()

    async with running_worker(app, queues=("pay",)):
        await app.enqueue(late.call())
        await asyncio.wait_for(taken.wait(), 150)
    assert (await effects(database))["rows"] == 0
    await app.close()
