"""Progress while a job runs, and what remains of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.support import eventually, find_live, finished, running_worker
from tidemill import App, current_job
from tidemill.store.database import Database
from tidemill.store.jobs.read import running_with_progress, show_job


@pytest.fixture
def go_on() -> threading.Event:
    return threading.Event()


async def shown(database: Database, job_id: int, fraction: float) -> Any:
    row = await find_live(database, job_id)
    return row if row is not None and row["progress"] == pytest.approx(fraction) else None


async def test_progress_and_message_are_visible_while_an_async_job_runs(app: App, database: Database) -> None:
    step = asyncio.Event()

    @app.task
    async def export() -> str:
        current_job().report(0.25, "first quarter")
        await step.wait()
        current_job().report(0.75)
        return "done"

    async with running_worker(app) as worker:
        ref = await app.enqueue(export)
        row = await eventually(lambda: shown(database, ref.id, 0.25))
        assert row["note"] == "first quarter"
        (listed,) = await running_with_progress(database)
        assert (listed["id"], listed["task"], listed["note"]) == (ref.id, "export", "first quarter")
        told = await show_job(database, ref.id)
        assert told is not None
        assert (told["worker_host"], told["worker_id"]) == (worker.work.host, worker.worker_id)
        step.set()
        past = await finished(database, ref.id)
    assert (past["result"], past["note"]) == (b'"done"', "first quarter")


async def test_progress_of_a_plain_task_is_visible_from_its_thread(app: App, database: Database, go_on) -> None:
    @app.task
    def export() -> None:
        for chunk in (1, 2):
            current_job().report(chunk / 4, f"chunk {chunk}")
        go_on.wait(60)

    async with running_worker(app):
        ref = await app.enqueue(export)
        row = await eventually(lambda: shown(database, ref.id, 0.5))
        assert row["note"] == "chunk 2"
        go_on.set()
        await finished(database, ref.id)


async def test_a_message_alone_is_progress_too(app: App, database: Database, go_on) -> None:
    @app.task
    def export() -> None:
        current_job().report(message="warming up")
        go_on.wait(60)

    async with running_worker(app):
        ref = await app.enqueue(export)
        row = await eventually(lambda: noted(database, ref.id))
        assert (row["note"], row["progress"]) == ("warming up", None)
        go_on.set()
        await finished(database, ref.id)


async def noted(database: Database, job_id: int) -> Any:
    row = await find_live(database, job_id)
    return row if row is not None and row["note"] else None


async def test_progress_outside_of_0_to_1_is_shown_as_the_nearest(app: App, database: Database, go_on) -> None:
    @app.task
    def export() -> None:
        current_job().report(17)
        go_on.wait(60)

    async with running_worker(app):
        ref = await app.enqueue(export)
        await eventually(lambda: shown(database, ref.id, 1.0))
        go_on.set()
        await finished(database, ref.id)


async def test_a_new_attempt_starts_without_the_progress_of_the_last(app: App, database: Database, go_on) -> None:
    @app.task(retry=app.retry(2, backoff=0.01))
    async def export() -> None:
        if current_job().attempt == 1:
            current_job().report(0.9, "nearly")
            await eventually(lambda: shown(database, current_job().id, 0.9))
            raise ValueError
        await eventually(go_on.is_set)

    async with running_worker(app):
        ref = await app.enqueue(export)
        row = await eventually(lambda: second_attempt(database, ref.id))
        assert (row["progress"], row["note"]) == (None, None)
        go_on.set()
        await finished(database, ref.id)


async def second_attempt(database: Database, job_id: int) -> Any:
    row = await find_live(database, job_id)
    return row if row is not None and row["state"] == "running" and row["attempt"] == 2 else None


@pytest.mark.parametrize("message", ["nul \x00 inside", "half a pair \ud800", 17, b"bytes"], ids=repr)
async def test_a_message_that_cannot_be_stored_does_not_harm_the_worker(
    app: App, database: Database, message: Any
) -> None:
    @app.task
    async def rough() -> str:
        current_job().report(0.5, message)
        await eventually(lambda: shown(database, current_job().id, 0.5))
        return "fine"

    @app.task
    async def other() -> None: ...

    async with running_worker(app, max_concurrency=1):
        rough_ref, other_ref = await app.enqueue(rough), await app.enqueue(other)
        assert (await finished(database, rough_ref.id))["state"] in ("succeeded", "failed")
        assert (await finished(database, other_ref.id))["state"] == "succeeded"
