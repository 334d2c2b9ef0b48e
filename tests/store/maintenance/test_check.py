"""`tidemill db check` finds rows that do not fit together, each kind by itself, and nothing in a healthy database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.support.cli import make_folder, run
from tidemill.store.database import Database
from tidemill.store.maintenance.check import CHECKS, find_misfits

LONG_AGO = "now() - interval '1 hour'"
JOB = (
    "INSERT INTO tidemill.job (queue, task, args, priority, due_at, created_at, started_at, state{columns}) "
    f"VALUES ('q', 't', '{{{{}}}}', 5, {LONG_AGO}, {LONG_AGO}, {LONG_AGO}, {{values}})"
)

DAMAGE = {
    "silent-workers": [
        "INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until) "
        f"VALUES ('h', 1, '{{q}}', '{{t}}', 1, '{{}}', {LONG_AGO})"
    ],
    "jobs-without-worker": [JOB.format(columns=", worker_id", values="'running', 77")],
    "runs-without-worker": [
        "INSERT INTO tidemill.run (workflow, kind, version, state, owner, input) "
        "VALUES ('w', 'flow', '1', 'running', 77, '{}')"
    ],
    "jobs-without-run": [JOB.format(columns=", run_id, work", values="'ready', 99, 1")],
    "messages-without-run": ["INSERT INTO tidemill.inbox (run_id, data) VALUES (99, '{}')"],
    "stuck-concurrency-keys": [JOB.format(columns=", concurrency_key, max_concurrency", values="'throttled', 'k', 1")],
    "late-schedules": [
        "INSERT INTO tidemill.schedule (name, task, queue, spec, job, catchup, jitter, decided, next_fire) "
        f"VALUES ('s', 't', 'q', '{{}}', '{{}}', 'one', 0, 0, {LONG_AGO})"
    ],
    "sequences": [
        JOB.format(columns="", values="'ready'"),
        "UPDATE tidemill.job SET id = 1000",
    ],
    "indexes": ["UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tidemill.job_pkey'::regclass"],
}


async def test_a_healthy_database_has_no_findings(database: Database) -> None:
    assert await find_misfits(database) == []


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_found_and_named(database: Database, name: str) -> None:
    for statement in DAMAGE[name]:
        await database.fetch(statement)
    (found,) = await find_misfits(database)
    assert (found.check, found.count, len(found.examples)) == (name, 1, 1)


async def test_a_forgotten_transaction_is_found(database: Database, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        async with connection.transaction():
            await connection.fetchval("SELECT 1")
            await asyncio.sleep(0)
            (found,) = await find_misfits(database, settled=0.0)
        assert found.check == "open-transactions"
    finally:
        await connection.close()


def test_every_check_is_tested() -> None:
    assert {check.name for check in CHECKS} == {*DAMAGE, "open-transactions"}


async def test_the_command_says_what_to_do_and_returns_one(
    tmp_path: Path, database: Database, database_url: str
) -> None:
    folder = make_folder(tmp_path, database_url=database_url)
    done = run(folder, "db", "check")
    assert (done.returncode, done.stdout.strip()) == (0, "everything fits together")
    await database.fetch(DAMAGE["messages-without-run"][0])
    done = run(folder, "db", "check")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "messages to runs that do not exist (1): r99\n  the runs were deleted or not restored"
    )
