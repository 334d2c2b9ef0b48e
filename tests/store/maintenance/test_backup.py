"""Backups of a working database: restored elsewhere, every row is there and the work goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
import pytest

from tests.support.cli import run
from tests.support.external import External
from tests.support.shop import Ask, Go, shop
from tidemill.core.errors import ConfigError
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.maintenance.backup import back_up, restore


async def test_a_backup_of_a_working_database_is_restored_and_its_work_goes_on(
    empty_database_url: str, database_url: str, tmp_path: Path
) -> None:
    source, target = shop(database_url), shop(empty_database_url)
    async with source.running():
        run = await source.start(Ask)
        before = [await source.enqueue("double", number=number, delay="1h") for number in range(20)]

        async def keep_enqueueing() -> None:
            while True:
                await source.enqueue("double", number=1)

        load = asyncio.create_task(keep_enqueueing())
        async with source.database() as database:
            report = await back_up(database, tmp_path / "backup")
        load.cancel()
        await asyncio.wait([load])
    await source.close()
    assert report.rows > 20
    async with Database(DatabaseSettings(url=empty_database_url)) as database:
        restored = await restore(database, tmp_path / "backup")
    assert (restored.tables, restored.rows) == (report.tables, report.rows)
    async with target.running():
        assert (await target.jobs.get(before[-1].id)).state == "ready"
        job = await target.enqueue("double", number=21)
        assert await job == 42
        assert job.id > before[-1].id
        again = await target.runs.get(run.id)
        await again.send_event(Go(answer=7))
        assert await again == 7
    await target.close()


async def test_a_restore_needs_a_whole_backup_and_an_empty_database(
    empty_database_url: str, database: Database, tmp_path: Path
) -> None:
    await back_up(database, tmp_path / "backup")
    with pytest.raises(ConfigError, match="is not empty"):
        await back_up(database, tmp_path / "backup")
    with pytest.raises(ConfigError, match="tables, such as"):
        await restore(database, tmp_path / "backup")
    async with Database(DatabaseSettings(url=empty_database_url)) as empty:
        with pytest.raises(ConfigError, match="not a complete backup"):
            await restore(empty, tmp_path)
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0


def test_everything_moves_to_an_older_server_by_command(database_url: str, external: External, tmp_path: Path) -> None:
    with psycopg.connect(external.url(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS moved")
        admin.execute("CREATE DATABASE moved")
    app = shop(database_url)
    job = app.enqueue_sync("double", number=4)
    try:
        refused = run(tmp_path, "db", "move", "--to", external.url("moved"), "--database-url", database_url)
        assert refused.returncode == 1
        assert "is in use by tidemill shop" in refused.stderr
    finally:
        app.close_sync()
    moved = run(tmp_path, "db", "move", "--to", external.url("moved"), "--database-url", database_url)
    assert moved.returncode == 0, moved.stderr
    assert "moved " in moved.stdout
    shown = run(tmp_path, "job", str(job.id), "--database-url", external.url("moved"), "--application", "shop")
    assert (shown.returncode, "double" in shown.stdout) == (0, True), shown.stdout + shown.stderr


async def test_of_several_hosts_the_one_that_answers_is_used(external: External) -> None:
    several = external.url().replace("@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:")
    async with Database(DatabaseSettings(url=several)) as database:
        assert (await database.fetch("SELECT 1"))[0][0] == 1
        assert database.where == f"127.0.0.1:1,127.0.0.1:{external.port}/postgres"
