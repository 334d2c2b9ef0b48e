"""A job that is enqueued on the caller's own transaction exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import connections
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.support import eventually, value
from tests.support.callers import CALLERS, Caller, asyncpg_plain
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError, SchemaError
from tidemill.store.database import Database


@pytest.fixture
def task(app: App) -> Any:
    @app.task(queue="mail")
    async def send(n: int = 0) -> None: ...

    return send


async def stored(database: Database) -> tuple[int, int]:
    """How many jobs and how many of the application's own rows others can see."""
    return (
        await value(database, "SELECT count(*) FROM tidemill.job"),
        await value(database, "SELECT count(*) FROM purchase"),
    )


async def test_a_job_appears_when_the_transaction_commits_and_not_before(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    await caller.execute("INSERT INTO purchase VALUES (1)")
    ref = await caller.enqueue(app, task, n=7)
    assert await stored(database) == (0, 0)
    await caller.commit()
    assert await stored(database) == (1, 1)
    row = await database.fetchrow("SELECT id, task, args, state FROM tidemill.job")
    assert row is not None
    assert (row["id"], row["task"], row["args"], row["state"]) == (ref.id, "send", b'{"n":7}', "ready")


async def test_a_job_never_appears_when_the_transaction_rolls_back(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    await caller.execute("INSERT INTO purchase VALUES (1)")
    await caller.enqueue(app, task)
    await caller.rollback()
    assert await stored(database) == (0, 0)
    await caller.enqueue(app, task)
    await caller.commit()
    assert await stored(database) == (1, 0)


async def test_a_connection_to_a_database_without_our_tables_is_answered_with_what_to_do(
    app: App, caller: Caller, task: Any
) -> None:
    await caller.execute("ALTER SCHEMA tidemill RENAME TO elsewhere")
    with pytest.raises(SchemaError, match=r"of this connection has no table .* run `tidemill db migrate` on this one"):
        await caller.enqueue(app, task)
    await caller.rollback()
    await caller.enqueue(app, task)


async def test_many_jobs_appear_together_or_not_at_all(app: App, database: Database, caller: Caller, task: Any) -> None:
    assert len(await caller.enqueue_many(app, task, [{"n": n} for n in range(500)])) == 500
    await caller.rollback()
    assert await stored(database) == (0, 0)
    refs = await caller.enqueue_many(app, task, [{"n": n} for n in range(500)])
    assert await stored(database) == (0, 0)
    await caller.commit()
    rows = await database.fetch("SELECT id, args FROM tidemill.job ORDER BY id")
    assert [(row["id"], row["args"]) for row in rows] == [(ref.id, b'{"n":%d}' % n) for n, ref in enumerate(refs)]


async def test_what_is_rolled_back_to_a_savepoint_takes_its_jobs_along(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    kept = [await caller.enqueue(app, task, n=1)]
    await caller.execute("SAVEPOINT perhaps")
    await caller.enqueue(app, task, n=2)
    await caller.enqueue(app, task, n=3, unique_key="k", concurrency_key="c")
    await caller.execute("ROLLBACK TO SAVEPOINT perhaps")
    kept.append(await caller.enqueue(app, task, n=4))
    await caller.commit()
    rows = await database.fetch("SELECT id FROM tidemill.job ORDER BY id")
    assert [row["id"] for row in rows] == [ref.id for ref in kept]


@pytest.mark.parametrize("window", [None, "1h"], ids=["while unfinished", "for an hour"])
async def test_a_unique_key_is_taken_when_the_transaction_commits_and_free_when_it_does_not(
    app: App, database: Database, caller: Caller, task: Any, window: str | None
) -> None:
    first = await caller.enqueue(app, task, unique_key="order-7", unique_for=window)
    again = await caller.enqueue(app, task, unique_key="order-7", unique_for=window)
    assert first.created
    assert (again.id, again.created) == (first.id, False)
    await caller.rollback()
    second = await caller.enqueue(app, task, unique_key="order-7", unique_for=window)
    assert second.created
    await caller.commit()
    third = await app.enqueue(task, unique_key="order-7", unique_for=window)
    assert (third.id, third.created) == (second.id, False)
    assert await stored(database) == (1, 0)


async def test_a_concurrency_key_lets_jobs_through_only_once_they_are_committed(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    await caller.enqueue(app, task, concurrency_key="tenant-7", max_concurrency=1)
    await caller.rollback()
    assert await stored(database) == (0, 0)
    assert await value(database, "SELECT count(*) FROM tidemill.concurrency_key") == 0
    for _ in range(3):
        await caller.enqueue(app, task, concurrency_key="tenant-7", max_concurrency=2)
    await caller.commit()
    rows = await database.fetch("SELECT state FROM tidemill.job ORDER BY id")
    assert [row["state"] for row in rows] == ["ready", "ready", "throttled"]


async def test_workers_are_woken_by_the_commit_and_never_by_a_rollback(
    app: App, database_url: str, caller: Caller, task: Any
) -> None:
    heard: list[str] = []
    ear = await asyncpg.connect(database_url)
    try:
        await ear.add_listener("tidemill_jobs", lambda *news: heard.append(news[3]))
        await caller.enqueue(app, task, queue="rolled-back")
        await caller.rollback()
        await caller.enqueue(app, task, queue="committed")
        await ear.fetch("SELECT 1")
        assert heard == []
        await caller.commit()
        await eventually(lambda: heard)
        assert heard == ["committed"]
    finally:
        ear.terminate()


async def test_bad_arguments_leave_the_callers_transaction_as_it_was(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    await caller.execute("INSERT INTO purchase VALUES (1)")
    with pytest.raises(PayloadError):
        await caller.enqueue(app, task, n="seven")
    with pytest.raises(PayloadError):
        await caller.enqueue_many(app, task, [{"n": 1}, {"n": "two"}])
    await caller.commit()
    assert await stored(database) == (0, 1)


async def test_the_second_caller_waits_for_the_first_transaction_and_then_gets_its_answer(
    app: App, database_url: str, database: Database, task: Any
) -> None:
    for first_commits in (False, True):
        async with asyncpg_plain(database_url) as first, asyncpg_plain(database_url) as second:
            earlier = await first.enqueue(app, task, unique_key="k")
            waiting = asyncio.create_task(second.enqueue(app, task, unique_key="k"))
            await eventually(
                lambda: database.fetch(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            )
            assert not waiting.done()
            await (first.commit() if first_commits else first.rollback())
            later = await waiting
            assert later.created is not first_commits
            assert (later.id == earlier.id) is first_commits
            await second.rollback()


async def test_a_connection_of_the_wrong_kind_is_refused_with_a_hint(app: App, database_url: str, task: Any) -> None:
    async with asyncpg_plain(database_url) as modern, CALLERS["psycopg"](database_url) as plain:
        with pytest.raises(ConfigError, match=r"await app\.enqueue"):
            app.enqueue_sync(task, conn=modern.connection)
        with pytest.raises(ConfigError, match="enqueue_sync"):
            await app.enqueue(task, conn=plain.connection)
        with pytest.raises(ConfigError, match="takes an asyncpg, psycopg 3, SQLAlchemy or Django connection"):
            await app.enqueue(task, conn=object())


async def test_what_hands_out_connections_is_refused_before_it_commits_by_itself(
    app: App, database: Database, database_url: str, task: Any
) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url), poolclass=NullPool)
    modern = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(database_url))
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool:
        for wrong in (pool, modern, async_sessionmaker(modern)):
            with pytest.raises(ConfigError, match="pass the connection or session"):
                await app.enqueue(task, conn=wrong)
            with pytest.raises(ConfigError, match="pass the connection or session"):
                await app.atomic(wrong).__aenter__()
    with psycopg.connect(database_url) as connection:
        for wrong in (engine, sessionmaker(engine), connection.cursor(), connections):
            with pytest.raises(ConfigError, match="pass the connection or session"):
                app.enqueue_sync(task, conn=wrong)
            with pytest.raises(ConfigError, match="pass the connection or session"):
                app.atomic_sync(wrong).__enter__()
    assert await stored(database) == (0, 0)


async def test_an_atomic_block_refuses_a_connection_that_commits_every_statement(
    app: App, database: Database, database_url: str, task: Any
) -> None:
    plain = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(database_url),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
    modern = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: asyncpg.connect(database_url),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
    with plain.connect() as connection, Session(plain) as session:
        for each in (connection, session, connection, session):  # SQLAlchemy counts the second use as a transaction
            with pytest.raises(ConfigError, match="AUTOCOMMIT"), app.atomic_sync(each) as tx:
                tx.enqueue(task.call(n=1))
            each.execute(text("SELECT 1"))
    async with modern.connect() as connection, AsyncSession(modern) as session:
        for each in (connection, session, connection, session):
            with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                async with app.atomic(each) as tx:
                    await tx.enqueue(task.call(n=1))
            await each.execute(text("SELECT 1"))
    assert await stored(database) == (0, 0)


async def test_on_a_connection_that_commits_every_statement_a_call_is_stored_as_a_whole_or_not_at_all(
    app: App, database: Database, database_url: str, task: Any
) -> None:
    def calls() -> Iterator[Any]:
        yield task.call(n=1)
        raise RuntimeError

    async def batches() -> Any:
        return await value(database, "SELECT count(*) FROM tidemill.batch")

    with psycopg.connect(database_url, autocommit=True) as connection, pytest.raises(RuntimeError):
        app.jobs.batch_sync(calls(), conn=connection)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as modern:
        with pytest.raises(RuntimeError):
            await app.batch(calls(), conn=modern)
    async with asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool, pool.acquire() as pooled:
        with pytest.raises(RuntimeError):
            await app.batch(calls(), conn=pooled)
        assert await batches() == 0
        await app.batch([task.call(n=1)], conn=pooled)
        assert await batches() == 1
    async with CALLERS["Django"](database_url) as django:
        django.connection.set_autocommit(True)
        with pytest.raises(RuntimeError):
            app.jobs.batch_sync(calls(), conn=django.connection)
        assert await batches() == 1
        app.jobs.batch_sync([task.call(n=1)], conn=django.connection)
        assert await batches() == 2


async def test_an_atomic_block_takes_a_session_that_is_kept_for_each_thread(
    app: App, database: Database, database_url: str, task: Any
) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    with contextlib.suppress(RuntimeError), app.atomic_sync(session) as tx:
        tx.enqueue(task.call(n=1))
        raise RuntimeError
    with app.atomic_sync(session) as tx:
        tx.enqueue(task.call(n=2))
    session.remove()
    assert await stored(database) == (1, 0)


async def test_an_atomic_block_that_fails_within_others_takes_only_its_own_along(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    async with caller.atomic(app) as outer:
        await outer.enqueue(task.call(n=1), unique_key="kept", unique_for="1h")
        with contextlib.suppress(RuntimeError):
            async with caller.atomic(app) as middle:
                await middle.enqueue(task.call(n=2), unique_key="lost", unique_for="1h")
                await middle.enqueue(task.call(n=3), unique_key="kept", debounce="1h")
                async with caller.atomic(app) as inner:
                    await inner.enqueue(task.call(n=4), concurrency_key="c")
                raise RuntimeError
        with contextlib.suppress(PayloadError):
            async with caller.atomic(app) as wrong:
                await wrong.enqueue(task.call(n=5), fair_key="{nothing}")
        async with caller.atomic(app) as last:
            await last.enqueue(task.call(n=6), concurrency_key="c")
    await caller.commit()
    rows = await database.fetch("SELECT args, state FROM tidemill.job ORDER BY id")
    assert [(row["args"], row["state"]) for row in rows] == [(b'{"n":1}', "ready"), (b'{"n":6}', "ready")]
    windows = await database.fetch("SELECT unique_key FROM tidemill.unique_window")
    assert [row["unique_key"] for row in windows] == ["kept"]


async def test_of_many_calls_within_a_debounce_the_last_one_that_commits_counts(
    app: App, database: Database, caller: Caller, task: Any
) -> None:
    first = await caller.enqueue(app, task.call(n=1), unique_key="k", debounce="1h")
    second = await caller.enqueue(app, task.call(n=2), unique_key="k", debounce="1h")
    assert (first.created, second.created, second.id) == (True, False, first.id)
    await caller.commit()
    await caller.enqueue(app, task.call(n=3), unique_key="k", debounce="1h")
    await caller.rollback()
    assert [row["args"] for row in await database.fetch("SELECT args FROM tidemill.job")] == [b'{"n":2}']
    await caller.enqueue(app, task.call(n=4), unique_key="k", debounce="2h")
    await caller.commit()
    row = await database.fetchrow("SELECT args, due_at > now() + interval '119 minutes' AS is_later FROM tidemill.job")
    assert row is not None
    assert tuple(row) == (b'{"n":4}', True)
