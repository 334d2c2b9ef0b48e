"""The connections of a `Database`: taken by one call at a time, and few.

To open a connection takes about 10 ms of the server's time and ours, and the server keeps a process for each. A call
that finds all taken waits for one that is given back. Only if none comes for a while does the pool open another, one at
a time, and the more are open the longer that takes: calls of a few milliseconds share a connection, while long ones
soon have as many as the pool may hold. One that is hardly ever needed beside the others is closed.

asyncpg has a pool, which takes longer than a short statement: 15 µs and more beside 1.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

Turn = asyncio.Future[asyncpg.Connection | None]

#: How long a call waits for each connection that is open, before another is opened: as long as the last opening took.
SHORTEST_OPENING, USUAL_OPENING, LONGEST_OPENING = 0.005, 0.01, 0.05
#: How often a pool may close a connection, and what share of that time all must have been taken to keep them.
SPARE_SECONDS, NEEDED_SHARE = 1.0, 0.05
#: Seconds after which a connection that is not used is closed.
IDLE_SECONDS = 5.0


class Pool:
    """Connections that are opened when they are needed, up to a maximum."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection]],
        max_size: int,
        asked_at: Callable[[float], float],
    ) -> None:
        """Of the calls that wait, the one that was `asked_at` the earliest time comes first."""
        self.opening_seconds = USUAL_OPENING
        self._connect = connect
        self._max_size = max_size
        self._asked_at = asked_at
        self._free: list[tuple[float, asyncpg.Connection]] = []  # and since when; the last one is used first
        self._taken: set[asyncpg.Connection] = set()
        self._expired: set[asyncpg.Connection] = set()
        self._opening, self._opened_at = 0, float("-inf")
        self._waiting: list[tuple[float, int, Turn]] = []
        self._asked = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._all_returned: asyncio.Event | None = None
        self._counted_since = self._changed_at = time.monotonic()
        self._seconds_taken: defaultdict[int, float] = defaultdict(float)
        """For how long so many were taken since then."""

    @property
    def size(self) -> int:
        """How many connections are open or being opened."""
        return len(self._free) + len(self._taken) + self._opening

    async def take(self) -> asyncpg.Connection:
        """A connection, which the caller must give back."""
        if self._all_returned is not None:
            raise asyncpg.InterfaceError("pool is closing")
        while self._free:
            connection = self._free.pop()[1]
            if not connection.is_closed():
                self._lend(connection)
                return connection
        if self.size and (connection := await self._wait_for_one()) is not None:
            return connection
        return await self._open()

    async def give_back(self, connection: asyncpg.Connection, *, settled: bool = True) -> None:
        """Let another call have the connection, if its state is known.

        It is not `settled` if the call has failed: then its last statement may still be running, or may have been
        parsed and not executed, which leaves its transaction open and the driver unaware of it.
        """
        protocol: Any = connection._protocol  # pyright: ignore[reportAttributeAccessIssue]
        try:
            if not settled or (protocol is not None and protocol._is_cancelling()):
                await connection.execute("SELECT")  # It waits for a cancelled statement, and ends such a transaction.
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, Exception):
                raise
        finally:
            self._return(connection)

    def expire(self) -> None:
        """Close all connections: free ones now, taken ones when they are given back."""
        self._expired |= self._taken
        for _, connection in self._free:
            connection.terminate()
        self._free.clear()

    async def close(self) -> None:
        """Close all connections, as soon as they are given back."""
        self._all_returned = asyncio.Event()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        free, self._free = self._free, []
        while (turn := self._next_turn()) is not None:
            turn.set_exception(asyncpg.InterfaceError("pool is closing"))
        await asyncio.gather(*(connection.close() for _, connection in free))
        if self.size:
            await self._all_returned.wait()

    def terminate(self) -> None:
        """Close all connections now."""
        self.expire()
        for connection in self._taken:
            connection.terminate()

    # -- taking and giving back -------------------------------------------------------------------

    def _lend(self, connection: asyncpg.Connection) -> None:
        self._count()
        self._taken.add(connection)

    def _return(self, connection: asyncpg.Connection) -> None:
        now = self._count()
        self._taken.discard(connection)
        if connection in self._expired or self._all_returned is not None or _is_unusable(connection):
            self._expired.discard(connection)
            connection.terminate()
        elif now - self._counted_since > SPARE_SECONDS and self._has_spare():
            connection.terminate()
        self._note_all_returned()
        turn = self._next_turn()
        if connection.is_closed():
            if turn is not None:
                turn.set_result(None)  # There is room for another.
        elif turn is not None:
            self._lend(connection)
            turn.set_result(connection)
        else:
            self._free.append((now, connection))
            if self._idle_timer is None:
                self._idle_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)

    async def _open(self) -> asyncpg.Connection:
        self._opening += 1
        self._opened_at = began = time.monotonic()
        try:
            connection = await self._connect()
        except BaseException:
            if (turn := self._next_turn()) is not None:
                turn.set_result(None)
            raise
        finally:
            self._opening -= 1
            self._note_all_returned()
        self.opening_seconds = min(max(SHORTEST_OPENING, time.monotonic() - began), LONGEST_OPENING)
        self._lend(connection)
        if self._all_returned is not None:
            await self.give_back(connection)
            raise asyncpg.InterfaceError("pool is closing")
        return connection

    def _note_all_returned(self) -> None:
        if self._all_returned is not None and not self.size:
            self._all_returned.set()

    # -- waiting ----------------------------------------------------------------------------------

    async def _wait_for_one(self) -> asyncpg.Connection | None:
        """A connection that is given back; None if another one may be opened."""
        since = time.monotonic()
        turn: Turn = asyncio.get_running_loop().create_future()
        self._asked += 1
        heapq.heappush(self._waiting, (self._asked_at(since), self._asked, turn))
        try:
            while not turn.done():
                left = None
                if self.size < self._max_size:
                    left = max(since, self._opened_at) + self.opening_seconds * self.size - time.monotonic()
                    if left <= 0:
                        return None
                await asyncio.wait([turn], timeout=left)
            # Another call has taken the room.
            if (connection := turn.result()) is None and self.size >= self._max_size:
                connection = await self._wait_for_one()
            return connection
        except asyncio.CancelledError:
            if turn.done() and turn.exception() is None:  # The connection came at the moment of the cancellation.
                self._pass_on(turn)
            raise
        finally:
            turn.cancel()

    def _pass_on(self, turn: Turn) -> None:
        connection = turn.result()
        if connection is not None:
            self._return(connection)
        elif (another := self._next_turn()) is not None:
            another.set_result(None)

    def _next_turn(self) -> Turn | None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                return turn
        return None

    # -- closing what is not needed ---------------------------------------------------------------

    def _count(self) -> float:
        now = time.monotonic()
        self._seconds_taken[len(self._taken)] += now - self._changed_at
        self._changed_at = now
        return now

    def _has_spare(self) -> bool:
        """Whether all connections were hardly ever taken at the same time."""
        seconds, size = self._changed_at - self._counted_since, len(self._free) + len(self._taken) + 1
        all_taken = sum(each for taken, each in self._seconds_taken.items() if taken >= size)
        self._seconds_taken.clear()
        self._counted_since = self._changed_at
        return bool(self._free) and all_taken < NEEDED_SHARE * seconds

    def _close_idle(self) -> None:
        now = time.monotonic()
        while self._free and self._free[0][0] + IDLE_SECONDS <= now:
            self._free.pop(0)[1].terminate()
        self._idle_timer = None
        if self._free:
            left = self._free[0][0] + IDLE_SECONDS - now
            self._idle_timer = asyncio.get_running_loop().call_later(left, self._close_idle)


def _is_unusable(connection: asyncpg.Connection) -> bool:
    """Whether it is closed, a transaction was left open, or it is unknown how one has ended."""
    top: Any = connection._top_xact  # pyright: ignore[reportAttributeAccessIssue]
    return connection.is_closed() or top is not None or connection.is_in_transaction()
