"""Ids for runs that a run worker starts itself: reserved ahead, so that a run is stored with its first ticks."""

from __future__ import annotations

import asyncio

from tidemill.engine.runs.run_store import RunStore

MOST_AT_ONCE = 256
OFTEN = 1.0


class RunIds:
    """Reserves few ids when runs are started rarely, so that ids follow time, and many when they are started often."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._left: list[int] = []
        self._at_once = 1
        self._reserved_at = 0.0
        self._reserving = asyncio.Lock()

    async def next(self) -> int:
        """A number that no other run has."""
        if self._left:
            return self._left.pop()
        async with self._reserving:
            if not self._left:
                now = asyncio.get_running_loop().time()
                often = now - self._reserved_at < OFTEN
                self._at_once = min(self._at_once * 2, MOST_AT_ONCE) if often else 1
                self._reserved_at = now
                self._left = (await self._store.reserve(self._at_once))[::-1]
            return self._left.pop()
