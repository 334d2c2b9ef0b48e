"""Limits in an engine: how many calls at once, how many per second. Live requests go ahead of waiting messages."""

from __future__ import annotations

import asyncio
from collections import deque

from tidemill.streams.reducer.token_bucket import TokenBucket


class ConcurrencyLimit:
    """At most `most` calls at once."""

    __slots__ = ("_free", "_live", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._live: deque[asyncio.Future[None]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self, live: bool) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._live if live else self._waiting).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # The cancelled call got its turn and does not use it.
            raise

    def release(self) -> None:
        for queue in (self._live, self._waiting):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class RateLimit:
    """At most `rate` calls per second, evenly spread."""

    __slots__ = ("_bucket", "_concurrency_limit")

    def __init__(self, rate: float) -> None:
        self._bucket = TokenBucket(rate, now=asyncio.get_running_loop().time())
        self._concurrency_limit = ConcurrencyLimit(1)

    async def acquire(self, live: bool) -> None:
        loop = asyncio.get_running_loop()
        await self._concurrency_limit.acquire(live)
        try:
            now = loop.time()
            if (ready := self._bucket.ready_at(now)) > now:
                await asyncio.sleep(ready - now)
            self._bucket.take(1, loop.time())
        finally:
            self._concurrency_limit.release()
