"""A question to a person: one answer counts, at any time and with any driver of the run; waiting costs nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import msgspec
import pytest

from tests.support import eventually, lapse, run_worker_process, running_maintenance, value
from tests.support.dag_runs import (
    DAG_RUNS,
    is_asleep,
    nothing_left,
    one_success_each,
    reaches,
    running_dags,
    running_worker_of,
    statuses,
)
from tests.support.durable import running_run_worker, ticks_of
from tests.support.operate import list_audit
from tidemill import App
from tidemill.core.errors import NotFoundError, TidemillError
from tidemill.dags import Dag, input_node, node, ref
from tidemill.dags.errors import DagRunError, InputRefusedError
from tidemill.dags.runner.runner import DagRun
from tidemill.store.database import Database

ANSWER = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
YES, NO = {"answer": "yes"}, {"answer": "no"}

ask = Dag(
    "ask",
    [
        node("rows", "give", args={"value": ref("run.rows")}),
        input_node("approve", prompt="Load {{$.rows}} rows?", schema=ANSWER),
        node("load", "give", args={"value": ref("approve.answer")}, skip_if={"$eq": [ref("approve.answer"), "no"]}),
    ],
    result=[ref("approve.answer"), ref("load", default="left out")],
)
#: The answer is the end of the run.
last = Dag("last", [input_node("approve", prompt="Well?", schema=ANSWER)])


@pytest.fixture
def app(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """A caller that answers waits until the run has taken the answer, however slow the machine is."""
    monkeypatch.setattr("tidemill.dags.runner.dag_handle._VERDICT_WITHIN", 60.0)

    @app.task
    async def give(value: Any = None) -> Any:
        return value

    return app


# -- one answer -----------------------------------------------------------------------------------


async def test_an_answer_is_checked_counts_once_and_is_on_record(app: App, database: Database) -> None:
    async with running_dags(app):
        run = await app.start(ask, rows=5)
        await reaches(run, approve="waiting")
        (asked,) = await run.inputs()
        assert (asked["run_id"], asked["node"], asked["prompt"]) == (run.id, "approve", "Load 5 rows?")
        assert msgspec.json.decode(asked["schema"]) == ANSWER
        assert "waits for an answer: Load 5 rows?" in await run.explain("approve")
        for bad, why in (({"answer": "perhaps"}, "does not fit"), ({}, "does not fit"), (object(), "JSON")):
            with pytest.raises(TidemillError, match=why):
                await run.submit("approve", bad, by="eve")
        with pytest.raises(InputRefusedError, match="there is no node 'aprove'"):
            await run.submit("aprove", YES, by="eve")
        with pytest.raises(InputRefusedError, match="is not an input node"):
            await run.submit("load", YES, by="eve")
        assert (await statuses(run))["approve"] == "waiting", "a wrong answer takes nothing away"
        before = time.time()
        assert await run.submit("approve", YES, by="ann", key="k1")
        assert await run.result(timeout=120) == ["yes", "yes"]
        await run.submit("approve", YES, by="ann", key="k1")
        with pytest.raises(InputRefusedError, match="was used before with another answer"):
            await run.submit("approve", NO, by="ann", key="k1")
        with pytest.raises(InputRefusedError, match="answered already by ann"):
            await run.submit("approve", YES, by="bob")
        assert await run.inputs() == []
        assert "answered by ann" in await run.explain("approve")
    (entry,) = await list_audit(database)
    assert (entry["who"], entry["action"], entry["target"]) == ("ann", "run.submit", f"r{run.id} approve")
    assert msgspec.json.decode(entry["after"]) == {"value": YES, "key": "k1"}
    assert before - 1 < entry["at"].timestamp() < time.time() + 1
    (taken,) = [tick for tick in await ticks_of(database, run.id) if tick["type"] == "received"]
    assert (taken["event"]["by"], taken["event"]["value"]) == ("ann", YES)


async def test_no_skips_what_depends_on_yes(app: App, database: Database) -> None:
    async with running_dags(app):
        run = await app.start(ask, rows=0)
        await reaches(run, approve="waiting")
        await run.submit("approve", NO, by="ann")
        assert await run.result(timeout=120) == ["no", "left out"]
        assert await statuses(run) == {"rows": "succeeded", "approve": "succeeded", "load": "skipped"}
        assert "its skip_if is true" in await run.explain("load")


@pytest.mark.parametrize("dag", [ask, last], ids=["more to come", "the last node"])
async def test_of_answers_at_the_same_time_one_counts_and_the_others_are_told(
    app: App, database: Database, dag: Dag
) -> None:
    async with running_dags(app):
        for _ in range(3):
            run = await (app.start(dag, rows=1) if dag is ask else app.start(dag))
            await reaches(run, approve="waiting")
            people = {f"p{number}": YES if number % 2 else NO for number in range(8)}
            told = await asyncio.gather(
                *(run.submit("approve", value, by=who) for who, value in people.items()), return_exceptions=True
            )
            await run.result(timeout=120)
            _, state = await run.load()
            answered = state.nodes["approve"].answered
            assert answered is not None
            assert state.nodes["approve"].result == people[answered.by]
            counted = [who for who, verdict in zip(people, told, strict=True) if verdict is True]
            assert counted == [answered.by], "those whose answer does not count must not think that it does"
            refused = [verdict for verdict in told if verdict is not True]
            assert all(isinstance(each, InputRefusedError) for each in refused), refused


async def test_one_key_with_two_answers_at_the_same_time_is_one_answer(app: App, database: Database) -> None:
    async with running_run_worker(app), running_worker_of(app):
        run = await app.start(ask, rows=1)
        await reaches(run, approve="waiting")
        told = await asyncio.gather(
            *(run.submit("approve", value, by="ann", key="k") for value in (YES, YES, NO, NO)), return_exceptions=True
        )
        result = await run.result(timeout=120)
    winner = YES if result[0] == "yes" else NO
    for value_given, verdict in zip((YES, YES, NO, NO), told, strict=True):
        assert (verdict is True) == (value_given == winner), (winner, told)


# -- whichever process drives the run -------------------------------------------------------------


async def test_an_answer_that_comes_while_no_run_worker_lives_is_taken_by_the_next(
    app: App, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.dags.runner.dag_handle._VERDICT_WITHIN", 0.5)
    async with running_maintenance(app), running_worker_of(app):
        async with run_worker_process(database_url, app=DAG_RUNS) as run_worker:
            runs = [await app.start(ask, rows=number) for number in range(3)]
            for run in runs:
                await reaches(run, approve="waiting")
            run_worker.kill()
            await lapse(database, run_worker.pid)
        taken = await asyncio.gather(*(run.submit("approve", YES, by="ann", key=str(run.id)) for run in runs))
        assert taken == [False] * len(runs)
        again = asyncio.create_task(runs[0].submit("approve", YES, by="ann", key=str(runs[0].id)))
        await eventually(lambda: value(database, "SELECT count(*) = 4 FROM tidemill.inbox"))
        assert (await statuses(runs[0]))["approve"] == "waiting"
        async with run_worker_process(database_url, app=DAG_RUNS):
            for run in runs:
                assert await run.result(timeout=120) == ["yes", "yes"]
                await one_success_each(database, run)
            await again
            assert await runs[0].submit("approve", YES, by="ann", key=str(runs[0].id)), "it has counted"
    kinds = [tick["type"] for tick in await ticks_of(database, runs[1].id)]
    assert kinds.count("received") == 1


async def test_an_answer_to_a_run_that_is_cancelled_meanwhile_is_refused(app: App, database: Database) -> None:
    """Nobody drives the run: both wait in its inbox, the cancelling first."""
    async with running_run_worker(app), running_worker_of(app):
        run = await app.start(ask, rows=1)
        await reaches(run, approve="waiting")
        await eventually(lambda: is_asleep(database, run))
    await run.cancel("enough")
    submitting = asyncio.create_task(run.submit("approve", YES, by="ann"))
    await eventually(lambda: value(database, "SELECT count(*) = 2 FROM tidemill.inbox"))
    async with running_run_worker(app):
        with pytest.raises(InputRefusedError, match="cancelled"):
            await submitting
        with pytest.raises(DagRunError, match="enough"):
            await run.result(timeout=120)
        with pytest.raises(InputRefusedError, match="cancelled"):
            await run.submit("approve", YES, by="bob")
        with pytest.raises(NotFoundError, match="has ended"):
            await run.cancel("again")
    assert await nothing_left(database)


# -- waiting costs nothing --------------------------------------------------------------------------


async def test_a_run_that_asks_has_no_owner_no_job_and_no_memory_and_is_woken_by_the_answer(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_dags(app) as living:
        runs = [await app.start(ask, rows=number) for number in range(3)]
        for run in runs:
            await reaches(run, approve="waiting")
            await eventually(lambda run=run: is_asleep(database, run))
        await eventually(lambda: living.run_worker.work.runs == {})
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
        assert await eventually(nothing_of_it_left)
        monkeypatch.setattr(
            "tidemill.engine.runs.run_worker.SAFETY_POLL", 600.0
        )  # Nobody looks whether there is an answer.
        other = await app.start(last)  # From its next turn on, which this makes it take.
        await reaches(other, approve="waiting")
        for run in runs:
            await run.submit("approve", YES, by="ann")
            assert await run.result(timeout=120) == ["yes", "yes"]


def nothing_of_it_left() -> bool:
    gc.collect()
    return not any(isinstance(each, DagRun) for each in gc.get_objects())


async def test_several_questions_wait_at_once_and_are_answered_in_any_order(app: App, database: Database) -> None:
    names = ["a", "b", "c", "d"]
    dag = Dag(
        "many",
        [
            *(input_node(name, prompt=f"{name}?") for name in names),
            node("sum", "give", args={"value": [ref(name) for name in names]}),
        ],
        result=ref("sum"),
    )
    async with running_dags(app):
        runs = [await app.start(dag) for _ in range(2)]
        for run in runs:
            await reaches(run, **dict.fromkeys(names, "waiting"))
            assert [each["node"] for each in await run.inputs()] == names
        for number, name in enumerate(["c", "a", "d", "b"]):
            if number % 2:
                await eventually(lambda: is_asleep(database, runs[0]))
            await runs[0].submit(name, number, by="ann")
            assert name not in [each["node"] for each in await runs[0].inputs()]
        assert await runs[0].result(timeout=120) == [1, 3, 0, 2]
        assert [each["node"] for each in await runs[1].inputs()] == names, "another run's questions stay"
        await asyncio.gather(*(runs[1].submit(name, name, by="bob") for name in names))
        assert await runs[1].result(timeout=120) == names
        await eventually(lambda: nothing_left(database))


# -- nobody answers -------------------------------------------------------------------------------


async def test_after_its_time_the_default_counts_or_the_node_fails(app: App, database: Database) -> None:
    def dag(**more: Any) -> Dag:
        return Dag("d", [input_node("a", prompt="?", **more), node("b", "give", args={"value": ref("a")})])

    async with running_dags(app):
        began = time.monotonic()
        defaulted = await app.start(dag(timeout=0.6, default={"x": 1}))
        failed = await app.start(dag(timeout=0.6))
        answered = await app.start(dag(timeout="1h", default="late"))
        await reaches(answered, a="waiting")
        assert "until" in await answered.explain("a")
        await answered.submit("a", "in time", by="ann")
        assert await defaulted.result(timeout=120) == {"b": {"x": 1}}
        assert time.monotonic() - began >= 0.6
        with pytest.raises(DagRunError, match="input_timeout: the input timed out, and there is no default"):
            await failed.result(timeout=120)
        assert await answered.result(timeout=120) == {"b": "in time"}
        with pytest.raises(InputRefusedError, match="the input timed out: the default is used"):
            await defaulted.submit("a", 2, by="ann")
        with pytest.raises(InputRefusedError, match="is no longer waiting for an answer"):
            await failed.submit("a", 2, by="ann")
        assert "the default is used" in await defaulted.explain("a")
        await eventually(lambda: nothing_left(database))


async def test_the_time_of_a_question_runs_on_while_no_run_worker_lives(app: App, database: Database) -> None:
    dag = Dag("d", [input_node("a", prompt="?", timeout="1h", default=1), input_node("b", prompt="?", timeout="2h")])
    async with running_run_worker(app):
        run = await app.start(dag)
        await reaches(run, a="waiting", b="waiting")
    await database.fetch("UPDATE tidemill.inbox SET due_at = now() WHERE timer = 'input:a'")  # An hour has passed.
    async with running_run_worker(app):
        await reaches(run, a="succeeded", b="waiting")
        await run.submit("b", 2, by="ann")
        assert await run.result(timeout=120) == {"a": 1, "b": 2}
    assert await nothing_left(database), "the timer of the answered question is gone too"


async def test_an_answer_that_is_as_large_as_a_film_is_refused(app: App, database: Database) -> None:
    async with running_run_worker(app):
        run = await app.start(Dag("d", [input_node("a", prompt="?")]))
        await reaches(run, a="waiting")
        with pytest.raises(InputRefusedError, match="the answer has 300,002 bytes"):
            await run.submit("a", "x" * 300_000, by="ann")
        await run.submit("a", None, by="ann")
        assert await run.result(timeout=120) == {"a": None}
