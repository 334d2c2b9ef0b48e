"""A job whose task a worker does not know waits, with a reason, until one comes that does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually, find_live, finished, running_maintenance, running_worker, value
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.store.database import Database
from tidemill.store.jobs.read import show_job


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="shared")
    async def known() -> str:
        return "known"

    return app


@pytest.fixture
async def newer(app: App) -> AsyncIterator[App]:
    """The next release of the application, with one more task."""
    newer = App(app.name, database_url=app.settings.database_url, **PATIENT)
    newer.task(name="known", queue="shared")(app.declarations.tasks["known"].function)

    @newer.task(queue="shared")
    async def added(n: int = 0) -> int:
        return n

    yield newer
    await newer.close()


async def no_worker(database: Database, job_id: int):
    row = await find_live(database, job_id)
    return row if row is not None and row["state"] == "no_worker" else None


async def test_the_job_waits_with_a_visible_reason_and_the_others_go_on(app: App, newer: App, database) -> None:
    async with running_worker(app, max_concurrency=1) as worker:
        strange = await newer.enqueue("added")
        row = await eventually(lambda: no_worker(database, strange.id))
        assert row["note"] == f"worker {worker.work.runner.worker} does not know task added: waiting for one that does"
        assert (row["failures"], row["losses"], row["worker_id"]) == (0, 0, None)
        told = await show_job(database, strange.id)
        assert told is not None
        assert (told["serving"], told["knowing"]) == (1, 0)
        for _ in range(3):
            assert (await finished(database, (await app.enqueue("known")).id))["state"] == "succeeded"


async def test_the_job_runs_when_a_worker_that_knows_it_appears(app: App, newer: App, database: Database) -> None:
    async with running_worker(app):
        refs = [await newer.enqueue("added", n) for n in range(5)]
        await eventually(lambda: no_worker(database, refs[0].id))
        async with running_worker(newer):
            for n, ref in enumerate(refs):
                row = await finished(database, ref.id)
                assert (row["state"], row["result"]) == ("succeeded", str(n).encode())


async def test_beside_a_worker_that_knows_it_the_job_is_only_a_little_late(app: App, newer: App, database) -> None:
    async with running_maintenance(app), running_worker(app), running_worker(newer):
        refs = await newer.enqueue_many("added", ({"n": n} for n in range(100)))
        for ref in refs:
            assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_a_waiting_job_does_not_keep_the_worker_busy(app: App, newer: App, database: Database) -> None:
    async with running_worker(app):
        ref = await newer.enqueue("added")
        row = await eventually(lambda: no_worker(database, ref.id))
        for _ in range(3):
            await finished(database, (await app.enqueue("known")).id)
        assert (await find_live(database, ref.id)) == row


async def test_without_any_worker_the_job_simply_waits(newer: App, database: Database) -> None:
    ref = await newer.enqueue("added")
    async with running_maintenance(newer):
        assert await value(database, "SELECT state FROM tidemill.job WHERE id = $1", ref.id) == "ready"


async def test_a_worker_that_knows_the_task_but_not_the_queue_does_not_take_it(app: App, newer: App, database) -> None:
    async with running_maintenance(app), running_worker(app), running_worker(newer, ["elsewhere"]):
        ref = await newer.enqueue("added")
        await eventually(lambda: no_worker(database, ref.id))
        await finished(database, (await newer.enqueue("known", queue="elsewhere")).id)
        assert await no_worker(database, ref.id) is not None


async def test_a_job_that_needs_what_the_machine_does_not_have_waits_for_a_worker_that_has_it(
    app: App, database: Database, tmp_path: Path
) -> None:
    pages = Pipeline("pages", root=tmp_path, queue="shared")

    @app.task(queue="shared", resources={"cpu": 1000, "scanner": 2})
    async def scan() -> str:
        return "scanned"

    @pages.stage(input="in/{page}.txt", output="out/{page}.txt", resources={"memory": "1000 TB"})
    def page(entity: Any, text: str) -> str: ...

    app.pipeline(pages)
    ref = await app.enqueue(scan.call())
    async with running_worker(app) as worker:
        row = await eventually(lambda: no_worker(database, ref.id))
        assert row["note"] == "task scan needs scanner 2, and this machine has none: waiting for a worker that has it"
        assert worker.work.runner.missing["pages/page"].startswith("memory 1000 TB, and this machine has ")
        told = await show_job(database, ref.id)
        assert told is not None
        assert (told["serving"], told["knowing"]) == (1, 0)
        app.declarations.configure(resources={"scanner": 2})
        async with running_worker(app):
            assert (await finished(database, ref.id))["result"] == b'"scanned"'
