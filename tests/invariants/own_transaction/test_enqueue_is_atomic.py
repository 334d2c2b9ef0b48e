"""A job that is enqueued on the caller's own transaction exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.support import eventually, value
from tests.support.callers import CALLERS, Caller, asyncpg_plain
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
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
        with pytest.raises(ConfigError, match="takes an asyncpg, psycopg, SQLAlchemy or Django connection"):
            await app.enqueue(task, conn=object())
