"""A lease is the only claim to be alive: when it lapses another process takes over and the stale owner is fenced."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime
from typing import Any

import pytest

from tests.support import (
    attempts_of,
    eventually,
    find_history,
    find_live,
    find_worker,
    finished,
    held_by,
    lapse,
    open_gate,
    puppet,
    running,
    running_maintenance,
    value,
    worker_process,
)
from tests.support.server import private_server
from tests.support.task_app import TABLES, declare
from tests.support.waiting import PATIENT
from tidemill import App
from tidemill.engine.containment.exit_status import EXIT_FENCED
from tidemill.engine.roles.maintenance import Maintenance
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.jobs.workers import end_worker, expire_lease, renew_lease
from tidemill.store.migrate import migrate

LEASE = 1.0


@pytest.fixture
def app(app: App) -> App:
    declare(app)
    return app


async def test_a_lapsed_lease_is_taken_over_and_the_stale_owner_changes_nothing(
    app: App, database_url: str, executions: Database
) -> None:
    """A process stands still for longer than its lease, comes back, and finishes what is no longer its own."""
    ref = await app.enqueue("until_open", gate="go")
    async with running_maintenance(app), worker_process(database_url, ["throttled"]) as stale:
        await eventually(lambda: attempts_of(executions, ref.id))
        stale.freeze()
        await lapse(executions, stale.pid)
        async with worker_process(database_url, ["throttled"]) as heir:
            row = await eventually(lambda: held_by(executions, ref.id, heir.worker_id))
            assert row is not None
            assert (row["attempt"], row["losses"], row["failures"]) == (2, 1, 0)
            await eventually(lambda: executed(executions, ref.id, [1, 2]))
            await open_gate(executions, "go")
            done = dict(await finished(executions, ref.id))
            assert (done["state"], done["attempt"], done["worker_id"]) == ("succeeded", 2, heir.worker_id)

            stale.thaw()

            assert await stale.ends() == EXIT_FENCED
            assert "fenced" in stale.said
            assert heir.exit_status is None
    assert await find_live(executions, ref.id) is None
    assert [dict(row) for row in await find_history(executions, ref.id)] == [done]
    assert (done["losses"], done["failures"]) == (1, 0)
    assert json.loads(done["result"])["attempt"] == 2
    lost = await find_worker(executions, stale.worker_id)
    assert (lost["status"], lost["end_reason"]) == ("lost", "its lease lapsed")


async def test_a_killed_worker_is_a_loss_and_not_a_failed_attempt(
    app: App, database_url: str, executions: Database
) -> None:
    """The task allows one attempt only: losing its worker does not use it up, and the count of claims goes on."""
    ref = await app.enqueue("until_open", gate="go")
    async with running_maintenance(app):
        for attempt in (1, 2):
            async with worker_process(database_url, ["throttled"]) as victim:
                row = await eventually(lambda victim=victim: held_by(executions, ref.id, victim.worker_id))
                assert row is not None
                assert (row["attempt"], row["losses"], row["failures"]) == (attempt, attempt - 1, 0)
                victim.kill()
                await lapse(executions, victim.pid)
        await open_gate(executions, "go")
        async with worker_process(database_url, ["throttled"]):
            done = await finished(executions, ref.id)
    assert (done["state"], done["attempt"], done["losses"], done["failures"]) == ("succeeded", 3, 2, 0)
    assert [error["kind"] for error in json.loads(done["errors"])] == ["WorkerLost", "WorkerLost"]


async def test_a_job_that_kills_its_workers_is_failed_with_the_reason(
    app: App, database_url: str, executions: Database
) -> None:
    ref = await app.enqueue("deadly", gate="never")
    async with running_maintenance(app):
        for _ in range(2):
            async with worker_process(database_url, ["throttled"]) as victim:
                await eventually(lambda victim=victim: held_by(executions, ref.id, victim.worker_id))
                victim.kill()
                await lapse(executions, victim.pid)
                await eventually(lambda victim=victim: is_lost(executions, victim.worker_id))
        done = await finished(executions, ref.id)
    assert (done["state"], done["attempt"], done["losses"], done["failures"]) == ("failed", 2, 2, 0)
    assert done["note"] == "its worker died 2 times while running it"
    errors = json.loads(done["errors"])
    assert [(error["attempt"], error["kind"]) for error in errors] == [(1, "WorkerLost"), (2, "WorkerLost")]
    assert "stopped renewing its lease" in errors[0]["message"]


@pytest.mark.parametrize("way", ["sleeping", "computing"])
async def test_a_busy_event_loop_does_not_lose_its_lease(
    app: App, database_url: str, executions: Database, way: str
) -> None:
    """It is renewed from a thread of its own, again and again, for as long as the loop stands still."""
    async with running_maintenance(app), worker_process(database_url, ["blocking"]) as worker:
        ref = await app.enqueue("block_loop", gate="go", computing=way == "computing")
        await eventually(lambda: attempts_of(executions, ref.id))
        for _ in range(4):
            seen = (await find_worker(executions, worker.worker_id))["lease_until"]
            await eventually(lambda seen=seen: renewed_after(executions, worker.worker_id, seen))
        await open_gate(executions, "go")
        done = await finished(executions, ref.id)
        assert (done["state"], done["attempt"], done["losses"]) == ("succeeded", 1, 0)
        assert worker.exit_status is None
        assert (await find_worker(executions, worker.worker_id))["ended_at"] is None
    assert await attempts_of(executions, ref.id) == [1]


async def test_an_ended_incarnation_can_never_renew_its_lease(app: App, database: Database) -> None:
    async with puppet(database, "throttled", lease=LEASE) as worker, database.acquire() as connection:

        async def renew() -> bool:
            return await renew_lease(
                database, connection, worker.worker_id, lease_seconds=LEASE, status="running", running=0
            )

        assert await renew()
        await worker.fall_silent()
        assert await renew(), "late, but nobody had noticed"
        await worker.fall_silent()
        async with running_maintenance(app):
            await eventually(lambda: is_lost(database, worker.worker_id))
        assert not await renew()
        assert not await renew()


async def test_an_ended_incarnation_can_claim_nothing(app: App, database: Database) -> None:
    """Its jobs have been settled: whatever it claimed now would be in nobody's hands."""
    async with puppet(database, "throttled", lease=LEASE) as worker, puppet(database, "throttled") as heir:
        await worker.fall_silent()
        async with running_maintenance(app):
            await eventually(lambda: is_lost(database, worker.worker_id))
        ref = await app.enqueue("until_open", gate="never")
        assert await worker.claim() == []
        assert [job.id for job in await heir.claim()] == [ref.id]


async def test_a_claim_that_commits_after_its_worker_was_ended_is_found_within_a_few_rounds(
    app: App, database: Database
) -> None:
    """It was under way when the lease lapsed: too late for the sweep that ended the worker, so another must see it."""
    async with running_maintenance(app, sweep_seconds=0.05), puppet(database, "throttled", lease=LEASE) as worker:
        ref = await app.enqueue("until_open", gate="never")
        await worker.claim()
        await database.fetch("UPDATE tidemill.worker SET ended_at = now() WHERE id = $1", worker.worker_id)
        await eventually(lambda: is_ready(database, ref.id))
        row = await find_live(database, ref.id)
        assert row is not None
        assert (row["losses"], row["suspicions"]) == (0, 0), "it did not run, and its worker did not die of it"


@pytest.mark.parametrize("end", ["by itself", "killed"])
async def test_a_process_for_suspects_that_ends_with_its_worker_counts_against_no_job(
    app: App, database: Database, end: str
) -> None:
    """It ends because the worker does that has started it, whatever it runs."""
    async with puppet(database, "other", pid=71) as worker, puppet(database, "throttled", parent_pid=71) as quarantine:
        ref = await app.enqueue("until_open", gate="never")
        await quarantine.claim()
        await database.fetch("UPDATE tidemill.job SET suspicions = 3 WHERE id = $1", ref.id)
        if end == "killed":
            await expire_lease(database, "puppet", 71)
        else:
            await end_worker(database, worker.worker_id, "ended itself")
        await quarantine.fall_silent()
        await Maintenance(database, app.settings.maintenance()).sweep()
        row = await find_live(database, ref.id)
    assert row is not None
    assert (row["state"], row["losses"], row["suspicions"]) == ("ready", 0, 3)


async def test_a_living_workers_jobs_are_not_reclaimed(app: App, database: Database) -> None:
    async with puppet(database, "throttled") as worker:
        ref = await app.enqueue("until_open", gate="never")
        (job,) = await worker.claim()
        maintenance = Maintenance(database, app.settings.maintenance())
        await maintenance.sweep()
        await maintenance.clean_up()
        row = await find_live(database, ref.id)
        assert row is not None
        assert (row["state"], row["attempt"], row["worker_id"]) == ("running", 1, worker.worker_id)
        assert await worker.finish(job) == [job.id]


async def test_after_a_database_restart_every_worker_gets_one_lease_to_come_back() -> None:
    """While the database was away nobody could renew: that alone must not cost anybody their jobs."""
    lease = 1.5
    with private_server() as server:
        app = App("test", database_url=server.dsn)
        declare(app)
        database = Database(DatabaseSettings(url=server.dsn))
        async with database:
            await migrate(database)
            await database.run(lambda connection: connection.execute(TABLES))
            async with puppet(database, "throttled") as worker:
                ref = await app.enqueue("until_open", gate="never")
                await worker.claim()
                await worker.fall_silent()
            restart_at_once(server)
            async with running_maintenance(app, sweep_seconds=0.05, lease_seconds=lease):
                await eventually(lambda: is_lost(database, worker.worker_id))
            waited = await value(
                database,
                "SELECT extract(epoch FROM ended_at - pg_postmaster_start_time())::float8 "
                "FROM tidemill.worker WHERE id = $1",
                worker.worker_id,
            )
            assert waited >= lease
            row = await find_live(database, ref.id)
            assert row is not None
            assert (row["state"], row["losses"]) == ("ready", 1)
        await app.close()


async def test_a_worker_that_lives_through_a_database_restart_keeps_its_job() -> None:
    with private_server() as server:
        app = App("test", database_url=server.dsn, **PATIENT)
        declare(app)
        async with Database(DatabaseSettings(url=server.dsn)) as database:
            await migrate(database)
            await database.run(lambda connection: connection.execute(TABLES))
            ref = await app.enqueue("until_open", gate="go")
            serving = worker_process(server.dsn, ["throttled"])
            async with running_maintenance(app, lease_seconds=PATIENT["lease_seconds"]), serving as worker:
                await running(database, ref.id)
                await eventually(lambda: attempts_of(database, ref.id))
                restart_at_once(server)
                await eventually(lambda: renewed_since_start(database, worker.worker_id))
                await open_gate(database, "go")
                done = await finished(database, ref.id)
                assert (done["state"], done["attempt"], done["losses"]) == ("succeeded", 1, 0)
            assert await attempts_of(database, ref.id) == [1]
        await app.close()


def restart_at_once(server: Any) -> None:
    """Crash the server and bring it back."""
    os.kill(server.pid, signal.SIGQUIT)
    server.ensure()


async def executed(database: Database, job_id: int, attempts: list[int]) -> bool:
    return await attempts_of(database, job_id) == attempts


async def is_ready(database: Database, job_id: int) -> bool:
    return (await find_live(database, job_id) or {}).get("state") == "ready"


async def is_lost(database: Database, worker_id: int) -> bool:
    return await value(database, "SELECT status FROM tidemill.worker WHERE id = $1", worker_id) == "lost"


async def renewed_after(database: Database, worker_id: int, until: datetime) -> bool:
    return (await find_worker(database, worker_id))["lease_until"] > until


async def renewed_since_start(database: Database, worker_id: int) -> bool:
    return await value(
        database, "SELECT seen_at > pg_postmaster_start_time() FROM tidemill.worker WHERE id = $1", worker_id
    )
