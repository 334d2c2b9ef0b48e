"""Takes connections from a pool and gives them back, so that the pool has few.

To open a connection takes about 10 ms of the server's time and ours, and the server keeps a process for each. A call
that finds all taken waits for one that is given back. Only if none comes for a while does the pool open another, one at
a time, and the more are open the longer that takes: calls of a few milliseconds share a connection, while long ones
soon have as many as the pool may hold. One that is hardly ever needed beside the others is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from typing import Any

import asyncpg

#: How long a call waits for each connection that is taken, before another is opened: as long as the last opening took.
OPENING_SECONDS, LONGEST_OPENING = 0.005, 0.1
#: How often a pool may close a connection, and what share of that time all must have been taken to keep them.
SPARE_SECONDS, NEEDED_SHARE = 1.0, 0.05


class PoolTurns:
    """The connections of a pool that are taken, and the calls that wait for one."""

    def __init__(self) -> None:
        self._taken = 0
        self._opened_at, self._opening_seconds = float("-inf"), OPENING_SECONDS
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._counted_since = self._changed_at = time.monotonic()
        self._seconds_taken: defaultdict[int, float] = defaultdict(float)
        """For how long so many were taken since then."""

    async def take(self, pool: asyncpg.Pool) -> Any:
        await self._wait_for_one(pool)
        began = self._count(1)
        opens = self._taken <= pool.get_max_size() and not pool.get_idle_size()
        try:
            connection = await pool.acquire()
        except BaseException:
            self._count(-1)
            raise
        if opens:
            self._opening_seconds = min(max(OPENING_SECONDS, time.monotonic() - began), LONGEST_OPENING)
        return connection

    async def give_back(self, pool: asyncpg.Pool, connection: Any) -> None:
        if self._count(-1) - self._counted_since > SPARE_SECONDS and self._has_spare(pool):
            connection.terminate()
        try:
            await pool.release(connection)
        finally:
            self._wake_one()

    def _count(self, more: int) -> float:
        now = time.monotonic()
        self._seconds_taken[self._taken] += now - self._changed_at
        self._changed_at = now
        self._taken += more
        return now

    def _has_spare(self, pool: asyncpg.Pool) -> bool:
        """Whether all connections of the pool were hardly ever taken at the same time."""
        size, seconds = pool.get_size(), self._changed_at - self._counted_since
        all_taken = sum(each for taken, each in self._seconds_taken.items() if taken >= size)
        self._seconds_taken.clear()
        self._counted_since = self._changed_at
        return all_taken < NEEDED_SHARE * seconds and pool.get_idle_size() > 0

    async def _wait_for_one(self, pool: asyncpg.Pool) -> None:
        """Return when a connection is free, or the pool may open one; a full pool lets calls wait itself."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while 0 < self._taken < pool.get_max_size() and not pool.get_idle_size():
            left = max(since, self._opened_at) + self._opening_seconds * self._taken - loop.time()
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
