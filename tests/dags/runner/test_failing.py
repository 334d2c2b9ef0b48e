"""Nodes that fail, in every way: the run says why, nothing hangs, nothing else is touched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import eventually, find_worker, lapse, value, worker_process
from tests.support.dag_runs import DAG_RUNS, nothing_left, running_dags, running_worker_of, statuses
from tests.support.durable import deeds, make_tables, open_gates, running_run_worker
from tests.support.processes import start_worker
from tests.support.roles import running_maintenance
from tests.support.waiting import PATIENT
from tidemill import App, current_job
from tidemill.core.errors import PayloadError
from tidemill.dags import Dag, node, ref
from tidemill.dags.errors import DagRunError
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.engine.containment.exit_status import EXIT_FENCED
from tidemill.store.database import Database

LARGE = 300_000


@pytest.fixture
def app(app: App) -> App:
    attempts.clear()

    @app.task
    async def give(value: Any = None) -> Any:
        return value

    @app.task
    def plus_one(n: int) -> int:
        return n + 1

    @app.task
    async def fail(message: str = "no luck") -> None:
        raise ValueError(message)

    @app.task
    async def fail_until(attempt: int) -> int:
        attempts.append(current_job().attempt)
        if current_job().attempt < attempt:
            raise RuntimeError("not yet")
        return current_job().attempt

    @app.task
    async def large() -> str:
        return "x" * LARGE

    @app.task
    async def odd(what: str) -> Any:
        return {"object": object(), "nan": float("nan"), "half": "\ud800"}[what]

    return app


attempts: list[int] = []


async def fails(run: DagHandle, *messages: str) -> DagRunError:
    with pytest.raises(DagRunError) as caught:
        await run.result(timeout=120)
    for message in messages:
        assert message in str(caught.value), str(caught.value)
    return caught.value


# -- policies -------------------------------------------------------------------------------------


async def test_a_node_has_a_retry_policy_of_its_own_and_the_task_keeps_its(app: App, database: Database) -> None:
    retrying = app.retry(3, backoff=0.01)
    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "fail_until", args={"attempt": 3}, retry=retrying)]))
        assert await run.result(timeout=120) == {"a": 3}
        assert attempts == [1, 2, 3]
        await fails(await app.start(Dag("d", [node("a", "fail_until", args={"attempt": 2})])), "not yet")
        assert attempts == [1, 2, 3, 1]
        too_few = node("a", "fail_until", args={"attempt": 9}, retry=app.retry(2, backoff=0.01))
        run = await app.start(Dag("d", [too_few]))
        error = await fails(run, "RuntimeError: not yet")
        assert error.nodes == ("a",)
        assert "not yet" in await run.explain("a")


async def test_a_failure_ends_the_run_and_what_was_under_way_or_only_itself(app: App, database: Database) -> None:
    def dag(policy: Any) -> Dag:
        return Dag(
            "d",
            [
                node("bad", "fail", on_failure=policy),
                node("after_bad", "give", deps=["bad"]),
                node("slow", "fail_until", args={"attempt": 2}, retry=app.retry(2, backoff=0.5)),
                node("after_slow", "plus_one", args={"n": ref("slow")}),
            ],
        )

    async with running_dags(app):
        run = await app.start(dag("fail_run"))
        await fails(run, "node 'bad' failed: ValueError: no luck")
        assert await statuses(run) == {
            "bad": "failed",
            "after_bad": "cancelled",
            "slow": "cancelled",
            "after_slow": "cancelled",
        }
        run = await app.start(dag("continue"))
        error = await fails(run, "node 'bad' failed: ValueError: no luck")
        assert error.nodes == ("bad",)
        assert await statuses(run) == {
            "bad": "failed",
            "after_bad": "blocked",
            "slow": "succeeded",
            "after_slow": "succeeded",
        }
        assert "never runs: it depends on 'bad'" in await run.explain("after_bad")
        await eventually(lambda: nothing_left(database))


async def test_two_failures_at_once_end_the_run_once(app: App, database: Database) -> None:
    async with running_dags(app):
        run = await app.start(Dag("d", [node(f"n{i}", "fail", args={"message": str(i)}) for i in range(30)]))
        await fails(run, "ValueError")
        await eventually(lambda: nothing_left(database))
        told = await statuses(run)
        assert list(told.values()).count("failed") == 1, "the first one ends the run"
        assert set(told.values()) == {"failed", "cancelled"}


# -- what cannot be given or taken ----------------------------------------------------------------


#: Arguments that do not fit `plus_one(n: int)`, and a word that says why.
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({}, "n"),
    ({"n": "not a number"}, "n"),
    ({"n": ref("run.missing")}, "missing"),
]


#: An argument that `plus_one` does not have. A run worker that knows the task refuses it.
UNKNOWN_ARGUMENT: tuple[dict[str, Any], str] = ({"n": 1, "m": 2}, "m")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["known to the run worker", "known to the worker only"])
async def test_arguments_that_do_not_fit_fail_the_node_at_once(app: App, database: Database, elsewhere: bool) -> None:
    keeping = App(app.name, database_url=app.settings.database_url) if elsewhere else app
    async with running_worker_of(app), running_run_worker(keeping):
        for args, message in MISFITS if elsewhere else [*MISFITS, UNKNOWN_ARGUMENT]:
            bad = node("bad", "plus_one", args=args, deps=["before"])
            run = await app.start(Dag("d", [node("before", "give"), bad]))
            error = await fails(run, "node 'bad' failed", message)
            assert error.nodes == ("bad",)
            assert await statuses(run) == {"before": "succeeded", "bad": "failed"}
        await eventually(lambda: nothing_left(database))


async def test_a_node_with_an_argument_that_only_newer_code_has_waits_for_it_and_can_be_cancelled(
    app: App, database: Database
) -> None:
    keeping = App(app.name, database_url=app.settings.database_url)
    waiting = "SELECT note FROM tidemill.job WHERE task = 'plus_one' AND state = 'no_worker' AND failures = 0"
    async with running_worker_of(app), running_run_worker(keeping):
        run = await app.start(Dag("d", [node("newer", "plus_one", args=UNKNOWN_ARGUMENT[0])]))
        note = await eventually(lambda: value(database, waiting))
        assert "task plus_one has no argument 'm'" in note
        assert "has no argument 'm'" in await run.explain("newer")
        assert await run.state() == "running"
        await run.cancel()
        await fails(run, "cancelled")
        await eventually(lambda: nothing_left(database))


async def test_many_bad_arguments_in_one_turn_end_the_run_and_not_its_run_worker(app: App, database: Database) -> None:
    """A map goes on to its next item while another node ends the run, all before anything is written."""
    dag = Dag(
        "d",
        [
            node("start", "give", args={"value": ["a", "b", 3, 4, "c"]}),
            node("each", "plus_one", map=ref("start"), args={"n": ref("item")}, tolerate=3, max_concurrency=1),
            node("bad", "plus_one", args={"n": "x"}, deps=["start"]),
            node("fine", "give", deps=["start"]),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        await fails(run, "node 'bad' failed")
        assert await run.state() == "failed"
        assert await (await app.start(Dag("f", [node("a", "give", args={"value": 1})]))).result(timeout=120) == {"a": 1}
        await eventually(lambda: nothing_left(database))


async def test_a_map_bears_as_many_bad_items_as_it_tolerates(app: App, database: Database) -> None:
    dag = Dag(
        "d", [node("each", "plus_one", map=[1, "x", 3, "y"], args={"n": ref("item")}, tolerate=2, max_concurrency=1)]
    )
    async with running_dags(app):
        assert await (await app.start(dag)).result(timeout=120) == {"each": [2, None, 4, None]}


async def test_a_result_that_is_not_json_fails_the_node_with_a_clear_message(app: App) -> None:
    async with running_dags(app):
        for what in ("object", "nan", "half"):
            run = await app.start(Dag("d", [node("a", "odd", args={"what": what})]))
            await fails(run, "node 'a' failed", "task odd returned something that is not JSON")


async def test_a_result_that_is_too_large_fails_the_node_and_is_kept_nowhere_with_the_run(
    app: App, database: Database
) -> None:
    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "large"), node("b", "give", args={"value": ref("a")})]))
        await fails(run, f"the result has {LARGE + 2:,} bytes as JSON", "return a reference to it")
        assert await statuses(run) == {"a": "failed", "b": "cancelled"}
    kept = "SELECT sum(length(data::text)) FROM tidemill.tick WHERE run_id = $1"
    assert await value(database, kept, run.id) < 10_000


async def test_run_arguments_that_are_not_json_start_nothing(app: App, database: Database) -> None:
    for bad in (object(), float("nan")):
        with pytest.raises(PayloadError, match="cannot be stored as JSON"):
            await app.start(Dag("d", [node("a", "give")]), what=bad)
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 0


# -- what nobody can do ---------------------------------------------------------------------------


async def test_a_task_that_no_worker_knows_waits_is_explained_and_runs_when_one_comes(
    app: App, database: Database
) -> None:
    newer = App(app.name, database_url=app.settings.database_url, **PATIENT)

    @newer.task(name="unheard")
    async def unheard() -> str:
        return "at last"

    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "unheard")]))
        told = await eventually(lambda: explained(run, "a", "does not know task unheard"))
        assert "no_worker" in told
        assert await run.state() == "running"
        async with running_worker_of(newer):
            assert await run.result(timeout=120) == {"a": "at last"}


async def test_a_queue_that_no_worker_serves_is_explained(app: App, database: Database) -> None:
    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "give", queue="unserved")]))
        told = await eventually(lambda: explained(run, "a", "unserved"))
        assert "no worker serves queue unserved" in told.lower()
        await run.cancel("enough")
        await fails(run, "enough")
        await eventually(lambda: nothing_left(database))


async def explained(run: DagHandle, name: str, words: str) -> str | None:
    told = await run.explain(name)
    return told if words in told else None


# -- workers that die or freeze -------------------------------------------------------------------


async def test_a_poison_node_fails_after_its_losses_and_the_run_explains_why(
    app: App, database: Database, database_url: str
) -> None:
    await make_tables(database)
    patience = app.retry(3, max_losses=2, backoff=0.01)
    lost = "SELECT losses FROM tidemill.job WHERE run_id = $1"
    async with running_maintenance(app), running_run_worker(app):
        poison = node("poison", "deadly", args={"tag": "p"}, queue="deadly", retry=patience)
        run = await app.start(Dag("d", [poison, node("after", "give", deps=["poison"])]))
        for losses in (1, None):
            victim = start_worker(database_url, ["deadly"], app=DAG_RUNS)
            try:  # Nobody waits until it is ready: it may be dead by then.
                assert await victim.ends() == -9, victim.said
            finally:
                victim.close()
            await lapse(database, victim.pid)
            await eventually(lambda losses=losses: is_value(database, losses, lost, run.id))
        error = await fails(run, "node 'poison' failed: WorkerLost", "stopped renewing its lease")
        assert error.nodes == ("poison",)
        assert "its worker died" in await run.explain("poison")
        assert await statuses(run) == {"poison": "failed", "after": "cancelled"}
    assert [what for what, _ in await deeds(database, "p")] == ["deadly", "deadly"]


async def test_a_wedged_node_is_recovered_by_another_worker_and_the_dead_one_is_flagged(
    app: App, database: Database, database_url: str
) -> None:
    await make_tables(database)
    dag = Dag(
        "d",
        [
            node("stuck", "deed", args={"tag": "t", "what": "stuck", "gate": "g"}),
            node("after", "deed", args={"tag": "t", "what": "after", "given": ref("stuck.what")}),
        ],
        result=ref("after.given"),
    )
    serving = worker_process(database_url, ["default"], app=DAG_RUNS)
    async with running_maintenance(app, silence_seconds=0.4), running_run_worker(app), serving as stuck:
        run = await app.start(dag)
        await eventually(lambda: deeds(database, "t"))
        stuck.freeze()
        flagged = "SELECT flagged_at IS NOT NULL FROM tidemill.worker WHERE id = $1"
        await eventually(lambda: value(database, flagged, stuck.worker_id))
        await lapse(database, stuck.pid)
        async with worker_process(database_url, ["default"], app=DAG_RUNS) as other:
            await eventually(lambda: twice(database))
            await open_gates(database, "g")
            assert await run.result(timeout=120) == "stuck"
            stuck.thaw()
            assert await stuck.ends() == EXIT_FENCED
            assert other.exit_status is None
    assert (await find_worker(database, stuck.worker_id))["end_reason"] == "its lease lapsed"
    done = await deeds(database, "t")
    assert [what for what, _ in done] == ["stuck", "stuck", "after"]
    assert {pid for _, pid in done[1:]} == {other.pid}
    rows = await database.fetch("SELECT state, losses FROM tidemill.job_history WHERE run_id = $1 ORDER BY id", run.id)
    assert [tuple(row) for row in rows] == [("succeeded", 1), ("succeeded", 0)]


async def is_value(database: Database, wanted: Any, statement: str, *args: Any) -> bool:
    return await value(database, statement, *args) == wanted


async def twice(database: Database) -> bool:
    return len(await deeds(database, "t")) == 2


async def test_a_node_over_its_budget_fails_and_says_so(app: App, database: Database) -> None:
    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "endless", budget=0.2)]))
        await fails(run, "node 'a' failed: BudgetExceeded: ran longer than its budget")


async def test_a_node_whose_job_an_operator_cancels_fails_the_run_and_says_so(app: App, database: Database) -> None:
    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "give", queue="unserved")]))
        job = await eventually(lambda: value(database, "SELECT id FROM tidemill.job WHERE run_id = $1", run.id))
        await app.jobs.cancel(job, by="ann")
        await fails(run, "node 'a' was cancelled", "cancelled by ann")
