"""What follows from a node's end happens once: no node is lost or dispatched twice, whichever process dies and when."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.support import AppProcess, eventually, lapse, run_worker_process, running_maintenance, value, worker_process
from tests.support.dag_runs import (
    DAG_RUNS,
    TOUR,
    declare,
    is_blocked,
    nothing_left,
    one_success_each,
    owner_of,
    reaches,
    running_dags,
    running_worker_of,
    tour,
    wide,
)
from tests.support.durable import deeds, make_tables, open_gates, running_run_worker, ticks_of
from tests.support.processes import start_worker
from tests.support.waiting import time_to_connect
from tidemill import App
from tidemill.core.codec import encode
from tidemill.dags import Dag, node
from tidemill.dags.runner.dag_handle import DagHandle
from tidemill.dags.runner.runner import DagInput
from tidemill.engine.containment.exit_status import EXIT_FENCED
from tidemill.store.database import Database
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.runs import start_run

ARMS = 3
NODES = 3 * ARMS + 2
RESULT = [f"c{arm}" for arm in range(ARMS)]


@pytest.fixture
async def app(app: App, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)
    await make_tables(database)
    return declare(app)


# -- chaos ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_node_is_dispatched_once_while_workers_and_run_workers_are_killed(
    app: App, database: Database, database_url: str, seed: int
) -> None:
    chance = random.Random(seed)
    dag = wide(arms=ARMS)

    def begin(role: str) -> AppProcess:
        if role == "runs":
            return AppProcess("runs", database_url, DAG_RUNS)
        return start_worker(database_url, ["default"], 2, DAG_RUNS)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_maintenance(app))
        living = [(role, begin(role)) for role in ("runs", "runs", "worker", "worker")]
        for _, process in living:
            stack.callback(process.close)
            await process.wait_ready()
        runs = [await app.start(dag, tag=f"{seed}/{number}") for number in range(25)]
        victims: Counter[str] = Counter()
        while victims.total() < 5:
            if len(await unfinished(database)) <= 2:  # A quick machine: more work for the chaos.
                runs += [await app.start(dag, tag=f"{seed}/{len(runs) + number}") for number in range(10)]
            await asyncio.sleep(chance.random() * 0.25)
            at = chance.randrange(len(living))
            role, victim = living[at]
            victim.kill()
            await lapse(database, victim.pid)
            victims[role] += 1
            living[at] = (role, begin(role))
            stack.callback(living[at][1].close)
        results = await asyncio.gather(*(run.result(timeout=120) for run in runs))
    assert results == [RESULT] * len(runs)
    for run in runs:
        works = await one_success_each(database, run)
        assert len(works) == NODES, f"seed {seed}: {run} has {sorted(works.values())}"
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0


async def unfinished(database: Database) -> list[Any]:
    return await database.fetch("SELECT id FROM tidemill.run WHERE state = 'running'")


@pytest.mark.parametrize("begun_by", ["another", "its run worker"])
async def test_every_node_is_dispatched_once_while_all_connections_are_cut(
    app: App, database: Database, database_url: str, begun_by: str
) -> None:
    """Runs are begun by the caller and taken up, or begun by the run worker in the same process."""
    cutter = await asyncpg.connect(database_url, server_settings={"application_name": "the cutter"})
    pause = 0.05 + 6 * await time_to_connect(database_url)
    cuts = 0

    async def cut() -> None:
        nonlocal cuts
        while True:
            cuts += await cutter.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name NOT IN ('the cutter', 'test') AND query LIKE '%tidemill%' AND random() < 0.5"
            )
            await asyncio.sleep(pause)

    runs: list[DagHandle] = []
    results: list[Any] = []
    own = begun_by == "its run worker"
    async with app.running(max_concurrency=20) if own else running_dags(app, max_concurrency=20):
        cutting = asyncio.create_task(cut())
        while len(runs) < 40 or cuts <= 10:
            more = 10 if runs else 40  # Where connecting is slow, there are few cuts in the time of a batch.
            batch = [await app.start(wide(arms=ARMS), tag=f"cut {len(runs) + number}") for number in range(more)]
            results += await asyncio.gather(*(run.result(timeout=120) for run in batch))
            runs += batch
            if cutting.done():
                cutting.result()
        cutting.cancel()
        await asyncio.gather(cutting, return_exceptions=True)
        await eventually(lambda: nothing_left(database))
    await cutter.close()
    assert results == [RESULT] * len(runs)
    assert await value(database, "SELECT count(*) FROM tidemill.run") == len(runs)
    for run in runs:
        assert len(await one_success_each(database, run)) == NODES


# -- the moment between -----------------------------------------------------------------------------


async def test_a_run_worker_that_dies_while_it_dispatches_has_dispatched_nothing_and_the_next_does_all_once(
    app: App, database: Database, database_url: str
) -> None:
    async with running_maintenance(app), running_worker_of(app, "default"):
        async with run_worker_process(database_url, app=DAG_RUNS) as victim:
            dag = wide(arms=ARMS)
            gated = Dag(
                "throttled", [node("gate", "deed", args={"tag": "t", "what": "gate", "gate": "g"}), *after(dag)]
            )
            run = await app.start(gated, tag="t")
            await eventually(lambda: did(database, "gate"))
            async with database.transaction() as held:
                await held.execute("LOCK TABLE tidemill.tick IN SHARE MODE")
                await open_gates(database, "g")
                await eventually(lambda: is_blocked(database, "run worker test"))
                assert await value(database, "SELECT count(*) FROM tidemill.job_history") == 1
                victim.kill()
                await lapse(database, victim.pid)
                await eventually(lambda: gone(database, victim.worker_id))
            await eventually(lambda: nobody_commits(database))
        assert await value(database, "SELECT count(*) FROM tidemill.job") == 0, "neither ticks nor jobs: all or nothing"
        assert await value(database, "SELECT count(*) FROM tidemill.inbox WHERE run_id = $1", run.id) == 1
        async with run_worker_process(database_url, app=DAG_RUNS):
            await run.result(timeout=120)
    assert len(await one_success_each(database, run)) == NODES + 1
    assert Counter(what for what, _ in await deeds(database, "t")).most_common(1)[0][1] == 1


def after(dag: Dag) -> list[Any]:
    """The nodes of a dag, with the first of them after one called `gate`; with a condition, so that the run decides."""
    return [msgspec.structs.replace(dag.nodes[0], deps=("gate",), skip_if="false"), *dag.nodes[1:]]


async def test_a_run_worker_whose_commit_was_cut_off_by_its_death_counts_if_the_database_has_it(
    app: App, database: Database, database_url: str
) -> None:
    """The other side of the same moment: the turn is committed, and the run worker never hears of it."""
    async with running_maintenance(app), run_worker_process(database_url, app=DAG_RUNS) as victim:
        run = await app.start(wide(arms=ARMS), tag="t")
        job = await eventually(lambda: value(database, "SELECT id FROM tidemill.job WHERE run_id = $1", run.id))
        victim.kill()
        await lapse(database, victim.pid)
        async with run_worker_process(database_url, app=DAG_RUNS), running_worker_of(app, "default"):
            assert await run.result(timeout=120) == RESULT
    assert len(await one_success_each(database, run)) == NODES
    first = "SELECT id FROM tidemill.job_history WHERE run_id = $1 AND work = 1"
    assert await value(database, first, run.id) == job


async def test_a_worker_that_dies_while_it_finishes_a_node_has_told_nobody_and_the_node_runs_again(
    app: App, database: Database, database_url: str
) -> None:
    async with running_maintenance(app), running_run_worker(app):
        serving = worker_process(database_url, ["default"], app=DAG_RUNS)
        async with serving as victim, database.transaction() as held:
            await held.execute("LOCK TABLE tidemill.inbox IN SHARE MODE")
            run = await app.start(wide(arms=ARMS), tag="t")
            await eventually(lambda: is_blocked(database, "worker test"))
            assert [what for what, _ in await deeds(database, "t")] == ["first"]
            victim.kill()
        await lapse(database, victim.pid)
        assert await value(database, "SELECT count(*) FROM tidemill.job_history") == 0
        async with running_worker_of(app, "default"):
            assert await run.result(timeout=120) == RESULT
    assert len(await one_success_each(database, run)) == NODES
    counted = Counter(what for what, _ in await deeds(database, "t"))
    assert counted.pop("first") == 2
    assert set(counted.values()) == {1}


# -- every phase ------------------------------------------------------------------------------------


async def test_a_run_survives_the_death_of_its_run_worker_in_every_phase(
    app: App, database: Database, database_url: str
) -> None:
    tags = ("calm", "at work", "asking", "asleep", "answered", "retrying", "over")
    async with running_maintenance(app), running_worker_of(app, "default", max_concurrency=20):
        async with run_worker_process(database_url, app=DAG_RUNS) as victim:
            runs = {tag: await app.start(tour(), tag=tag, gate=f"g {tag}") for tag in tags}
            await open_gates(database, *(f"g {tag}" for tag in tags if tag != "at work"))
            for tag in ("calm", "over", "retrying"):
                await reaches(runs[tag], ask="waiting")
                await runs[tag].submit("ask", tag, by="ann")
            assert await runs["calm"].result(timeout=120) == "calm"
            assert await runs["over"].result(timeout=120) == "over"
            await reaches(runs["answered"], ask="waiting")
            await reaches(runs["asking"], ask="waiting")
            await eventually(lambda: is_owned(database, runs["asleep"], None))
            late = await app.start(tour(), tag="late", gate="g late")
            unborn = await stored_for(app, database, victim.worker_id)
            await open_gates(database, "g late")
            await reaches(late, ask="waiting")
            await late.submit("ask", "late", by="ann")
            await eventually(lambda: has_retry(database, late))
            victim.kill()
            await lapse(database, victim.pid)
        over = await ticks_of(database, runs["over"].id)
        runs |= {"late": late, "unborn": unborn}
        answering = asyncio.create_task(runs["answered"].submit("ask", "answered", by="bob"))
        await open_gates(database, "g at work", "g unborn")
        async with run_worker_process(database_url, app=DAG_RUNS):
            await answering
            for tag in ("at work", "asking", "asleep", "unborn"):
                await reaches(runs[tag], ask="waiting")
                await runs[tag].submit("ask", tag, by="ann")
            for tag, run in runs.items():
                assert await run.result(timeout=120) == tag
    for tag, run in runs.items():
        assert Counter(what for what, _ in await deeds(database, tag)) == TOUR, tag
        assert len(await one_success_each(database, run)) == 8, tag
    assert await ticks_of(database, runs["over"].id) == over
    assert await nothing_left(database)


async def test_a_run_worker_that_wakes_after_its_lease_is_fenced_and_changes_nothing(
    app: App, database: Database, database_url: str
) -> None:
    working = running_worker_of(app, "default")
    async with running_maintenance(app), working, run_worker_process(database_url, app=DAG_RUNS) as stale:
        run = await app.start(tour(), tag="t", gate="g")
        await eventually(lambda: did(database, "work"))
        stale.freeze()
        await lapse(database, stale.pid)
        await open_gates(database, "g")
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.inbox WHERE work = 1"))
        async with run_worker_process(database_url, app=DAG_RUNS) as heir:
            await reaches(run, ask="waiting")
            await run.submit("ask", "yes", by="ann")
            assert await run.result(timeout=120) == "yes"
            journal = await ticks_of(database, run.id)
            stale.thaw()
            assert await stale.ends() == EXIT_FENCED
            assert heir.exit_status is None
    assert await ticks_of(database, run.id) == journal
    assert len(await one_success_each(database, run)) == 8
    assert Counter(what for what, _ in await deeds(database, "t")) == TOUR


async def test_a_frozen_run_worker_in_the_middle_of_a_fan_out_adds_no_second_one(
    app: App, database: Database, database_url: str
) -> None:
    """Frozen with its turn on the wire: it is either committed once or refused, never both."""
    working = running_worker_of(app, "default", max_concurrency=20)
    async with running_maintenance(app), working, run_worker_process(database_url, app=DAG_RUNS) as stale:
        runs = [await app.start(wide(arms=ARMS), tag=f"f{number}") for number in range(20)]
        await eventually(lambda: value(database, "SELECT count(*) > 20 FROM tidemill.job_history"))
        stale.freeze()
        await lapse(database, stale.pid)
        async with run_worker_process(database_url, app=DAG_RUNS):
            assert [await run.result(timeout=120) for run in runs] == [RESULT] * len(runs)
            stale.thaw()
            assert await stale.ends() == EXIT_FENCED
    for run in runs:
        assert len(await one_success_each(database, run)) == NODES


# -- starting ---------------------------------------------------------------------------------------


async def test_a_start_with_a_key_is_one_run_however_often_it_is_said(app: App, database: Database) -> None:
    dag = app.dag(wide(arms=1))
    handles = await asyncio.gather(*(app.start(dag, unique_key="k", tag="t") for _ in range(20)))
    assert len({handle.id for handle in handles}) == 1
    assert [handle.created for handle in handles].count(True) == 1
    async with app.running():
        assert await handles[0].result(timeout=120) == ["c0"]
        again = await app.start("wide", unique_key="k", tag="t")
        assert (again.id, again.created) == (handles[0].id, False)
    assert len(await deeds(database, "t")) == 5


# -- looking ----------------------------------------------------------------------------------------


async def stored_for(app: App, database: Database, owner: int) -> DagHandle:
    """A run that a run worker has stored as its own and not yet begun."""
    given = DagInput(msgspec.Raw(tour().to_json()), {"tag": "unborn", "gate": "g unborn"})
    version = app.runs.dag_kind.program(tour().to_json()).version
    number, _ = await start_run(
        database, workflow="tour", version=version, input=encode(given), owner=owner, kind=DAG_KIND
    )
    return DagHandle(database, app.runs.dag_kind, number)


async def did(database: Database, what: str) -> bool:
    return what in [each for each, _ in await deeds(database, "t")]


async def gone(database: Database, worker_id: int) -> bool:
    return await value(database, "SELECT ended_at IS NOT NULL FROM tidemill.worker WHERE id = $1", worker_id)


async def nobody_commits(database: Database) -> bool:
    return not await is_blocked(database, "dagged")


async def is_owned(database: Database, run: DagHandle, owner: int | None) -> bool:
    return await owner_of(database, run) == owner


async def has_retry(database: Database, run: DagHandle) -> bool:
    """Whether a job of it has failed once; it is tried again after a moment."""
    return await value(
        database,
        "SELECT EXISTS (SELECT FROM tidemill.job WHERE run_id = $1 AND failures = 1)"
        " OR EXISTS (SELECT FROM tidemill.job_history WHERE run_id = $1 AND failures = 1)",
        run.id,
    )
