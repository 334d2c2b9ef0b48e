"""Two versions of Tidemill on one database, under work of all shapes: nothing is lost, stranded or refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.all_shapes import ROOT, Stage, stage
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import OWN_CHAIN, Chain

AHEAD = """-- needs_at_least: {known}
ALTER TABLE tidemill.job ADD COLUMN ahead integer NOT NULL DEFAULT 0;
ALTER TABLE tidemill.job_history ADD COLUMN ahead integer;
ALTER TABLE tidemill.run ADD COLUMN ahead text;
ALTER TABLE tidemill.worker ADD COLUMN ahead text;
ALTER TABLE tidemill.event_log ADD COLUMN ahead text;
ALTER TABLE tidemill.state ADD COLUMN ahead text;
ALTER TABLE tidemill.alert ADD COLUMN ahead text;
"""
BEHIND = "\n".join(
    f"ALTER TABLE tidemill.{table} DROP COLUMN ahead;"
    for table in ("job", "job_history", "run", "worker", "event_log", "state", "alert")
)


def git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def version_before(folder: Path) -> Path:
    """The last code before the oldest migration that it may be mixed with, from the history of this repository."""
    needed = max(migration.needs_at_least() for migration in OWN_CHAIN.migrations())
    following = [migration for migration in OWN_CHAIN.migrations() if migration.version > needed]
    if not following:
        pytest.skip("the newest migration needs its own code: no earlier version can be mixed with it")
    path = following[0].up.relative_to(ROOT)
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(path)).decode().split()
    commit = f"{added[-1]}^" if added else ""
    if not commit or b"needs_at_least" not in git("show", f"{commit}:tidemill/store/migrate.py"):
        pytest.skip("the earlier version is not in the history of this checkout (a shallow clone, or an archive)")
    with tarfile.open(fileobj=BytesIO(git("archive", commit, "tidemill", "generate_protobuf.py"))) as archive:
        archive.extractall(folder, filter="data")
    subprocess.run([sys.executable, folder / "generate_protobuf.py"], check=True, capture_output=True)
    return folder


def version_ahead(folder: Path) -> Path:
    """This code with one migration more, which this code may be mixed with."""
    unneeded = shutil.ignore_patterns("static", "__pycache__")
    shutil.copytree(ROOT / "tidemill", folder / "tidemill", ignore=unneeded)
    ahead = folder / "tidemill" / "store" / "migrations" / f"{OWN_CHAIN.latest + 1:04}_ahead.sql"
    ahead.write_text(AHEAD.format(known=OWN_CHAIN.latest))
    ahead.with_suffix(".down.sql").write_text(BEHIND)
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pair", ["the version before and this one", "this version and one ahead"])
async def test_a_rolling_upgrade_under_work_of_all_shapes_loses_strands_and_refuses_nothing(
    empty_database_url: str, tmp_path: Path, pair: str
) -> None:
    before = pair == "the version before and this one"
    older = version_before(tmp_path / "older") if before else ROOT
    newer = ROOT if before else version_ahead(tmp_path / "newer")
    known, wanted = (Chain(each / "tidemill/store/migrations").latest for each in (older, newer))
    assert known < wanted
    with stage(empty_database_url, tmp_path) as on:
        await upgrade(on, older, newer, known, wanted)
        async with Database(DatabaseSettings(url=empty_database_url)) as database:
            versions = await database.fetch(
                "SELECT result::text::int AS version, count(*) FROM tidemill.job_history WHERE task = 'tick' GROUP BY 1"
            )
            assert {row["version"] for row in versions} == {known, wanted}
            lost = "SELECT * FROM tidemill.job_history WHERE state <> 'succeeded' AND task <> 'tick'"
            assert [dict(row) for row in await database.fetch(lost)] == []


async def upgrade(on: Stage, older: Path, newer: Path, known: int, wanted: int) -> None:
    """Old processes; new ones beside them, which migrate; an old one that starts again; the new ones alone."""
    first = on.up("old", older)
    await on.migrated(known)
    old_load = on.load("old-load", older)
    await on.has_acknowledged("old-load", 5)
    await on.all_finished("old-load")
    on.up("new", newer)
    await on.migrated(wanted)
    new_load = on.load("new-load", newer, first=1_000_000)
    await on.has_acknowledged("new-load", 10)
    assert await first.stop() == 0, first.said
    again = on.up("old-again", older)  # as after a rollback, or on a host that was away
    await again.says("monitors started")
    await on.has_acknowledged("old-load", len(on.acknowledged("old-load")["job"]) + 10)
    shown = on.command("jobs", "--application", "shapes", package=older)
    assert shown.returncode == 0, shown.stderr
    assert await old_load.stop() == 0, old_load.said
    assert await again.stop() == 0, again.said
    await on.has_acknowledged("new-load", len(on.acknowledged("new-load")["job"]) + 5)
    assert await new_load.stop() == 0, new_load.said
    await on.all_finished("old-load", "new-load")
    for each in (old_load, new_load):
        assert "not acknowledged" not in each.said, each.said
