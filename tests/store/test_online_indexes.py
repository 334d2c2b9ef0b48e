"""Indexes of large tables are built while everything goes on writing, and again after a build that was killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import date, timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.support import eventually, value
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.maintenance import maintenance_role
from tidemill.store.database import Connection, Database, DatabaseSettings
from tidemill.store.jobs.history.partitions import make_partitions
from tidemill.store.maintenance import online_indexes
from tidemill.store.maintenance.check import find_misfits
from tidemill.store.maintenance.online_indexes import read_indexes
from tidemill.store.migrate import OWN_CHAIN, build_indexes, downgrade, migrate

BEFORE = 55  # The last migration before the first one with online indexes.
FOLLOWS = ["event_log_follows", "job_cause", "job_history_cause", "run_cause"]

VALID = """
SELECT c.relname::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE c.relname ~ '_(follows|cause)$' AND c.relnamespace = 'tidemill'::regnamespace AND i.indisvalid
      AND NOT c.relispartition ORDER BY 1
"""
BUILDS = "SELECT count(*) FROM pg_stat_progress_create_index"
FILL = """
INSERT INTO tidemill.job (queue, task, args, origin)
SELECT 'default', 'noop', '{}', json_build_object('parent', 'j' || n) FROM generate_series(1, 1000) AS n
"""
ONE_JOB = (
    """INSERT INTO tidemill.job (queue, task, args, origin) VALUES ('default', 'noop', '{}', '{"parent": "j7"}')"""
)


@pytest.fixture
async def large(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database whose tables count as large, migrated without the online indexes."""
    monkeypatch.setattr(online_indexes, "SMALL_BYTES", -1)
    monkeypatch.setattr(online_indexes, "WAIT_FOR_OTHER", 0.05)
    async with Database(DatabaseSettings(url=empty_database_url)) as opened:
        await migrate(opened, to=BEFORE)
        await make_partitions(opened, date.today())
        await opened.fetch(FILL)
        await migrate(opened)
        assert await names(opened) == []
        yield opened


async def names(database: Database) -> list[str]:
    return [row[0] for row in await database.fetch(VALID)]


async def write(database: Database) -> None:
    """A writer that does not wait for long."""
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL lock_timeout = '5s'")
        await connection.execute(ONE_JOB)


async def hold(database: Database) -> Connection:
    """A transaction that has written, and that a build waits for."""
    connection = await database.connect()
    await connection.execute(f"BEGIN; {ONE_JOB}")
    return connection


async def test_the_indexes_of_small_tables_are_built_by_the_migration(empty_database_url: str) -> None:
    async with Database(DatabaseSettings(url=empty_database_url)) as database:
        await migrate(database)
        assert await names(database) == FOLLOWS
        assert await build_indexes(database) == []
        await downgrade(database, to=BEFORE)
        assert await names(database) == []


async def test_writers_go_on_while_the_indexes_of_large_tables_are_built(large: Database) -> None:
    holder = await hold(large)
    building = asyncio.create_task(build_indexes(large))
    try:
        await eventually(lambda: value(large, BUILDS), what="a build has begun")
        for _ in range(20):
            await write(large)
        await make_partitions(large, date.today() + timedelta(days=30))
        assert not building.done()
    finally:
        await holder.execute("COMMIT")
        await holder.close()
    declared = read_indexes([migration.up for migration in OWN_CHAIN.migrations()], "tidemill")
    assert await building == [index.full_name for index in declared]
    assert await names(large) == FOLLOWS
    unindexed = await large.fetch(
        online_indexes.UNINDEXED_PARTITIONS, "tidemill.job_history", "tidemill.job_history_cause"
    )
    assert unindexed == []
    assert await find_misfits(large) == []


async def test_a_build_that_was_killed_is_done_again(large: Database) -> None:
    holder = await hold(large)
    building = asyncio.create_task(build_indexes(large))
    await eventually(lambda: value(large, BUILDS), what="a build has begun")
    await value(large, "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_create_index")
    with pytest.raises((asyncpg.PostgresError, OSError, asyncpg.InterfaceError)):
        await building
    await holder.execute("COMMIT")
    await holder.close()
    left = "SELECT count(*) FROM pg_index WHERE indexrelid = 'tidemill.job_cause'::regclass AND NOT indisvalid"
    assert await value(large, left) == 1
    assert "tidemill db migrate" in next(each.advice for each in await find_misfits(large))
    await build_indexes(large)
    assert await names(large) == FOLLOWS
    assert await find_misfits(large) == []


async def test_two_processes_that_build_at_once_build_each_index_once(large: Database) -> None:
    holder = await hold(large)
    both = asyncio.gather(build_indexes(large), build_indexes(large))
    await eventually(lambda: value(large, BUILDS), what="a build has begun")
    await holder.execute("COMMIT")
    await holder.close()
    await both
    assert await names(large) == FOLLOWS


async def test_maintenance_sweeps_while_it_builds_the_indexes(large: Database) -> None:
    holder = await hold(large)
    try:
        role = maintenance_role(large)
        running = asyncio.create_task(role.run())
        await role.life.wait_ready()  # It has swept once.
        await eventually(lambda: value(large, BUILDS), what="a build has begun")
        await holder.execute("COMMIT")

        async def built() -> bool:
            return await names(large) == FOLLOWS

        await eventually(built)
        role.stop()
        await running
    finally:
        await holder.close()


def test_only_indexes_are_built_online(tmp_path: Path) -> None:
    (tmp_path / "0001_a.online.sql").write_text(
        "-- why\nCREATE INDEX a ON tidemill.job (id);\nDROP TABLE tidemill.job;"
    )
    with pytest.raises(ConfigError, match="only `CREATE INDEX name ON"):
        read_indexes([tmp_path / "0001_a.sql"], "tidemill")


#: Tables that stay small in any installation: their indexes may be built by a migration itself.
SMALL_TABLES = {"schedule", "worker", "queue", "declared", "account", "token"}


def test_no_later_migration_locks_the_writers_of_a_large_table() -> None:
    made = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+) ON tidemill\.(\w+)", re.MULTILINE)
    checked = re.compile(r"ADD CONSTRAINT (\w+)\s+(?:CHECK|FOREIGN KEY)(?:(?!;).)*;", re.DOTALL)
    for migration in OWN_CHAIN.migrations()[BEFORE:]:
        text = migration.up.read_text()
        new = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?tidemill\.(\w+)", text))
        locking = [f"index {index}" for index, table in made.findall(text) if table not in new | SMALL_TABLES]
        locking += [f"constraint {each[1]}" for each in checked.finditer(text) if "NOT VALID" not in each[0]]
        assert not locking, (
            f"{migration.up.name} keeps writers waiting for {', '.join(locking)}: put indexes of tables that may be "
            f"large into {migration.up.stem}.online.sql, and add constraints NOT VALID"
        )
