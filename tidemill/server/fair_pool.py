"""The server's connections to the database: requests get one in the order in which they arrive, however many there are.

A request that asks the database several things queues for the first of them only: then it is among those who asked
first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from tidemill.store.database import Database, DatabaseSettings, Executor

T = TypeVar("T")

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

    async def run(self, work: Callable[[Executor], Awaitable[T]], *, patience: float | None = None) -> T:
        if self.most_patience is not None:
            patience = self.most_patience if patience is None else min(patience, self.most_patience)
        return await super().run(work, patience=patience)

    def _asked_at(self, now: float) -> float:
        return max(ASKED_AT.get(now), now - _HEAD_START)
