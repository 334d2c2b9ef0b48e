"""Waits for runs are woken by the database; the safety poll, set to an hour here, is not needed."""

from __future__ import annotations

import asyncio

import pytest

from tidemill import App
from tidemill.engine.runs import run_waits
from tidemill.store.database import Database

HOUR = 3600.0
TWO_RUNS = """
INSERT INTO tidemill.run (workflow, version, kind, input) SELECT 'Some', '1', 'Some', '{}' FROM generate_series(1, 2)
RETURNING id
"""


async def heard(app: App, watch: run_waits.RunWait) -> None:
    """Change something until the wait hears of it."""
    hearing = asyncio.create_task(watch.changed())
    async with asyncio.timeout(120):
        while not hearing.done():
            await app.enqueue("change")
            await asyncio.wait([hearing], timeout=0.05)


async def test_a_wait_that_begins_while_the_listener_ends_is_woken(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_waits, "SAFETY_POLL", HOUR)
    monkeypatch.setattr(run_waits, "LINGER", 0.001)
    app.task(name="change")(lambda: None)
    waits = run_waits.RunWaits(database)
    for milliseconds in range(30):
        async with waits.watching(database) as watch:
            await heard(app, watch)
        await asyncio.sleep(milliseconds / 3000)  # At one of these moments the connection is being closed.
    await waits.close()


async def test_a_wait_ends_with_a_run_that_ends_in_this_process_before_the_change_is_announced(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_waits, "SAFETY_POLL", HOUR)
    waits = run_waits.run_waits(database)
    run_id, other = [row["id"] for row in await database.fetch(TWO_RUNS)]
    async with waits.watching(database) as watch:  # The listener wakes all waits when it is connected.
        await watch.changed()
        ended, others = (asyncio.create_task(waits.end_of(database, each)) for each in (run_id, other))
        async with database.transaction() as connection:  # Without triggers, no change is announced.
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                database.sql("UPDATE tidemill.run SET state = 'succeeded', ended_at = now() WHERE id = $1"), run_id
            )
        run_waits.end_waits_here(run_id)
        async with asyncio.timeout(60):
            assert (await ended)["state"] == "succeeded"
        assert not others.done()
        others.cancel()
    await waits.close()
