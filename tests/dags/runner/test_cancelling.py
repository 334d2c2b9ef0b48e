"""Cancelling a run reaches its nodes wherever they are: queued, running, deaf, asking, waiting for a retry."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, value, worker_process
from tests.support.dag_runs import (
    DAG_RUNS,
    is_asleep,
    nothing_left,
    reaches,
    running_dags,
    running_worker_of,
    statuses,
)
from tests.support.durable import running_run_worker
from tests.support.roles import running_maintenance
from tidemill import App, current_job
from tidemill.core.errors import ConflictError, NotFoundError
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.errors import DagRunError
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.store.database import Database

EXIT_UNCANCELLED = 77


@pytest.fixture
def app(app: App) -> App:
    seen.clear()
    let_go.clear()

    @app.task
    async def give(value: Any = None) -> Any:
        return value

    @app.task
    async def endless() -> None:
        """Ends when it is cancelled, and cleans up."""
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    @app.task
    def polite() -> None:
        """A thread that asks."""
        seen.append("polite began")
        while not let_go.wait(0.01):
            current_job().check_cancelled()

    @app.task
    def deaf() -> str:
        """A thread that does not."""
        seen.append("deaf began")
        assert let_go.wait(20)
        return "done anyway"

    @app.task(retry=app.retry(3, backoff="1h"))
    async def fail() -> None:
        raise ValueError("not now")

    return app


seen: list[str] = []
let_go = threading.Event()


async def is_cancelled(run: DagHandle) -> None:
    with pytest.raises(DagRunError, match="cancelled: enough"):
        await run.result(timeout=120)
    assert await run.state() == "cancelled"


async def test_a_run_is_cancelled_with_a_node_in_every_state(app: App, database: Database) -> None:
    inner = Dag("inner", [node("in_sub", "endless"), node("after_in_sub", "give", deps=["in_sub"])])
    dag = Dag(
        "d",
        [
            node("done", "give"),
            node("queued", "give", queue="unserved"),
            node("running", "endless"),
            node("thread", "polite"),
            node("retrying", "fail"),
            node("mapped", "endless", map=[1, 2, 3], max_concurrency=2),
            input_node("asking", prompt="?", timeout="1h", default=1),
            node("later", "give", deps=["running"]),
            sub_dag("sub", inner),
        ],
    )
    async with running_dags(app, "default"):
        run = await app.start(dag)
        await reaches(run, done="succeeded", asking="waiting")
        await eventually(lambda: value(database, "SELECT count(*) = 1 FROM tidemill.job WHERE failures = 1"))
        await eventually(lambda: value(database, "SELECT count(*) = 5 FROM tidemill.job WHERE state = 'running'"))
        await run.cancel("enough")
        await is_cancelled(run)
        told = await statuses(run)
        assert told.pop("done") == "succeeded"
        assert set(told.values()) == {"cancelled"}
        assert "the run was cancelled: enough" in await run.explain("later")
        await eventually(lambda: nothing_left(database))
        await eventually(lambda: seen.count("cleaned up") == 4)
    rows = await database.fetch("SELECT state, count(*) FROM tidemill.job_history GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in rows] == [("cancelled", 7), ("succeeded", 1)]


async def test_a_node_is_cancelled_with_what_follows_from_it_and_the_others_go_on(app: App, database: Database) -> None:
    inner = Dag("inner", [node("first", "give"), node("last", "give", deps=["first"])])
    dag = Dag(
        "d",
        [
            node("slow", "endless"),
            node("after", "give", deps=["slow"]),
            sub_dag("sub", inner, deps=["after"]),
            node("end", "give", deps=["sub", "other"]),
            node("mapped", "endless", map=[1, 2, 3], max_concurrency=2),
            input_node("asking", prompt="?", timeout="1h"),
            node("other", "give", args={"value": "fine"}),
            node("more", "give", deps=["other", "gate"]),
            input_node("gate", prompt="!"),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, slow="running", mapped="running", asking="waiting", gate="waiting", other="succeeded")
        names = await run.cancel_node("slow", "not needed", by="ann")
        assert names == ["slow", "after", "sub/first", "sub/last", "sub", "end"]
        await reaches(run, **dict.fromkeys(names, "cancelled"))
        assert await run.explain("slow") == "'slow' was cancelled by ann: not needed"
        assert await run.explain("end") == (
            "'end' was cancelled: it follows from 'slow', which was cancelled by ann: not needed"
        )
        with pytest.raises(ConflictError, match="node 'slow' of run r1 has ended already: cancelled"):
            await run.cancel_node("slow")
        with pytest.raises(NotFoundError, match="there is no node 'sub/run'"):
            await run.cancel_node("sub/run")
        await run.cancel_node("mapped")
        await run.cancel_node("asking", by="bob")
        told = await reaches(run, mapped="cancelled", asking="cancelled", gate="waiting")
        assert told["more"] == "pending"
        assert [asked["node"] for asked in await run.inputs()] == ["gate"]
        await run.submit("gate", 1, by="ann")
        with pytest.raises(DagRunError, match="cancelled: node 'slow' was cancelled by ann: not needed; node 'mapped'"):
            await run.result(timeout=120)
        assert (await statuses(run))["more"] == "succeeded"
        await eventually(lambda: nothing_left(database))
        await eventually(lambda: seen.count("cleaned up") == 3)
        audited = await value(database, "SELECT after FROM tidemill.audit WHERE action = 'run.cancel_node' LIMIT 1")
        assert b"not needed" in audited


async def test_a_sub_dag_is_cancelled_with_its_nodes_and_the_run_can_be_repeated(app: App) -> None:
    inner = Dag("inner", [node("first", "endless"), node("last", "give", deps=["first"])])
    dag = Dag("d", [sub_dag("sub", inner), node("end", "give", deps=["sub"]), node("other", "give")])
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, other="succeeded", **{"sub/first": "running"})
        assert await run.cancel_node("sub") == ["sub/first", "sub/last", "sub", "end"]
        with pytest.raises(DagRunError, match="node 'sub' was cancelled"):
            await run.result(timeout=120)
        assert await run.state() == "cancelled"
        again = await run.rerun()
        await reaches(again, other="succeeded", **{"sub/first": "running"})
        await again.cancel("enough")
        await is_cancelled(again)


async def test_a_thread_that_does_not_ask_ends_without_effect(app: App, database: Database) -> None:
    dag = Dag("d", [node("a", "deaf"), node("b", "give", args={"value": ref("a")})])
    async with running_dags(app):
        run = await app.start(dag)
        await eventually(lambda: "deaf began" in seen)
        await run.cancel("enough")
        await is_cancelled(run)
        let_go.set()
        await eventually(lambda: nothing_left(database))
        assert await statuses(run) == {"a": "cancelled", "b": "cancelled"}
    assert await value(database, "SELECT count(*) FROM tidemill.job_history") == 1, "what depends on it never was"


async def test_a_node_that_will_not_end_is_killed_at_the_grace_limit_and_its_neighbours_go_back(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    """Its worker ends itself, as it does for a budget; what else it had in hand runs again elsewhere."""
    deaf = Dag("d", [node("a", "stubborn", args={"path": str(tmp_path / "deaf")}, queue="threads")])
    other = Dag("o", [node("a", "stubborn", args={"path": str(tmp_path / "other")}, queue="threads")])
    serving = {"app": DAG_RUNS, "grace_seconds": 0.5}
    async with running_maintenance(app), running_run_worker(app):
        async with worker_process(database_url, ["threads"], **serving) as worker:
            run, neighbour = await app.start(deaf), await app.start(other)
            await eventually(lambda: (tmp_path / "deaf.began").exists() and (tmp_path / "other.began").exists())
            await run.cancel("enough")
            await is_cancelled(run)
            assert await worker.ends() == EXIT_UNCANCELLED
        row = await database.fetchrow("SELECT state, note FROM tidemill.job_history WHERE run_id = $1", run.id)
        assert row is not None
        assert tuple(row) == ("cancelled", "its run no longer needs it")
        (tmp_path / "other").touch()
        async with worker_process(database_url, ["threads"], **serving):
            assert await neighbour.result(timeout=120) == {"a": "done anyway"}
        await eventually(lambda: nothing_left(database))
    losses = await value(database, "SELECT losses + failures FROM tidemill.job_history WHERE run_id = $1", neighbour.id)
    assert losses == 0, "it is not the neighbour's fault"


async def test_a_run_that_sleeps_is_cancelled_when_a_run_worker_comes(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Dag("d", [input_node("a", prompt="?")]))
        await eventually(lambda: is_asleep(database, run))
    await run.cancel("enough")
    async with running_run_worker(app):
        await is_cancelled(run)
    assert await nothing_left(database)


async def test_the_failure_of_a_map_or_sub_dag_stops_what_it_had_under_way_and_no_more(
    app: App, database: Database
) -> None:
    inner = Dag("inner", [node("slow", "endless"), node("bad", "give", args={"valu": 1})])
    dag = Dag(
        "d",
        [
            node("items", "give", args={"value": [1, 2, 3, 4]}),
            # The second item fails before it begins: the first and the others are wanted no longer.
            node("each", "give_number", map=ref("items"), args={"n": ref("item")}, on_failure="continue"),
            sub_dag("sub", inner, on_failure="continue"),
            node("fine", "give", args={"value": "fine"}),
        ],
    )

    @app.task
    async def give_number(n: int) -> int:
        if n == 2:
            raise ValueError("no twos")
        await asyncio.Event().wait()
        return n

    async with running_dags(app):
        run = await app.start(dag)
        with pytest.raises(DagRunError, match="no twos"):
            await run.result(timeout=120)
        told = await statuses(run)
        assert (told["each"], told["sub"], told["fine"]) == ("failed", "failed", "succeeded")
        assert (told["sub/slow"], told["sub/bad"]) == ("cancelled", "failed")
        await eventually(lambda: nothing_left(database))


async def test_work_and_questions_that_are_begun_and_dropped_in_one_turn_are_never_there(
    app: App, database: Database
) -> None:
    """The ends of two items come together: the first starts what follows it, the second ends it all."""
    inner = Dag(
        "inner",
        [
            node("good", "when_open", args={"n": 1}),
            input_node("asked", prompt="?", deps=["good"]),
            node("bad", "when_open", args={"n": 2}),
        ],
    )
    dag = Dag(
        "d",
        [
            node("each", "when_open", map=[1, 2, 3], args={"n": ref("item")}, max_concurrency=2, on_failure="continue"),
            sub_dag("sub", inner, on_failure="continue"),
            input_node("more", prompt="?"),
        ],
    )

    @app.task
    async def when_open(n: int) -> int:
        ran.append(n)
        await gates[n].wait()
        if n == 2:
            raise ValueError("no twos")
        return n

    ran: list[int] = []
    gates = {n: asyncio.Event() for n in (1, 2, 3)}
    async with running_maintenance(app), running_worker_of(app):
        async with running_run_worker(app):
            run = await app.start(dag)
            await eventually(lambda: sorted(ran) == [1, 1, 2, 2])
        for n, ended in ((1, 2), (2, 4)):
            gates[n].set()
            count = "SELECT count(*) = $1 FROM tidemill.job_history"
            await eventually(lambda count=count, ended=ended: value(database, count, ended))
        async with running_run_worker(app):
            told = await reaches(run, each="failed", sub="failed", more="waiting")
            assert (told["sub/asked"], told["sub/good"]) == ("cancelled", "succeeded")
            assert [asked["node"] for asked in await run.inputs()] == ["more"]
            assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
            await run.submit("more", 1, by="ann")
            with pytest.raises(DagRunError, match="no twos"):
                await run.result(timeout=120)
            await eventually(lambda: nothing_left(database))
    assert 3 not in ran


async def test_a_parked_run_is_cancelled_with_its_jobs_though_no_run_worker_lives_and_can_be_repeated(
    app: App, database: Database
) -> None:
    dag = Dag("d", [node("a", "give", args={"value": 1}), node("b", "give", queue="unserved", deps=["a"])])
    async with running_maintenance(app):
        async with running_run_worker(app), running_worker_of(app, "default"):
            run = await app.start(dag)
            await reaches(run, b="running")
        stored = await value(database, "SELECT input FROM tidemill.run WHERE id = $1", run.id)
        await set_input(database, run, b'{"dag": {}}')
        async with running_run_worker(app):
            await eventually(lambda: is_parked(run))
        with pytest.raises(DagRunError, match=rf"run r{run.id} needs attention: "):
            await run.result(timeout=120)
        await set_input(database, run, stored)
        await run.cancel("enough")
        await is_cancelled(run)
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.job"))
        assert await statuses(run) == {"a": "succeeded", "b": "cancelled"}
        again = await run.rerun()
        async with running_run_worker(app), running_worker_of(app, "default", "unserved"):
            assert await again.result(timeout=120) == {"b": None}
    assert await value(database, "SELECT count(*) FROM tidemill.job_history WHERE state = 'succeeded'") == 2


async def set_input(database: Database, run: DagHandle, data: bytes) -> None:
    await database.fetch("UPDATE tidemill.run SET input = $2, awake = true WHERE id = $1", run.id, data)


async def is_parked(run: DagHandle) -> bool:
    return await run.state() == "needs_attention"
