"""The server's connections to the database: requests get one in the order in which they arrive, however many there are.

A request that asks the database several things queues for the first of them only: then it is among those who asked
first. While others wait, a connection goes from hand to hand, which costs less than by way of the pool.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

import asyncpg

from tidemill.store.database import Database, DatabaseSettings, Executor

T = TypeVar("T")
Turn = asyncio.Future[Executor | None]

#: Pages are small and frequent: they are planned once, for tables of any size. Times are in UTC.
QUICK_PAGES = {"plan_cache_mode": "force_generic_plan", "jit": "off", "TimeZone": "UTC"}

#: When the request came that is being answered.
ASKED_AT: ContextVar[float] = ContextVar("asked_at")
_HEAD_START = 2.0  # At most: a stream that was asked for an hour ago must not come first forever.


class FairDatabase(Database):
    """A pool gives a free connection to any waiter; here waiters queue in order."""

    def __init__(self, settings: DatabaseSettings, *, label: str) -> None:
        super().__init__(settings, label=label, session=QUICK_PAGES, opens=False)
        self.most_patience: float | None = None
        """How long to wait for a database that is away: an HTTP client should get an error soon."""
        self._free = settings.pool_size
        self._queue: list[tuple[float, int, Turn]] = []
        self._numbers = itertools.count()

    async def run(self, work: Callable[[Executor], Awaitable[T]], *, patience: float | None = None) -> T:
        if self.most_patience is not None:
            patience = self.most_patience if patience is None else min(patience, self.most_patience)
        return await super().run(work, patience=patience)

    async def _take(self, pool: asyncpg.Pool) -> Executor:
        if self._free:
            self._free -= 1
        elif (handed := await self._wait(pool)) is not None:
            return handed
        try:
            return await pool.acquire()
        except BaseException:
            self._leave()
            raise

    async def _give_back(self, pool: asyncpg.Pool, connection: Executor, *, as_new: bool = False) -> None:
        if as_new and not connection.is_closed() and (turn := self._next()) is not None:
            turn.set_result(connection)
            return
        try:
            await pool.release(connection)
        finally:
            self._leave()

    async def _wait(self, pool: asyncpg.Pool) -> Executor | None:
        """Until it is one's turn: with a connection from hand to hand, or with one from the pool."""
        now = time.monotonic()
        turn: Turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (max(ASKED_AT.get(now), now - _HEAD_START), next(self._numbers), turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # It came at the same moment.
                handed = turn.result()
                if handed is None:
                    self._leave()
                else:
                    await self._give_back(pool, handed, as_new=True)
            raise

    def _leave(self) -> None:
        """There is room for one more."""
        if (turn := self._next()) is None:
            self._free += 1
        else:
            turn.set_result(None)

    def _next(self) -> Turn | None:
        while self._queue:
            turn = heapq.heappop(self._queue)[2]
            if not turn.done():
                return turn
        return None
