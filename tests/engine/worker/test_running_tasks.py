"""Tasks at work: on the loop or in threads, each in a context of its own, whatever they do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path

import msgspec
import pytest

from tests.support import eventually, finished, rough_app, running_worker, value, worker_process
from tidemill import App, Discard, RetryAfter, Snooze, current_job
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")
HARD = "nul \x00 and half a pair \ud800"


async def test_a_plain_task_runs_in_a_thread_and_sees_its_job(app: App, database: Database) -> None:
    @app.task(queue="plain")
    def tell() -> dict:
        job = current_job()
        return {"thread": threading.current_thread().name, "job": job.id, "queue": job.queue, "task": job.task}

    async with running_worker(app):
        ref = await app.enqueue(tell)
        result = (await app.wait(ref, timeout=120)).result
    assert result["thread"] != threading.main_thread().name
    assert (result["job"], result["queue"], result["task"]) == (ref.id, "plain", "tell")


async def test_an_async_task_runs_on_the_loop_and_sees_its_job(app: App, database: Database) -> None:
    loop = asyncio.get_running_loop()

    @app.task
    async def tell() -> dict:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        return {"job": current_job().id, "attempt": current_job().attempt}

    async with running_worker(app):
        refs = [await app.enqueue(tell) for _ in range(20)]
        for ref in refs:
            assert (await app.wait(ref, timeout=120)).result == {"job": ref.id, "attempt": 1}


async def test_plain_tasks_run_at_the_same_time(app: App, database: Database) -> None:
    meeting = threading.Barrier(4, timeout=150)

    @app.task
    def meet() -> None:
        meeting.wait()

    async with running_worker(app, max_concurrency=4):
        for ref in [await app.enqueue(meet) for _ in range(4)]:
            assert (await finished(database, ref.id))["state"] == "succeeded"


async def test_no_more_jobs_run_at_once_than_the_concurrency(app: App, database: Database) -> None:
    inside, most = 0, 0

    @app.task
    async def visit() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.002)
        inside -= 1

    await app.enqueue_many(visit, ({} for _ in range(200)))
    async with running_worker(app, max_concurrency=3):
        await eventually(lambda: value(database, "SELECT count(*) = 200 FROM tidemill.job_history"))
    assert most == 3


def test_there_is_no_current_job_outside_of_a_job() -> None:
    with pytest.raises(ConfigError, match="outside of a job"):
        current_job()


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_one_job_leaves_in_its_context_the_next_does_not_see(app: App, database, kind: str) -> None:
    seen: list[str] = []

    def paint(wanted: str) -> None:
        seen.append(colour.get())
        colour.set(wanted)

    async def paint_async(wanted: str) -> None:
        paint(wanted)

    app.task(name="paint")(paint_async if kind == "async" else paint)
    refs = await app.enqueue_many("paint", ({"wanted": f"colour {n}"} for n in range(20)))
    async with running_worker(app, max_concurrency=1):
        for ref in refs:
            await finished(database, ref.id)
    assert seen == ["none"] * 20


async def test_a_task_that_cancels_itself_has_failed(app: App, database: Database) -> None:
    @app.task
    async def give_up() -> None:
        raise asyncio.CancelledError

    async with running_worker(app):
        row = await finished(database, (await app.enqueue(give_up)).id)
    assert row["state"] == "failed"
    assert row["note"].startswith("the task cancelled itself")


# Rough tasks: whatever a task does, its job ends and the worker goes on.


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Traced(Exception):
    trace = ("attributes", "that only look like ours")
    lineage = 7


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError(HARD), id="value"),
        pytest.param(Discard(HARD), id="discard"),
        pytest.param(RetryAfter(0.01, HARD), id="retry after"),
        pytest.param(Snooze("30d", HARD), id="snooze"),
        pytest.param(Snooze(3e9, "for ever"), id="long snooze"),
        pytest.param(RetryAfter(3e9, "for ever"), id="long retry after"),
        pytest.param(Speechless(), id="speechless"),
        pytest.param(Traced(), id="traced"),
        pytest.param(BaseExceptionGroup("several", [ValueError(), KeyError()]), id="group"),
        pytest.param(GeneratorExit(), id="generator exit"),
    ],
)
async def test_an_error_of_any_shape_ends_its_attempt_and_the_worker_goes_on(
    app: App, database: Database, error: BaseException
) -> None:
    @app.task(retry=app.retry(2, backoff="30d", cap="30d"))
    async def rough() -> None:
        raise error

    @app.task
    async def fine() -> None: ...

    async with running_worker(app, max_concurrency=1):
        ref = await app.enqueue(rough)
        for _ in range(2):
            assert (await finished(database, (await app.enqueue(fine)).id))["state"] == "succeeded"
        rows = await database.fetch(STATE, ref.id)
        assert rows[0]["state"] in ("ready", "failed")


STATE = "SELECT state FROM tidemill.job WHERE id = $1 UNION ALL SELECT state FROM tidemill.job_history WHERE id = $1"


@pytest.mark.parametrize("task", ["exit_async", "exit_plain", "interrupt"])
async def test_a_task_that_wants_to_end_the_program_only_ends_its_job(database_url, database, task: str) -> None:
    app = rough_app.app
    app.declarations.configure(database_url=database_url)
    try:
        async with worker_process(database_url, ["exits"], max_concurrency=1, app=Path(rough_app.__file__)) as process:
            ref = await app.enqueue(task)
            row = await finished(database, ref.id)
            assert row["state"] == "failed"
            assert process.exit_status is None
            assert (await finished(database, (await app.enqueue("fine")).id))["state"] == "succeeded"
    finally:
        await app.close()
    (error,) = msgspec.json.decode(row["errors"])
    assert error["kind"] in ("SystemExit", "KeyboardInterrupt")
