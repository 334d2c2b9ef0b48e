"""The keeper of a quarantine process, without the process."""

from __future__ import annotations

import asyncio

from tidemill.engine.containment.quarantine import Quarantine


async def test_it_stops_while_the_database_is_away() -> None:
    asked = asyncio.Event()

    async def find() -> float | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    quarantine = Quarantine(None, find, take=lambda: None, grace=1.0, silence=1.0, database=None)
    running = asyncio.create_task(quarantine.run())
    await asked.wait()
    quarantine.stop()
    async with asyncio.timeout(150):
        await running


async def test_suspects_run_here_if_there_is_no_process_for_them() -> None:
    taken = asyncio.Event()

    async def find() -> float | None:
        return 0.0

    quarantine = Quarantine(None, find, take=taken.set, grace=1.0, silence=1.0, database=None)
    running = asyncio.create_task(quarantine.run())
    async with asyncio.timeout(150):
        await taken.wait()
        quarantine.stop()
        await running
