"""A process that is asked to stop lets what it runs end within the grace period: nothing is repeated that could end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.blamed import settled_runs
from tests.support.misbehaving_app import Noting
from tests.support.roles import running_maintenance
from tests.support.supervised import MISBEHAVING, command
from tests.support.waiting import eventually
from tidemill import App
from tidemill.store.database import Database

pytestmark = pytest.mark.containment


async def test_a_step_under_way_ends_before_its_process_does_and_is_not_repeated(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    runs = [(await app.start(Noting, file=str(notes), seconds=2.0)).id for _ in range(3)]
    with command(database_url, "worker", str(MISBEHAVING), "--only", "runs", grace_seconds=20):
        await eventually(lambda: notes.exists() and notes.read_text().count("first") == 3)
    query = "SELECT count(*) AS n FROM tidemill.run WHERE owner IS NOT NULL OR suspicions > 0"
    assert (await database.fetch(query))[0]["n"] == 0, "it gave them back"
    async with running_maintenance(app):
        with command(database_url, "worker", str(MISBEHAVING), "--only", "runs"):
            found = await eventually(lambda: settled_runs(database, runs))
    assert [found[number]["state"] for number in runs] == ["succeeded"] * 3
    assert notes.read_text().splitlines() == ["first"] * 3


async def test_a_step_that_outlasts_the_grace_period_is_given_back_and_runs_again(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    run = (await app.start(Noting, file=str(notes), seconds=600.0)).id
    with command(database_url, "worker", str(MISBEHAVING), "--only", "runs", grace_seconds=0.5):
        await eventually(notes.exists)
    rows = await database.fetch("SELECT owner, awake, suspicions, losses FROM tidemill.run WHERE id = $1", run)
    assert [tuple(row) for row in rows] == [(None, True, 0, 0)]
    with command(database_url, "worker", str(MISBEHAVING), "--only", "runs", grace_seconds=0.5):
        await eventually(lambda: notes.read_text().count("first") == 2)
