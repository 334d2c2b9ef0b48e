"""Takes connections from a pool and gives them back, so that the pool opens few.

To open a connection takes about 10 ms of the server's time and ours, and the server keeps a process for each. A call
that finds all taken waits for one that is given back. Only if none comes for a while does the pool open another, one at
a time, and the more are open the longer that takes: calls of a few milliseconds share a few connections, while long
ones soon have as many as the pool may hold.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import asyncpg

FEW = 2  # How many connections are opened without hesitation.
OPENING_SECONDS = 0.01


class PoolTurns:
    """The connections of a pool that are taken, and the calls that wait for one."""

    def __init__(self) -> None:
        self._taken = 0
        self._opened_at = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, pool: asyncpg.Pool) -> Any:
        await self._wait_for_one(pool)
        self._taken += 1
        try:
            return await pool.acquire()
        except BaseException:
            self._taken -= 1
            raise

    async def give_back(self, pool: asyncpg.Pool, connection: Any) -> None:
        self._taken -= 1
        try:
            await pool.release(connection)
        finally:
            self._wake_one()

    async def _wait_for_one(self, pool: asyncpg.Pool) -> None:
        """Return when a connection is free, or the pool may open one; a full pool lets calls wait itself."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while FEW <= self._taken < pool.get_max_size() and not pool.get_idle_size():
            pause = OPENING_SECONDS * (self._taken - FEW + 1)
            left = max(since, self._opened_at) + pause - loop.time()
            if left <= 0:
                self._opened_at = loop.time()
                return
            returned: asyncio.Future[None] = loop.create_future()
            self._waiting.append(returned)
            try:
                await asyncio.wait([returned], timeout=left)
            except asyncio.CancelledError:
                if returned.done():
                    self._wake_one()  # It was meant for a call that still waits.
                raise
            finally:
                returned.cancel()

    def _wake_one(self) -> None:
        while self._waiting:
            returned = self._waiting.popleft()
            if not returned.done():
                returned.set_result(None)
                return
