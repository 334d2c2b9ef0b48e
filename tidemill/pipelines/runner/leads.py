"""The leads of pipelines: of several processes one drives a pipeline, the one that holds its lock.

All leads of a process are locks of one session, which is open while one of them is held or tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemill.store.database import Connection, Database
from tidemill.store.states import states as rows


class Leads:
    """The leads that this process holds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Connection | None = None
        self._users = 0
        self._opening = asyncio.Lock()
        self._running = asyncio.Lock()  # A connection runs one statement at a time.

    @asynccontextmanager
    async def hold(self, pipeline: str) -> AsyncIterator[Connection | None]:
        """Hold the lead of a pipeline, if it is free, as long as this connection is open."""
        name = f"{self._database.schema}:{pipeline}"
        self._users += 1
        try:
            session, is_held = await self._take(name)
            try:
                yield session if is_held else None
            finally:
                if is_held and not session.is_closed():
                    await self._run(session, rows.LEAVE_LEAD, name)  # Frees it at once for the next process.
        finally:
            self._users -= 1
            if not self._users:
                self._end_session()

    async def _take(self, name: str) -> tuple[Connection, bool]:
        async with self._opening:
            if self._session is None or self._session.is_closed():
                self._session = await self._database.connect_to_listen()
            session = self._session
        return session, await self._run(session, rows.TAKE_LEAD, name)

    async def _run(self, session: Connection, statement: str, name: str) -> bool:
        try:
            async with self._running:
                return bool(await session.fetchval(statement, name))
        except BaseException:
            session.terminate()  # Which leads it holds is unknown: all are left.
            raise

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.terminate()
