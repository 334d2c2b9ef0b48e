"""Every place where user code runs, and every way in which it misbehaves, in real processes.

The pieces of work of several misbehaviours run at once in one application, with others beside them in every place that
do nothing wrong. What becomes of each is compared with the table of `tests/support/containment_table.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import contained_app
from tests.support.contained import Work
from tests.support.contained_app import CONTAINED
from tests.support.containment_table import GROUPS, IMPOSSIBLE, PLACES, expected
from tests.support.supervised import command
from tests.support.waiting import PATIENT, eventually
from tidemill import App
from tidemill.store.database import Database

pytestmark = [pytest.mark.containment, pytest.mark.timeout(600)]

LEASE = 2.0
LONG = 400.0
INNOCENTS = ("good-1", "good-2")
ON_WORKERS = ("job_async", "job_plain", "job_isolated", "step_queue", "dag_node", "stage_worker")


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    contained_app.app.declarations.configure(database_url=database_url, **PATIENT)
    yield contained_app.app
    await contained_app.app.close()


@pytest.mark.parametrize("group", GROUPS)
async def test_code_that_misbehaves_hurts_only_itself(
    group: str, app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    guilty = [(place, how, how) for how in GROUPS[group] for place in PLACES if (place, how) not in IMPOSSIBLE]
    innocent = [(place, name, "") for name in INNOCENTS for place in PLACES]
    work = Work(app, database, tmp_path)
    settings = {
        "lease_seconds": LEASE,
        "heartbeat_seconds": 0.5,
        "stall_limit": 12,
        "grace_seconds": 2,
        "contained": tmp_path,
    }
    with command(database_url, "up", str(CONTAINED), "--no-server", **settings) as up:
        await eventually(lambda: "stream is running" in up.said, timeout=LONG, interval=0.2)
        await work.begin([*innocent[: len(PLACES)], *guilty, *innocent[len(PLACES) :]])
        try:
            found = await eventually(work.all_ended, timeout=LONG, interval=0.5, what="all have ended")
        except AssertionError:
            found = work.seen
    for key in work.names:
        print(key, found.get(key, "NOT ENDED")[:300])
    wanted = {(place, name): expected(place, how) for place, name, how in [*guilty, *innocent]}
    wrong = {key: (text, found.get(key)) for key, text in wanted.items() if text not in (found.get(key) or "not ended")}
    for place, how, _ in guilty:  # A busy machine misses leases of 2 s: then a guilty job fails as one that was lost.
        lost = (expected(place, "exit"), expected("job_plain", "exit"))
        if place in ON_WORKERS and any(text in found.get((place, how), "") for text in lost):
            wrong.pop((place, how), None)
    assert not wrong
