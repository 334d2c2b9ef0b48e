"""Limits how many builds with the same concurrency key run at once, across all processes that build without workers.

Builds by workers are jobs, which the queue limits. A process that dies releases its slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.store.database import Database
from tidemill.store.states.slots import take_slot


class Slots:
    """Access to slots for one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Each wait in the database takes a connection.
        self._here: dict[tuple[str, int], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def hold(self, key: str | None, most: int) -> AsyncIterator[None]:
        """Wait for a slot and hold it; without a key there is no limit."""
        if key is None:
            yield
            return
        async with self._here.setdefault((key, most), asyncio.Semaphore(most)):
            connection = await self._database.connect_to_listen()
            try:
                await take_slot(connection, f"{self._database.schema}:{key}", most)
                yield
            finally:
                connection.terminate()
