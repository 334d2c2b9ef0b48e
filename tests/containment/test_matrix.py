"""Every place where user code runs, and every way in which it misbehaves, in real processes.

The pieces of work of several misbehaviours run at once in one application, with others beside them in every place that
do nothing wrong. What becomes of each is compared with the table of `tests/support/containment_table.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import contained_app
from tests.support.contained import Work
from tests.support.contained_app import CONTAINED
from tests.support.containment_table import GROUPS, IMPOSSIBLE, IN_ONE_APPLICATION, LIFESPAN, MISBEHAVIOURS, expected
from tests.support.supervised import command
from tests.support.waiting import PATIENT, eventually
from tidemill import App
from tidemill.store.database import Database

pytestmark = [pytest.mark.containment, pytest.mark.timeout(600)]

LEASE = 2.0
LONG = 500.0
LIFESPAN_APP = CONTAINED.with_name("contained_lifespan_app.py")
INNOCENTS = ("good-1", "good-2")


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    contained_app.app.declarations.configure(database_url=database_url, **PATIENT)
    yield contained_app.app
    await contained_app.app.close()


@pytest.mark.parametrize("group", GROUPS)
async def test_code_that_misbehaves_hurts_only_itself(
    group: str, app: App, database: Database, database_url: str, tmp_path: Path
) -> None:
    guilty = [
        (place, how, how) for how in GROUPS[group] for place in IN_ONE_APPLICATION if (place, how) not in IMPOSSIBLE
    ]
    innocent = [(place, name, "") for name in INNOCENTS for place in IN_ONE_APPLICATION]
    work = Work(app, database, tmp_path)
    settings = {
        "lease_seconds": LEASE,
        "heartbeat_seconds": 0.5,
        "stall_limit": 12,
        "grace_seconds": 2,
        "contained": tmp_path,
        "sources": " ".join(name for place, name, _ in [*innocent, *guilty] if place == "monitor_source"),
    }
    with command(database_url, "up", str(CONTAINED), "--no-server", **settings) as up:
        await eventually(lambda: "stream is running" in up.said, timeout=LONG, interval=0.2)
        await work.begin([*innocent[: len(IN_ONE_APPLICATION)], *guilty, *innocent[len(IN_ONE_APPLICATION) :]])
        try:
            found = await eventually(work.all_ended, timeout=LONG, interval=0.5, what="all have ended")
        except AssertionError:
            found = work.seen
    for key in work.names:
        print(key, found.get(key, "NOT ENDED")[:300])
    wanted = {(place, name): expected(place, how) for place, name, how in [*guilty, *innocent]}
    wrong = {key: (text, found.get(key)) for key, text in wanted.items() if text not in (found.get(key) or "not ended")}
    assert not wrong


async def test_a_lifespan_that_misbehaves_is_named_and_its_process_takes_no_work(
    database: Database, database_url: str
) -> None:
    """Each in an application of its own, with a task on a queue of the same name."""
    cells = [how for how in MISBEHAVIOURS if (LIFESPAN, how) not in IMPOSSIBLE]
    wanted = {how: expected(LIFESPAN, how) for how in cells}
    query = "SELECT queues[1] AS how, trouble, status FROM tidemill.worker WHERE cardinality(queues) = 1"

    async def found() -> dict[str, str]:
        rows = await database.fetch(f"{query} ORDER BY id")
        return {row["how"]: row["trouble"] or ("succeeded" if row["status"] == "running" else "") for row in rows}

    async def all_found() -> bool:
        said = await found()
        return all(text in said.get(how, "") for how, text in wanted.items())

    with ExitStack() as stack:
        for how in cells:
            settings = {"lease_seconds": LEASE, "heartbeat_seconds": 0.5, "misbehaviour": how}
            stack.enter_context(command(database_url, "worker", str(LIFESPAN_APP), **settings))
        try:
            await eventually(all_found, timeout=LONG, interval=0.5)
        except AssertionError:
            assert await found() == wanted
