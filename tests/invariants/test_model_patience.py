"""Contract: preferring the loaded model never keeps a job waiting beyond the worker's patience."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import eventually, finished, running_worker, value
from tests.support.waiting import PATIENT
from tidemill import App, ModelSpec, current_job
from tidemill.store.database import Database

PATIENCE = 0.6
# What a machine may add to a wait that lasts for one patience: when it is very busy, and in its better moments.
MOST_SLACK, SLACK = 20.0, 1.0


@pytest.fixture
def loads() -> list[str]:
    return []


@pytest.fixture
async def app(database_url: str, loads: list[str]) -> Any:
    """Two models, memory for one, and a task that takes a moment."""

    def spec(name: str) -> ModelSpec:
        return ModelSpec(name, lambda: loads.append(name) or name, memory=1)

    app = App(
        "patience",
        models=[spec("busy"), spec("rare")],
        model_memory=1,
        model_patience=PATIENCE,
        database_url=database_url,
        grace_seconds=5,
        **PATIENT,
    )

    @app.task
    async def use(name: str) -> str:
        model = current_job().model(name)
        await asyncio.sleep(0.005)
        return model

    yield app
    await app.close()


async def keep_busy(app: App, database: Database, stop: asyncio.Event) -> None:
    """Always more jobs of the busy model than the worker can take."""
    while not stop.is_set():
        waiting = await value(
            database, "SELECT count(*) FROM tidemill.job WHERE state = 'ready' AND required_model = 'busy'"
        )
        if waiting < 2000:
            await app.enqueue_many("use", [{"name": "busy"}] * 500, required_model="busy")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("max_concurrency", [1, 4])
async def test_a_rare_model_is_served_within_the_patience_while_another_is_always_busy(
    app: App, database: Database, loads: list[str], max_concurrency: int
) -> None:
    stop = asyncio.Event()
    waits: list[float] = []
    async with app, running_worker(app, max_concurrency=max_concurrency):
        busy = asyncio.create_task(keep_busy(app, database, stop))
        try:
            await eventually(lambda: loads == ["busy"])
            while len(waits) < 4 or (min(waits) >= PATIENCE + SLACK and len(waits) < 20):
                job = await app.enqueue("use", name="rare", required_model="rare")
                row = await finished(database, job.id)
                assert row["state"] == "succeeded"
                waits.append((row["started_at"] - row["due_at"]).total_seconds())
                assert await value(database, "SELECT count(*) FROM tidemill.job WHERE state = 'ready'") > 0
        finally:
            stop.set()
            await busy
    assert loads.count("rare") == len(waits)
    assert max(waits) < PATIENCE + MOST_SLACK
    assert min(waits) < PATIENCE + SLACK


async def test_a_long_queue_of_two_models_changes_between_them_once_a_patience_and_not_with_every_job(
    app: App, database: Database, loads: list[str]
) -> None:
    async with app:
        for name in ["busy", "rare"] * 150:
            await app.enqueue("use", name=name, required_model=name)
        began = await value(database, "SELECT clock_timestamp()")
        async with running_worker(app, max_concurrency=1):
            await eventually(lambda: value(database, "SELECT NOT EXISTS (SELECT FROM tidemill.job)"))
        took = await value(database, "SELECT extract(epoch FROM clock_timestamp() - $1)::float8", began)
    assert len(loads) <= took / PATIENCE + 2
