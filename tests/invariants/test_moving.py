"""A database that is backed up or moved under work of all shapes: all that was acknowledged comes to its end there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import psycopg
import pytest

from tests.support.all_shapes import Stage, stage
from tidemill.store.migrate import OWN_CHAIN

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


async def begin(on: Stage) -> None:
    on.up("before", TIDEMILL_LEASE_SECONDS="20s")
    await on.migrated(OWN_CHAIN.latest)
    on.load("load", pause=0.2)
    await on.has_acknowledged("load", 5)


async def command(on: Stage, *arguments: str) -> str:
    done = await asyncio.to_thread(on.command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_a_backup_under_work_of_all_shapes_is_restored_and_its_work_is_finished(
    database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    with stage(database_url, tmp_path) as old:
        await begin(old)
        shutil.copy(tmp_path / "load.acknowledged", tmp_path / "backed-up.acknowledged")
        assert "backed up" in await command(old, "db", "backup", "copy")
    with stage(empty_database_url, tmp_path) as new:
        assert "restored" in await command(new, "db", "restore", "copy")
        new.up("after")
        await new.all_finished("backed-up")
        assert "everything fits together" in await command(new, "db", "check")


async def test_a_move_under_work_of_all_shapes_leaves_nothing_behind_that_was_acknowledged(
    database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    with stage(database_url, tmp_path) as old:
        await begin(old)
        refused = old.command("db", "move", "--to", empty_database_url)
        assert (refused.returncode, "is in use by" in refused.stderr) == (1, True), refused.stderr
        assert "moved" in await command(old, "db", "move", "--live", "--to", empty_database_url)
        old.check()
    with stage(empty_database_url, tmp_path) as new:
        new.up("after")
        await new.all_finished("load")
    with psycopg.connect(database_url) as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("DELETE FROM tidemill.job")
    with stage(database_url, tmp_path) as old:
        refused = old.command("jobs")
        assert "it is read-only: a standby, or a database that was moved" in refused.stderr
        assert "set TIDEMILL_DATABASE_URL to the new server, or go back with `tidemill db reopen`" in refused.stderr
        assert "it can be written to again" in await command(old, "db", "reopen")
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM tidemill.job")
