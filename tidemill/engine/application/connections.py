"""An application's connections: one per event loop, opened when first needed, and one for plain code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from tidemill.engine.jobs.enqueuer import Enqueuer
from tidemill.engine.jobs.waits import JobWaits
from tidemill.engine.runs.run_waits import run_waits
from tidemill.store.database import Database
from tidemill.store.jobs.batches.batches import find_unfinished_batches
from tidemill.store.migrate import wait_for_schema

T = TypeVar("T")

DATABASE_PATIENCE, SCHEMA_PATIENCE = 30.0, 10.0


class OpenConnection(NamedTuple):
    """An open database, what puts jobs into it, and what waits for jobs and batches."""

    database: Database
    enqueuer: Enqueuer
    waits: JobWaits
    batch_waits: JobWaits


class Connections:
    """Opens connections to the database and keeps them until they are closed."""

    def __init__(self, make_database: Callable[[], Database]) -> None:
        self._make_database = make_database
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[OpenConnection]] = {}
        self._bridge: SyncBridge | None = None
        self._lock = threading.Lock()

    @contextmanager
    def separate(self) -> Iterator[None]:
        """Open other connections for as long as the block lasts; everything that has this object uses them."""
        before = self._opening, self._bridge, self.__dict__.pop("unopened", None)
        self._opening, self._bridge = {}, None
        try:
            yield
        finally:
            self._opening, self._bridge, unopened = before
            self.__dict__.pop("unopened", None)
            if unopened is not None:
                self.__dict__["unopened"] = unopened

    @cached_property
    def unopened(self) -> Database:
        """A database that is never opened: it writes the statements for connections of the caller's own."""
        return self._make_database()

    async def open(self) -> OpenConnection:
        """The connection of this event loop; concurrent callers share one attempt to open it."""
        loop = asyncio.get_running_loop()
        opening = self._opening.get(loop)
        if opening is None:
            opening = self._opening[loop] = loop.create_task(self._connect(), name="tidemill-open")
        elif opening.done() and not opening.cancelled() and opening.exception() is None:
            return opening.result()
        try:
            return await asyncio.shield(opening)
        except Exception:
            if self._opening.get(loop) is opening:
                del self._opening[loop]
            raise

    def call(self, work: Callable[[OpenConnection], Awaitable[T]]) -> T:
        """Do async work from plain code, on a loop in a thread of its own."""
        with self._lock:
            if self._bridge is None or not self._bridge.is_alive:  # A fork of this process has none of its threads.
                self._bridge = SyncBridge()
            bridge = self._bridge

        async def run() -> T:
            return await work(await self.open())

        return bridge.call(run())

    async def close(self) -> None:
        """Close the connection of this event loop."""
        opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            opened = await opening
            await opened.waits.close()
            await opened.batch_waits.close()
            await run_waits(opened.database).close()
            await opened.enqueuer.close()
            await opened.database.close()

    def close_sync(self) -> None:
        """Close the connection of plain code."""
        with self._lock:
            bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.call(self.close())
            bridge.close()

    def abandon(self) -> None:
        """Forget connections whose event loop has ended without closing them."""
        for loop in [loop for loop in self._opening if loop.is_closed()]:
            del self._opening[loop]

    async def _connect(self) -> OpenConnection:
        database = self._make_database()
        await database.open(patience=DATABASE_PATIENCE)
        try:
            await wait_for_schema(database, patience=SCHEMA_PATIENCE)
        except BaseException:
            await database.close()
            raise
        database.translates_errors = True
        batch_waits = JobWaits(database, find_unfinished_batches)
        return OpenConnection(database, Enqueuer(database), JobWaits(database), batch_waits)


class SyncBridge:
    """Runs coroutines on a loop in a background thread and waits for their results."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="tidemill-portal", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, run in the portal's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine in the portal's thread, and return its task."""

        async def create() -> asyncio.Task[T]:
            return asyncio.ensure_future(coroutine)

        return self.call(create())

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
