"""The server's way to the database: whoever asked first is served first, also when many ask at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidemill.store.database import Database, DatabaseSettings, Executor

T = TypeVar("T")

#: Pages are small and asked for often: planned once, for tables of any size. Moments are told in UTC.
QUICK_PAGES = {"plan_cache_mode": "force_generic_plan", "jit": "off", "TimeZone": "UTC"}


class FairDatabase(Database):
    """A pool hands a connection to whoever happens to come by when one is free; here they queue."""

    def __init__(self, settings: DatabaseSettings, *, application: str) -> None:
        super().__init__(settings, application=application, session=QUICK_PAGES)
        self.most_patience: float | None = None
        """How long to wait for a database that is away; whoever asks over HTTP would rather be told."""
        self._turns = asyncio.Semaphore(settings.pool_size)

    async def run(self, work: Callable[[Executor], Awaitable[T]], *, patience: float | None = None) -> T:
        if self.most_patience is not None:
            patience = self.most_patience if patience is None else min(patience, self.most_patience)
        async with self._turns:
            return await super().run(work, patience=patience)
