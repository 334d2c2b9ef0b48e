"""Workers as others see them: registered, silent, flagged, and back again."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

import msgspec
import structlog

from tests.support import eventually, finished, running, running_maintenance, running_worker, value, worker_process
from tidemill import App, __version__
from tidemill.store.database import Database
from tidemill.store.jobs.workers import list_workers


async def test_a_worker_tells_who_it_is_and_says_goodbye(app: App, database: Database) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    async with running_worker(app, ["mail", "fetch"], max_concurrency=7) as worker:
        (row,) = await list_workers(database)
        assert (row["id"], row["host"], row["pid"]) == (worker.worker_id, socket.gethostname(), os.getpid())
        assert (row["queues"], row["tasks"], row["max_concurrency"]) == (["mail", "fetch"], 1, 7)
        assert msgspec.json.decode(row["versions"]) == {
            "tidemill": __version__, "python": platform.python_version(),
        }  # fmt: skip
        assert (row["status"], row["ended_at"], row["flagged_at"]) == ("running", None, None)
        first = row["seen_at"]
        await eventually(lambda: value(database, "SELECT seen_at > $1 FROM tidemill.worker", first))
    (row,) = await list_workers(database)
    assert (row["status"], row["end_reason"], row["running"]) == ("ended", "stopped", 0)


async def test_every_life_of_a_worker_has_an_id_of_its_own(app: App, database: Database) -> None:
    ids = []
    for _ in range(3):
        async with running_worker(app, ["mail"]) as worker:
            ids.append(worker.worker_id)
    assert ids == sorted(set(ids))


async def test_a_frozen_worker_with_a_running_job_is_flagged_and_cleared_when_it_comes_back(
    app: App, executions: Database, database_url: str
) -> None:
    @app.task(queue="throttled")
    async def until_open(gate: str) -> dict: ...

    with structlog.testing.capture_logs() as lines:  # All the time: a slow machine may have it flagged before.
        async with (
            worker_process(database_url, ["throttled"], lease_seconds=60) as process,
            running_maintenance(app, silence_seconds=0.8, lease_seconds=60.0),
        ):
            ref = await app.enqueue(until_open, "g")
            await running(executions, ref.id)
            process.freeze()
            await eventually(lambda: flagged(executions, process.worker_id))
            *_, line = await eventually(lambda: [line for line in lines if "DEAD WORKER" in line["event"]])
            process.thaw()
            await eventually(lambda: unflagged(executions, process.worker_id))
            await executions.fetch("INSERT INTO gate VALUES ('g')")
            row = await finished(executions, ref.id)
    assert line["log_level"] == "error"
    assert f":{process.pid}#{process.worker_id}" in line["worker"]
    assert line["queues"] == ["throttled"]
    assert line["silent_for"] >= 0.8
    assert (row["state"], row["attempt"], row["losses"]) == ("succeeded", 1, 0)


async def test_a_silent_worker_without_running_jobs_is_not_flagged(app: App, executions, database_url: str) -> None:
    async with (
        worker_process(database_url, ["throttled"], lease_seconds=60) as idle,
        running_maintenance(app, silence_seconds=0.5) as rounds,
    ):
        idle.freeze()
        await eventually(lambda: value(executions, "SELECT seen_at < now() - interval '1 second' FROM tidemill.worker"))
        await rounds.work.sweep()
        assert await unflagged(executions, idle.worker_id)
        idle.thaw()


async def flagged(database: Database, worker_id: int) -> Any:
    return await value(database, "SELECT flagged_at FROM tidemill.worker WHERE id = $1", worker_id)


async def unflagged(database: Database, worker_id: int) -> bool:
    return await value(
        database, "SELECT flagged_at IS NULL AND ended_at IS NULL FROM tidemill.worker WHERE id = $1", worker_id
    )
