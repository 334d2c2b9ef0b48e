"""A node that follows for certain is stored by the statement that finishes the one before it: once, and in its turn."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.dag_runs import held_up, nothing_left, one_success_each, reaches, running_dags, statuses
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.core.errors import TidemillError
from tidemill.dags import Dag, node, ref
from tidemill.dags.errors import DagRunError
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.successors import MOST_AHEAD
from tidemill.store.database import Database

LONGER = MOST_AHEAD + 4
# As the version before stores the job of a node.
STORE_AS_BEFORE = """
INSERT INTO tidemill.job (run_id, work, queue, task, args) VALUES ($1, $2, 'default', 'work', '{}') RETURNING id
"""

calls: list[int] = []


@pytest.fixture
async def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def app(app: App, gate: asyncio.Event) -> App:
    calls.clear()

    @app.task
    async def wait() -> int:
        await gate.wait()
        return 0

    @app.task
    async def work(n: int = 0) -> int:
        calls.append(n)
        return n

    @app.task
    async def long_text(size: int) -> str:
        await gate.wait()
        return "x" * size

    return app


def chain(length: int, **options: Any) -> Dag:
    """`first` waits at the gate; each node has its number as its argument."""
    nodes = [node("first", "wait")]
    for n in range(1, length):
        nodes.append(node(f"n{n}", "work", args={"n": n}, deps=[nodes[-1].name], **options))
    return Dag("chain", nodes)


async def ended_jobs(database: Database, count: int) -> bool:
    return await value(database, "SELECT count(*) = $1 FROM tidemill.job_history", count)


@pytest.mark.parametrize("takes_over", [False, True], ids=["its owner goes on", "another owner takes it over"])
async def test_a_chain_goes_on_while_the_owner_of_its_run_is_held_up_and_each_node_is_done_once(
    app: App, database: Database, gate: asyncio.Event, takes_over: bool
) -> None:
    async with running_dags(app) as on, AsyncExitStack() as stack:
        run = await app.start(chain(LONGER))
        await reaches(run, first="running")
        async with held_up(database, run) as connection:
            gate.set()
            await eventually(lambda: ended_jobs(database, 1 + MOST_AHEAD))
            # An owner of the version before learns of the ends, and stores the jobs that follow.
            for work in range(1, 2 + MOST_AHEAD):
                assert await connection.fetch(STORE_AS_BEFORE, run.id, work) == []
            if takes_over:
                await connection.execute("UPDATE tidemill.run SET owner = NULL, awake = true WHERE id = $1", run.id)
                on.run_worker.stop()
        if takes_over:
            await stack.enter_async_context(running_run_worker(app))
        assert await run.result(timeout=60) == {f"n{LONGER - 1}": LONGER - 1}
        assert len(await one_success_each(database, run)) == LONGER
    assert calls == list(range(1, LONGER))


async def test_what_the_version_before_stores_for_its_own_runs_is_stored(app: App, database: Database) -> None:
    run = await app.start(chain(3))
    stored = await database.fetch(STORE_AS_BEFORE, run.id, 1)
    assert len(stored) == 1
    assert await database.fetch(STORE_AS_BEFORE, run.id, 1) == []


async def test_a_node_that_was_to_follow_is_cancelled_and_never_done(
    app: App, database: Database, gate: asyncio.Event
) -> None:
    async with running_dags(app):
        run = await app.start(chain(6))
        await reaches(run, first="running")
        await run.cancel_node("n3", "not needed")
        await reaches(run, n3="cancelled", n5="cancelled")
        gate.set()
        with pytest.raises(DagRunError, match="n3"):
            await run.result(timeout=60)
        assert calls == [1, 2]
        assert await statuses(run) == {
            **dict.fromkeys(("first", "n1", "n2"), "succeeded"),
            **dict.fromkeys(("n3", "n4", "n5"), "cancelled"),
        }
        await eventually(lambda: nothing_left(database))


async def test_nothing_follows_a_result_that_is_too_large_for_its_run(
    app: App, database: Database, gate: asyncio.Event
) -> None:
    dag = Dag("large", [node("first", "long_text", args={"size": 300_000}), node("next", "work", deps=["first"])])
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, first="running")
        async with held_up(database, run):
            gate.set()
            await eventually(lambda: ended_jobs(database, 1))
        with pytest.raises(DagRunError, match="too_large"):
            await run.result(timeout=60)
    assert calls == []


async def test_what_follows_waits_for_its_queue_and_for_what_was_ready_before(
    app: App, database: Database, gate: asyncio.Event
) -> None:
    dag = Dag(
        "queues",
        [
            node("first", "wait"),
            node("here", "work", args={"n": 1}, deps=["first"]),
            node("there", "work", args={"n": 2}, deps=["here"], queue="there"),
            node("end", "work", args={"n": ref("there")}),
        ],
    )
    async with running_dags(app, "default", max_concurrency=1):
        run = await app.start(dag)
        await reaches(run, first="running")
        before = await app.enqueue("work", n=7)
        gate.set()
        await before.result(timeout=60)
        await reaches(run, here="succeeded", there="running")
        assert calls == [7, 1]
        assert await value(database, "SELECT state FROM tidemill.job WHERE queue = 'there'") == "ready"
        async with running_dags(app, "there"):
            assert await run.result(timeout=60) == {"end": 2}


async def test_runs_and_nodes_that_are_cancelled_at_any_moment_leave_nothing_behind(
    app: App, database: Database, gate: asyncio.Event
) -> None:
    chance = random.Random(3)
    gate.set()

    async def disturbed() -> DagHandle:
        run = await app.start(chain(12))
        await asyncio.sleep(chance.random() * 0.2)  # A moment in the midst of it, and not something to wait for.
        try:
            if chance.random() < 0.5:
                await run.cancel("enough")
            else:
                await run.cancel_node(f"n{chance.randrange(1, 12)}")
        except TidemillError:
            pass  # It has ended already.
        return run

    async with running_dags(app):
        runs = await asyncio.gather(*(disturbed() for _ in range(60)))
        await eventually(lambda: nothing_left(database))
        for run in runs:
            assert await run.state() in ("succeeded", "cancelled")
            succeeded = [name for name, status in (await statuses(run)).items() if status == "succeeded"]
            assert len(await one_success_each(database, run)) >= len(succeeded)
