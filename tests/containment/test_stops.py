"""Every role that is asked to stop lets what it runs end within the grace period: nothing that has ended runs again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import contained_app
from tests.support.contained import Work
from tests.support.contained_app import CONTAINED
from tests.support.containment_table import IN_ONE_APPLICATION
from tests.support.supervised import command
from tests.support.waiting import PATIENT, eventually
from tidemill import App
from tidemill.store.database import Database

pytestmark = [pytest.mark.containment, pytest.mark.timeout(400)]

LONG = 180.0
REPEATED = ("monitor_source", "model_load")
"""What each new process does: it reads its sources and loads its models."""
SLOW_PLACES = [place for place in IN_ONE_APPLICATION if place not in REPEATED]
NAMES = ("one", "two", "three", "four")
SETTINGS = {"grace_seconds": 15}


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    contained_app.app.declarations.configure(database_url=database_url, **PATIENT)
    yield contained_app.app
    await contained_app.app.close()


async def test_sigterm_under_load_repeats_nothing_in_any_role(
    app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    work, slow = Work(app, database, tmp_path), tmp_path / "slow"

    def marks(place: str) -> list[str]:
        return [file.read_text() for name in NAMES if (file := slow / f"{place}.{name}").exists()]

    with command(database_url, "up", str(CONTAINED), "--no-server", contained=tmp_path, **SETTINGS) as up:
        await eventually(lambda: "stream is running" in up.said, timeout=LONG, interval=0.2)
        await work.begin((place, name, f"slow {place}.{name}") for name in NAMES for place in SLOW_PLACES)
        await eventually(lambda: all(marks(place) for place in SLOW_PLACES), timeout=LONG, interval=0.05)
    left = {place: [each for each in marks(place) if each != "begun ended "] for place in SLOW_PLACES}
    with command(database_url, "up", str(CONTAINED), "--no-server", contained=tmp_path, **SETTINGS):
        await eventually(work.all_ended, timeout=LONG, interval=0.5, what="all have ended")
    assert {place: each for place, each in left.items() if each} == {}, "all that had begun had ended"
    assert {place: marks(place) for place in SLOW_PLACES} == {
        place: ["begun ended "] * len(NAMES) for place in SLOW_PLACES
    }
