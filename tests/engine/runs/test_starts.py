"""Runs that a process starts at the same time are stored together, each once."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.support import value
from tests.support.durable import running_run_worker
from tests.support.waiting import eventually
from tidemill import App
from tidemill.dags import Dag, node, ref
from tidemill.store.database import Database
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.starts import MOST_AT_ONCE, START_TOGETHER, start_together


@pytest.fixture
def dag(app: App) -> Dag:
    @app.task
    async def work(n: int = 0) -> int:
        return n

    return Dag("one", [node("only", "work", args={"n": ref("run.n")})])


async def test_starts_at_the_same_time_are_one_transaction_and_each_has_its_own_run(
    app: App, database: Database, dag: Dag
) -> None:
    runs = await asyncio.gather(*(app.start(dag, n=n) for n in range(50)))
    assert len({run.id for run in runs}) == 50
    assert await value(database, "SELECT count(DISTINCT xmin::text) FROM tidemill.run") == 1
    given = await database.fetch("SELECT (input -> 'args' ->> 'n')::int AS n FROM tidemill.run ORDER BY id")
    assert [row["n"] for row in given] == list(range(50))
    assert sorted(run.id for run in runs) == [run.id for run in runs]


async def test_more_starts_than_one_statement_takes_are_all_stored(app: App, database: Database, dag: Dag) -> None:
    runs = await asyncio.gather(*(app.start(dag, n=0) for _ in range(MOST_AT_ONCE + 3)))
    assert await value(database, "SELECT count(*) FROM tidemill.run") == len({run.id for run in runs})


async def test_a_start_that_is_refused_does_not_stop_the_others(app: App, database: Database, dag: Dag) -> None:
    async def wrong() -> None:
        with pytest.raises(asyncpg.DataError):
            await start_together(database, NewRun("x", "x", "x", b"{not json"))

    first, _, last = await asyncio.gather(app.start(dag, n=1), wrong(), app.start(dag, n=2))
    await asyncio.gather(*(start_together(database, NewRun("x", "x", "x", b"{}")) for _ in range(2)), wrong())
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 4
    assert first.id != last.id


async def test_a_statement_that_is_repeated_after_a_lost_response_stores_nothing_again(database: Database) -> None:
    given = ["~a", "~b"], ["k", "k"], ["w", "w"], ["v", "v"], [b"{}", b"{}"], [None, None]
    first = await database.fetch(START_TOGETHER, *given)
    again = await database.fetch(START_TOGETHER, *given)
    assert {row["key"]: row["id"] for row in first} == {row["key"]: row["id"] for row in again}
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 2


async def test_what_was_sent_to_a_run_before_it_began_comes_with_its_start(app: App, database: Database) -> None:
    """A claim says whether a new run has mail: the cancelled one stores no job, the other begins at once."""
    app.task(name="noop")(lambda: None)
    line = Dag("line", [node("only", "noop")])
    cancelled, other = await app.start(line), await app.start(line)
    await cancelled.cancel("not wanted")
    async with running_run_worker(app):
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.job WHERE run_id = $1", other.id))
        await eventually(
            lambda: value(database, "SELECT state = 'cancelled' FROM tidemill.run WHERE id = $1", cancelled.id)
        )
    (given,) = await database.fetch("SELECT min(run_id), max(run_id), max(id) FROM tidemill.job")
    assert list(given) == [other.id, other.id, 1]
