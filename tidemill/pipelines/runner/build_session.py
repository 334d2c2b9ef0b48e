"""A builder's presence in the database: what it holds leases with, and how it hears of other builders.

The session is a connection with an advisory lock. The leases of a process that dies end with its connection.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from tidemill.engine.event_wait import wait_for_event
from tidemill.pipelines.runner.log import log
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.states.leases import (
    LeaseHolder,
    lock_session,
    release_all_leases,
    renew_leases,
)
from tidemill.store.states.states import STATES_CHANNEL

RENEW_EVERY = 15.0


class BuildSession:
    """One builder's session, opened when it is first needed."""

    def __init__(self, database: Database, builder: str, on_news: Callable[[str], None] | None) -> None:
        """`on_news` is called with each notification of written states."""
        self.holder = LeaseHolder(builder, lock=secrets.randbits(63))
        self._database = database
        self._on_news = on_news
        self._open = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> LeaseHolder:
        """The holder of this builder's leases, once its session is open."""
        if self._task is None:
            self._task = asyncio.create_task(self._stay_open(), name="build session")
        if not self._open.is_set():
            opened = asyncio.create_task(self._open.wait())
            await asyncio.wait([opened, self._task], return_when=asyncio.FIRST_COMPLETED)
            opened.cancel()
            if self._task.done():
                self._task.result()
        return self.holder

    async def close(self) -> None:
        """Give up all leases, and end the session."""
        if self._task is None:
            return
        self._closing.set()
        await asyncio.wait([self._task])
        try:
            await release_all_leases(self._database, self.holder.lock or 0)
        except Exception as error:
            if not is_transient(error):
                raise

    async def _stay_open(self) -> None:
        """Hold the lock, and renew the leases, over any number of lost connections."""
        while not self._closing.is_set():
            connection = await self._database.connect_to_listen()
            try:
                if self._on_news is not None:
                    await connection.add_listener(
                        self._database.channel(STATES_CHANNEL), lambda _c, _p, _n, text: self._hear(text)
                    )
                await lock_session(connection, self.holder.lock or 0)
                self._open.set()
                while not connection.is_closed() and not await wait_for_event(self._closing, RENEW_EVERY):
                    await renew_leases(self._database, self.holder.lock or 0)
            except Exception as error:
                if not is_transient(error):
                    raise
                log.warning("leases cannot be renewed", error=str(error))
            finally:
                self._open.clear()
                connection.terminate()

    def _hear(self, text: object) -> None:
        if self._on_news is not None:
            self._on_news(str(text))
