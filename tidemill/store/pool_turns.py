"""Takes connections from a pool and gives them back, so that the pool opens few.

To open a connection takes about 10 ms of the server's time and ours. A call that finds all taken waits as long for one
that is given back, and only then has the pool open another.
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
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, pool: asyncpg.Pool) -> Any:
        if self._taken >= FEW and not pool.get_idle_size() and pool.get_size() < pool.get_max_size():
            returned = asyncio.get_running_loop().create_future()
            self._waiting.append(returned)
            try:
                await asyncio.wait([returned], timeout=OPENING_SECONDS)
            finally:
                returned.cancel()
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
            while self._waiting:
                returned = self._waiting.popleft()
                if not returned.done():
                    returned.set_result(None)
                    break
