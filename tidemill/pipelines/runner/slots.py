"""Slots of groups: limits how many builds of a group run at once, across all processes that build without workers.

Builds by workers are jobs, which the queue limits. A process that dies releases its slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.store.database import Database
from tidemill.store.states.slots import take_slot

#: A group by name, and how many of its builds may run at once.
Group = tuple[str, int]


def group_key(group: Group) -> str:
    """The concurrency key of jobs in a group."""
    return f"pipeline group {group[0]}"


class Slots:
    """Access to slots for one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._here: dict[Group, asyncio.Semaphore] = {}  # each wait in the database takes a connection

    @asynccontextmanager
    async def hold(self, group: Group | None) -> AsyncIterator[None]:
        """Wait for a slot and hold it; without a group there is no limit."""
        if group is None:
            yield
            return
        async with self._here.setdefault(group, asyncio.Semaphore(group[1])):
            connection = await self._database.connect_to_listen()
            try:
                await take_slot(connection, f"{self._database.schema}:group {group[0]}", group[1])
                yield
            finally:
                connection.terminate()
