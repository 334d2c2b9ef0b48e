"""Waits for runs are woken by the database; the safety poll, set to an hour here, is not needed."""

from __future__ import annotations

import asyncio

import pytest

from tidemill import App
from tidemill.engine.runs import run_waits
from tidemill.store.database import Database

HOUR = 3600.0


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
