"""Runs of dags from end to end: what nodes are given, what is left out, maps, sub-dags, runs that are repeated."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.dag_runs import nothing_left, one_success_each, reaches, running_dags, statuses
from tests.support.durable import ticks_of
from tests.support.operate import retry_jobs
from tests.support.server import private_server
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.dags.errors import DagRunError
from tidemill.store.database import Database

calls: list[Any] = []
bad: set[Any] = set()


def declare(app: App) -> App:
    @app.task
    async def give(value: Any = None) -> Any:
        calls.append(value)
        return value

    @app.task
    async def good(n: Any) -> Any:
        """Fails for what is bad at the moment."""
        calls.append(n)
        if n in bad:
            raise ValueError(f"{n} is bad")
        return n

    @app.task
    def total(numbers: list[int | None]) -> int:
        return sum(number for number in numbers if number is not None)

    return app


@pytest.fixture
def app(app: App) -> App:
    calls.clear()
    bad.clear()
    return declare(app)


# -- refs and skips -------------------------------------------------------------------------------


async def test_a_ref_is_read_when_its_node_starts_and_not_before(app: App, database: Database) -> None:
    dag = Dag(
        "d",
        [
            node("rows", "give", args={"value": [{"id": 1, "n": 0}, {"id": 2, "n": 5}]}),
            input_node("limit", prompt="{{$.rows[1].id}}?"),
            node(
                "load",
                "give",
                args={
                    "value": {
                        "limit": {"$from": "limit"},
                        "some": {"$filter": {"in": ref("rows"), "where": {"$ne": [ref("item.n"), 0]}}},
                        "same": {"$eq": [ref("limit"), 7]},
                        "as it is": {"$value": {"$from": "nowhere"}},
                        "day": ref("run.day", default="today"),
                    }
                },
            ),
            node("lost", "give", args={"value": ref("rows[0].missing")}, on_failure="continue"),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, limit="waiting", lost="failed")
        assert "missing" in await run.explain("lost")
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
        assert (await run.inputs())[0]["prompt"] == "2?"
        await run.submit("limit", 7, by="ann")
        with pytest.raises(DagRunError, match="bad_ref"):
            await run.result(timeout=120)
        _, state = await run.load()
    assert state.nodes["load"].result == {
        "limit": 7,
        "some": [{"id": 2, "n": 5}],
        "same": True,
        "as it is": {"$from": "nowhere"},
        "day": "today",
    }


async def test_skips_spread_as_far_as_they_should_and_no_job_is_made_for_them(app: App, database: Database) -> None:
    dag = Dag(
        "d",
        [
            node("first", "give", args={"value": "no"}),
            node("skipped", "give", skip_if={"$eq": [ref("first"), "no"]}),
            node("too", "give", deps=["skipped"]),
            node("also", "give", deps=["too"]),
            node("despite", "give", args={"value": 1}, deps=["too"], skip_with="none"),
            node("mixed", "give", args={"value": 2}, deps=["first", "also"]),
            node("any", "give", deps=["first", "also"], skip_with="any"),
            node("each", "give", map=[1, 2], deps=["also"]),
            sub_dag("sub", Dag("inner", [node("in_sub", "give")]), deps=["also"]),
            input_node("never_asked", prompt="?", deps=["also"]),
            node("cel", "give", skip_if="first == 'no'"),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        assert await run.result(timeout=120) == {"despite": 1, "mixed": 2}
        told = await statuses(run)
        assert {name for name, status in told.items() if status == "succeeded"} == {"first", "despite", "mixed"}
        assert {status for name, status in told.items()} == {"succeeded", "skipped"}
        assert await run.explain("also") == "'also' was skipped: all its dependencies were skipped"
    assert await value(database, "SELECT count(*) FROM tidemill.job_history") == 3


# -- many -----------------------------------------------------------------------------------------


async def test_a_map_over_a_thousand_items_joins_in_order_with_its_failures(app: App, database: Database) -> None:
    bad.update(range(0, 1000, 250))
    dag = Dag(
        "d",
        [
            node("list", "give", args={"value": list(range(1000))}),
            node("each", "good", map=ref("list"), args={"n": ref("item")}, tolerate=4),
            node("sum", "total", args={"numbers": ref("each")}),
        ],
        result={"sum": ref("sum"), "each": ref("each")},
    )
    async with running_dags(app, max_concurrency=50):
        run = await app.start(dag)
        result = await run.result(timeout=120)
        assert result["each"] == [None if n in bad else n for n in range(1000)]
        assert result["sum"] == sum(range(1000)) - sum(bad)
        assert "4 of 1000 items failed, which is tolerated" in await run.explain("each")
        assert [(row.done, row.total) for row in await run.tree() if row.node == "each"] == [(1000, 1000)]
        assert len(await one_success_each(database, run)) == 998
        bad.add(7)
        with pytest.raises(DagRunError, match="5 of 1000 items failed, and at most 4 may fail"):
            await (await app.start(dag)).result(timeout=120)
        await eventually(lambda: nothing_left(database))


async def test_a_map_over_nothing_gives_nothing_and_over_no_list_fails(app: App) -> None:
    dag = Dag("d", [node("a", "give", args={"value": ref("run.x")}), node("b", "give", map=ref("a"))])
    async with running_dags(app):
        assert await (await app.start(dag, x=[])).result(timeout=120) == {"b": []}
        with pytest.raises(DagRunError, match="a map needs a list"):
            await (await app.start(dag, x="abc")).result(timeout=120)
        with pytest.raises(DagRunError, match="10001 items"):
            await (await app.start(dag, x=[0] * 10_001)).result(timeout=120)


async def test_a_hundred_runs_of_twenty_nodes_at_once_complete(app: App, database: Database) -> None:
    nodes = [node("n0", "give", args={"value": ref("run.n")})]
    for number in range(1, 19):
        nodes.append(node(f"n{number}", "give", args={"value": ref(f"n{number // 2 - (number % 2 == 0)}")}))
    nodes.append(node("end", "give", args={"value": ref("n18")}, deps=[f"n{number}" for number in range(19)]))
    dag = Dag("twenty", nodes, result=ref("end"))
    async with app.running(max_concurrency=50):
        runs = await asyncio.gather(*(app.start(dag, n=number) for number in range(100)))
        results = await asyncio.gather(*(run.result(timeout=120) for run in runs))
        assert results == list(range(100))
        await eventually(lambda: nothing_left(database))
    for run in runs:
        assert len(await one_success_each(database, run)) == 20


async def test_the_concurrency_key_of_a_task_holds_for_nodes_too(app: App, database: Database) -> None:
    lock, now, most = threading.Lock(), 0, 0

    @app.task(concurrency_key="of {tenant}", max_concurrency=2)
    def careful(tenant: str, n: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        while most < 2:  # The first ones meet.
            threading.Event().wait(0.01)
        with lock:
            now -= 1
        return n

    dag = Dag("d", [node("each", "careful", map=list(range(12)), args={"tenant": "x", "n": ref("item")})])
    async with running_dags(app, max_concurrency=10):
        assert await (await app.start(dag)).result(timeout=120) == {"each": list(range(12))}
        gone = await app.start(dag)
        await gone.cancel()
        with pytest.raises(DagRunError, match="cancelled"):
            await gone.result(timeout=120)
        await eventually(lambda: nothing_left(database))
    assert most == 2


# -- sub-dags -------------------------------------------------------------------------------------


async def test_a_sub_dag_runs_inside_of_its_run(app: App, database: Database) -> None:
    innermost = Dag("innermost", [node("x", "give", args={"value": ref("run.deep")})], result=ref("x"))
    inner = Dag(
        "inner",
        [
            node("a", "give", args={"value": ref("run.word")}),
            input_node("ask", prompt="{{$.a}}?"),
            sub_dag("deeper", innermost, args={"deep": [ref("ask"), ref("a")]}),
        ],
    )
    dag = Dag(
        "outer",
        [
            node("before", "give", args={"value": "w"}),
            sub_dag("sub", inner, args={"word": ref("before")}),
            node("after", "give", args={"value": ref("sub.deeper")}),
        ],
        result=ref("after"),
    )
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, **{"sub/ask": "waiting"})
        assert [(each["node"], each["prompt"]) for each in await run.inputs()] == [("sub/ask", "w?")]
        assert "waits for its own nodes" in await run.explain("sub")
        await run.submit("sub/ask", "yes", by="ann")
        assert await run.result(timeout=120) == ["yes", "w"]
        assert set((await statuses(run)).values()) == {"succeeded"}


# -- repeating ------------------------------------------------------------------------------------


async def test_a_repeated_run_does_only_what_did_not_succeed(app: App, database: Database) -> None:
    bad.update({2, "b"})
    dag = Dag(
        "d",
        [
            node("a", "good", args={"n": "a"}),
            node("b", "good", args={"n": "b"}, deps=["a"], on_failure="continue"),
            node("c", "good", args={"n": ref("b")}),
            node("each", "good", map=[1, 2, 3], args={"n": ref("item")}, deps=["a"], on_failure="continue"),
            node("apart", "give", args={"value": ref("run.word")}),
        ],
        result=[ref("c"), ref("each"), ref("apart")],
    )
    run = await app.start(dag, word="w")
    with pytest.raises(ConfigError, match="has not ended yet"):
        await run.rerun()
    async with running_dags(app):
        with pytest.raises(DagRunError, match="is bad"):
            await run.result(timeout=120)
        before = await ticks_of(database, run.id)
        bad.clear()
        calls.clear()
        again = await run.rerun(by="ann")
        assert await again.result(timeout=120) == ["b", [1, 2, 3], "w"]
        assert "a" not in calls
        assert "w" not in calls
        assert 2 in calls
        assert calls.count("b") == 2, "itself and what follows it"
        assert "carried over" in await again.explain("a")
        assert await ticks_of(database, run.id) == before, "the old run stays as it was"
        with pytest.raises(ConfigError, match="nothing to rerun"):
            await again.rerun()
        third = await again.rerun(start="c", edited={"n": "edited"})
        calls.clear()
        assert await third.result(timeout=120) == ["edited", [1, 2, 3], "w"]
        assert calls == ["edited"]
        with pytest.raises(ConfigError, match="there is no node 'zzz'"):
            await third.rerun(start="zzz")
        with pytest.raises(ConfigError, match="name the node"):
            await third.rerun(edited={"n": 1})
    origin = await value(database, "SELECT origin FROM tidemill.run WHERE id = $1", again.id)
    assert b'"ann"' in origin


async def test_a_run_is_repeated_with_another_answer(app: App, database: Database) -> None:
    ask = input_node("ask", prompt="?", schema={"type": "integer"})
    dag = Dag("d", [ask, node("n", "give", args={"value": ref("ask")})])
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, ask="waiting")
        await run.submit("ask", 1, by="ann")
        assert await run.result(timeout=120) == {"n": 1}
        with pytest.raises(ConfigError, match="the answer does not fit"):
            await run.rerun(start="ask", edited="x")
        again = await run.rerun(start="ask", edited=2)
        assert await again.result(timeout=120) == {"n": 2}
        asked = await run.rerun(start="ask")
        await reaches(asked, ask="waiting")
        await asked.submit("ask", 3, by="bob")
        assert await asked.result(timeout=120) == {"n": 3}


# -- what has ended stays ---------------------------------------------------------------------------


async def test_a_result_that_counted_is_never_overwritten(app: App, database: Database) -> None:
    dag = Dag(
        "d",
        [
            node("a", "give", args={"value": 1}),
            input_node("ask", prompt="?"),
            node("b", "give", args={"value": ref("a")}, deps=["a", "ask"]),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        await reaches(run, a="succeeded", ask="waiting")
        job = await value(database, "SELECT id FROM tidemill.job_history WHERE run_id = $1", run.id)
        await retry_jobs(database, [job], by="ann")
        await eventually(lambda: calls == [1, 1])
        late = b'{"job": 999, "attempt": 1, "state": "succeeded", "result": 2, "note": null, "error": null}'
        failed = b'{"job": 999, "attempt": 1, "state": "failed", "error": {"kind": "E", "message": "late"}}'
        for data in (late, failed):
            await database.fetch("INSERT INTO tidemill.inbox (run_id, work, data) VALUES ($1, 1, $2)", run.id, data)
        await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.inbox"))
        _, state = await run.load()
        assert (state.nodes["a"].status, state.nodes["a"].result, state.nodes["a"].job) == ("succeeded", 1, job)
        await run.submit("ask", 1, by="ann")
        assert await run.result(timeout=120) == {"b": 1}


# -- the world around -------------------------------------------------------------------------------


async def test_runs_survive_a_restart_of_the_database(tmp_path: Path) -> None:
    calls.clear()
    with private_server() as server:
        app = declare(App("test", database_url=server.dsn, **PATIENT))
        dag = Dag(
            "d",
            [
                input_node("ask", prompt="?"),
                node("list", "give", args={"value": list(range(60))}),
                node("each", "give", map=ref("list"), args={"value": ref("item")}, max_concurrency=3),
                node("end", "give", args={"value": ref("ask")}, deps=["each", "ask"]),
            ],
            result=[ref("each"), ref("end")],
        )
        async with app.running(max_concurrency=4):
            runs = [await app.start(dag, unique_key=str(number)) for number in range(4)]
            await eventually(lambda: len(calls) > 20)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.ensure)
            for number, run in enumerate(runs):
                await reaches(run, ask="waiting")
                await run.submit("ask", number, by="ann")
            for number, run in enumerate(runs):
                assert await run.result(timeout=120) == [list(range(60)), number]
        await app.close()


async def test_a_round_trip_with_nothing_but_the_package_and_postgresql(tmp_path: Path) -> None:
    """A program in a folder of its own, with the embedded server: it imports nothing of the tests."""
    program = tmp_path / "nightly.py"
    program.write_text(
        textwrap.dedent("""
        import asyncio, sys
        from tidemill import App
        from tidemill.dags import Dag, input_node, node, ref

        app = App("nightly")

        @app.task(name="etl.extract", queue="fetch")
        async def extract(day: str) -> dict:
            return {"rows": 5, "day": day}

        @app.task(name="etl.load")
        def load(rows: int) -> dict:
            return {"loaded": rows}

        nightly = app.dag(Dag("nightly", nodes=[
            node("extract", "etl.extract", args={"day": ref("$.run.day")}),
            input_node("approve", prompt="Load {{$.extract.rows}} rows?", deps=["extract"]),
            node("load", "etl.load", deps=["approve"], args={"rows": {"$from": "extract.rows"}}),
        ]))

        async def main():
            async with app.running():
                run = await app.start("nightly", day="mon")
                while not (asked := await run.inputs()):
                    await asyncio.sleep(0.02)
                assert asked[0]["prompt"] == "Load 5 rows?", asked
                await run.submit("approve", "yes", by="ann")
                print("RESULT", await run.result(timeout=120), len(await run.tree()))

        asyncio.run(main())
        print("HOST", [name for name in sys.modules if name.startswith(("tests", "pytest"))])
        """)
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("TIDEMILL", "PYTEST"))}
    root = str(Path(__file__).resolve().parents[3])
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "RESULT {'load': {'loaded': 5}} 3" in done.stdout
    assert "HOST []" in done.stdout
