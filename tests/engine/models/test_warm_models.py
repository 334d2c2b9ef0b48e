"""Jobs that need a model: how they get it, and what happens when it cannot be had."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from tests.support import eventually, find_live, find_worker, finished, running_worker, value
from tests.support.models import MODELS, World, done, results
from tests.support.operate import retry_jobs
from tidemill import App, ModelSpec, current_job
from tidemill.cli.jobs.workers import workers_table
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.ops.jobs.workers import ListWorkers, list_workers
from tidemill.ops.operator.local import Local
from tidemill.roles import jobs_role
from tidemill.store.database import Database
from tidemill.store.jobs.claims.model_claims import (
    WINDOW,
)

# Getting the model


async def test_a_job_finds_its_required_model_loaded(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app()
    jobs = [await app.enqueue("serve") for _ in range(5)]
    async with app, running_worker(app):
        assert await results(database, jobs) == ["a"] * 5
    assert world.loads == ["a"]


@pytest.mark.parametrize("task", ["answer", "answer_plainly"])
async def test_a_task_may_ask_for_a_model_by_name(make_app: Callable[..., App], database: Database, task: str) -> None:
    app = make_app()
    async with app, running_worker(app):
        jobs = [await app.enqueue(task, args={"model": name}) for name in MODELS]
        assert await results(database, jobs) == list(MODELS)


async def test_a_caller_may_wish_for_another_model_for_one_job_or_for_many(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app = make_app()

    @app.task
    async def whichever(name: str) -> str:
        return current_job().model(name).name

    async with app, running_worker(app):
        one = await app.enqueue("whichever", name="b", required_model="b")
        many = await app.enqueue_many("whichever", [{"name": "c"}] * 3, required_model="c")
        keyed = await app.enqueue("whichever", name="a", required_model="a", unique_key="k", concurrency_key="g")
        assert await results(database, [one, *many, keyed]) == ["b", "c", "c", "c", "a"]
    assert sorted(world.loads) == ["a", "b", "c"]


async def test_a_retried_job_still_knows_its_model(make_app: Callable[..., App], database: Database) -> None:
    app = make_app()
    job = await app.enqueue("serve")
    async with app, running_worker(app):
        await finished(database, job.id)
    await retry_jobs(database, [job.id], by="me")
    assert await value(database, "SELECT required_model FROM tidemill.job") == "a"


@pytest.mark.parametrize("many", [False, True])
async def test_a_model_that_nobody_declared_is_refused_before_anything_is_stored(
    make_app: Callable[..., App], database: Database, many: bool
) -> None:
    app = make_app()
    async with app:
        with pytest.raises(ConfigError, match=r"there is no model 'd'; this application declares: a, b, c"):
            await (
                app.enqueue_many("other", [{}], required_model="d")
                if many
                else app.enqueue("other", required_model="d")
            )
    assert await done(database)


def test_an_isolated_task_cannot_require_a_model(make_app: Callable[..., App]) -> None:
    app = make_app()
    with pytest.raises(ConfigError, match="models are loaded in the worker's process"):

        @app.task(isolation="process", required_model="a")
        def nothing() -> None: ...


async def test_an_argument_of_that_name_has_to_be_told_from_the_option(make_app: Callable[..., App]) -> None:
    app = make_app()

    @app.task
    async def choose(required_model: str) -> None: ...

    with pytest.raises(PayloadError, match="is both an argument of the task and an option of enqueue"):
        await app.enqueue("choose", required_model="a")


# When it cannot be had


async def test_a_load_that_fails_fails_the_job_and_the_next_attempt_tries_again(
    make_app: Callable[..., App], database: Database, world: World
) -> None:
    app, world.broken = make_app(), True

    @app.task(required_model="b", retry=app.retry(max_attempts=2, backoff="1h"))
    async def stubborn() -> str:
        return current_job().model("b").name

    async with app, running_worker(app):
        lost = await app.enqueue("serve")
        kept = await app.enqueue("stubborn")
        row = await finished(database, lost.id)
        assert (row["state"], "model a could not be loaded: OSError: no such weights" in row["note"]) == (
            "failed",
            True,
        )
        await eventually(lambda: value(database, "SELECT failures FROM tidemill.job WHERE id = $1", kept.id))
        world.broken = False
        await retry_jobs(database, [kept.id], by="me")
        assert await results(database, [kept]) == ["b"]


async def test_a_worker_without_the_model_leaves_the_job_to_one_that_has_it(
    make_app: Callable[..., App], database: Database
) -> None:
    with_models, without = make_app(), make_app(models=False)
    async with with_models, without:
        job = await with_models.enqueue("serve")
        async with running_worker(without):
            row = await eventually(
                lambda: database.fetchrow("SELECT * FROM tidemill.job WHERE id = $1 AND note IS NOT NULL", job.id)
            )
        assert "does not know model a: waiting for one that does" in row["note"]
        assert (row["state"], row["failures"], row["losses"]) == ("ready", 0, 0)
        await database.fetch("UPDATE tidemill.job SET due_at = now()")
        async with running_worker(with_models):
            assert await results(database, [job]) == ["a"]


async def test_jobs_of_a_model_that_nobody_knows_any_more_say_so_and_stand_in_nobodys_way(
    make_app: Callable[..., App], database: Database
) -> None:
    app = make_app()
    async with app:
        lost = await app.enqueue_many("other", [{}] * (WINDOW + 50), required_model="b")
        await database.fetch("UPDATE tidemill.job SET options = '{\"required_model\":\"d\"}', required_model = 'd'")
        job = await app.enqueue("other")
        async with running_worker(app, max_concurrency=1):
            assert await results(database, [job]) == ["no model"]

            async def says_so() -> bool:  # Before it stops: then it gives back what it has claimed again.
                row = await find_live(database, lost[0].id)
                assert row is not None
                return "does not know model d: waiting for one that does" in row["note"]

            await eventually(says_so, what="the job says that no worker knows its model")


class Ahead:
    """The module `time`, an hour ahead while told so."""

    def __init__(self) -> None:
        self.by = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() + self.by


async def test_loading_takes_nothing_from_the_jobs_budget_and_can_be_cancelled(
    make_app: Callable[..., App], database: Database, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the one who watches over budgets an hour passes while the model is loaded."""
    app, watch = make_app(), Ahead()
    monkeypatch.setattr("tidemill.engine.containment.watchdog.time", watch)

    @app.task(required_model="b", budget="10m")
    def quick() -> str:
        return current_job().model("b").name

    world.gate.clear()
    async with app, running_worker(app, max_concurrency=2):
        job, unwanted = await app.enqueue("quick"), await app.enqueue("quick")
        await eventually(lambda: value(database, "SELECT count(*) = 2 FROM tidemill.job WHERE state = 'running'"))
        await app.jobs.cancel(unwanted)
        assert (await finished(database, unwanted.id))["state"] == "cancelled"
        watch.by = 3600.0
        for _ in range(2):
            seen = await value(database, "SELECT seen_at FROM tidemill.worker")
            await eventually(lambda seen=seen: value(database, "SELECT seen_at > $1 FROM tidemill.worker", seen))
        watch.by = 0.0
        world.gate.set()
        assert await results(database, [job]) == ["b"]


async def test_a_thread_that_outlives_its_job_keeps_its_model(make_app: Callable[..., App], database: Database) -> None:
    app, inside, release, seen = make_app(), threading.Event(), threading.Event(), []

    @app.task(required_model="a")
    def slow() -> None:
        model = current_job().model("a")
        inside.set()
        release.wait(60)
        seen.append(model.gone)

    async with app:
        job = await app.enqueue("slow")
        async with running_worker(app) as worker:
            await eventually(inside.is_set)
            worker.stop()
            worker.stop()
            await eventually(lambda: not worker.work.runner.slots)
            assert worker.work.models is not None
            assert worker.work.models.in_use() == ["a"]
        row = await find_live(database, job.id)
        assert row is not None
        assert row["state"] == "ready"
        release.set()
        await eventually(lambda: seen == [False])


# What operators see


async def test_a_worker_shows_its_loaded_models(make_app: Callable[..., App], database: Database) -> None:
    app = make_app()
    async with app, running_worker(app) as worker:
        await app.enqueue("serve")

        async def shown() -> bool:
            row = await find_worker(database, worker.worker_id)
            return row is not None and row["models"] == ["a"]

        await eventually(shown)
        console = Console(width=200, record=True, file=io.StringIO())
        found = await Local(database, Caller("ann", "viewer")).do(list_workers, ListWorkers())
        console.print(workers_table(found.items, datetime.now(UTC)))
        assert "models: a" in console.export_text()


def test_a_task_whose_model_nobody_declared_is_told_when_a_worker_is_made(make_app: Callable[..., App]) -> None:
    app = make_app()

    @app.task(required_model="d")
    def lost() -> None: ...

    with pytest.raises(ConfigError, match=r"task lost: there is no model 'd'; this application declares: a, b, c"):
        jobs_role(
            app.declarations,
        )


async def test_a_worker_for_a_model_on_a_gpu_runs_one_job_at_a_time_unless_told_otherwise(database_url: str) -> None:
    app = App("gpu", database_url=database_url, models=[ModelSpec("big", object, gpu=True)])

    @app.task(queue="gpu", required_model="big")
    def draw() -> None: ...

    @app.task(queue="mail")
    def send() -> None: ...

    assert jobs_role(app.declarations, ["gpu"]).work.settings.max_concurrency == 1
    assert jobs_role(app.declarations, ["gpu"], max_concurrency=3).work.settings.max_concurrency == 3
    assert jobs_role(app.declarations, ["mail"]).work.settings.max_concurrency == 10


def test_models_that_do_not_fit_into_the_budget_are_told_when_the_worker_is_made(make_app: Callable[..., App]) -> None:
    with pytest.raises(ConfigError, match=r"model a needs 1 B, which the models' budget of 0 B does not hold"):
        jobs_role(
            make_app(model_memory=0).declarations,
        )
