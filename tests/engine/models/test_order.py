"""Which of the jobs that need models goes first, and what the claims cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import eventually, finished, running_worker, value
from tests.support.models import MODELS, World, done, results
from tidemill import App, current_job
from tidemill.store.database import Database
from tidemill.store.jobs.claims.model_claims import (
    CLAIM_OF_MODEL,
    CLAIM_WITHOUT_MODEL,
    LOOK_FOR_MODELS,
    NEXT_DUE_AFTER,
    WINDOW,
)


async def enqueue_in_turn(app: App, rounds: int) -> list[Any]:
    @app.task
    async def use(name: str) -> None:
        assert current_job().model(name).name == name

    return [await app.enqueue("use", name=name, required_model=name) for _ in range(rounds) for name in MODELS]


async def test_interleaved_jobs_of_three_models_cost_three_loads(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app()
    async with app:
        await enqueue_in_turn(app, 20)
        async with running_worker(app, max_concurrency=1):
            await eventually(lambda: done(database))
    assert sorted(world.loads) == ["a", "b", "c"]


async def test_without_patience_jobs_go_strictly_in_order(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app(model_patience=0)
    async with app:
        await enqueue_in_turn(app, 5)
        async with running_worker(app, max_concurrency=1):
            await eventually(lambda: done(database))
    assert world.loads == [*MODELS] * 5


async def test_jobs_run_side_by_side_only_as_far_as_their_models_fit(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app(model_memory=2)
    async with app:
        await enqueue_in_turn(app, 20)
        async with running_worker(app, max_concurrency=10):
            await eventually(lambda: done(database))
    assert set(world.loads) == {*MODELS}
    assert len(world.loads) <= 6


async def test_jobs_without_a_model_are_found_among_thousands_that_wait_for_one(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app()
    async with app:
        await app.enqueue_many("serve", [{}] * (WINDOW * 3))
        last = await app.enqueue("other")
        async with running_worker(app, max_concurrency=1):
            assert await results(database, [last]) == ["no model"]
            await eventually(lambda: done(database))
    assert world.loads == ["a"]


async def test_a_delayed_job_of_a_model_runs_when_it_is_due(
    make_app: Callable[..., App], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.engine.worker.claimer.SAFETY_POLL", 600.0)  # Nobody finds it by chance.
    app = make_app()
    async with app, running_worker(app):
        job = await app.enqueue("serve", delay="1s")
        row = await finished(database, job.id)
    assert row["started_at"] >= row["due_at"]


async def test_a_worker_that_can_take_nothing_yet_does_not_hammer_the_database(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app, release = make_app(), asyncio.Event()

    @app.task(required_model="a")
    async def hold() -> None:
        await release.wait()

    async with app, running_worker(app, max_concurrency=2) as worker:
        await app.enqueue("hold")
        await eventually(lambda: worker.work.models is not None and worker.work.models.in_use() == ["a"])
        waiting = await app.enqueue("other", required_model="b")
        await eventually(lambda: worker.work._claimer._may_find_jobs is False)
        turn = worker.work._claimer._turn
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 1.0)
        assert worker.work._claimer._turn - turn < 10 * (time.monotonic() - began)
        release.set()
        assert (await finished(database, waiting.id))["state"] == "succeeded"


@pytest.mark.parametrize("forced", ["force_generic_plan", "force_custom_plan"])
async def test_claims_by_model_read_a_few_index_entries_however_many_jobs_wait(
    make_app: Callable[..., App], database: Database, forced: str
) -> None:
    app = make_app()
    async with app:
        await app.enqueue_many("serve", [{}] * 20_000)
        await app.enqueue_many("other", [{}] * 20_000, required_model="b", delay="1h")
        await app.enqueue_many("other", [{}] * 20_000)
    worker = await value(
        database,
        "INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until) "
        "VALUES ('h', 1, '{default}', '{}', 1, '{}', now() + interval '1 hour') RETURNING id",
    )
    seen: dict[str, Any] = {}
    for name, statement, params in (
        ("look", LOOK_FOR_MODELS, (["default"], ["a", "b", "c"], [])),
        ("claim", CLAIM_OF_MODEL, ("default", 5, 10, worker, [], "a")),
        ("claim without", CLAIM_WITHOUT_MODEL, ("default", 5, 10, worker, [], ["a", "b", "c"])),
        ("next", NEXT_DUE_AFTER, (["default"], await value(database, "SELECT now()"), [])),
    ):

        async def explain(connection: Any, statement: str = statement, params: Any = params) -> Any:
            await connection.execute("ANALYZE tidemill.job")
            async with connection.transaction():
                await connection.execute(f"SET LOCAL plan_cache_mode = {forced}")
                rows = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *params)
                await connection.execute("ROLLBACK AND CHAIN")
            return rows

        plan = json.loads(await database.run(explain))[0]["Plan"]
        assert "Seq Scan on job" not in json.dumps(plan), name
        seen[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert all(blocks < 300 for blocks in seen.values()), seen
