"""The page's live part: one quick read of the database a second for all subscribers, none without subscribers.

Subscribers are notified of a change and request the board, which is read and encoded once for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import structlog

from apps.classroom.board import BoardReader
from tidemill.core.errors import StoreError
from tidemill.server.problems import Refused
from tidemill.store.database import Database
from tidemill.store.database_errors import is_full, is_unavailable

log = structlog.get_logger("apps.classroom")

LOOK_EVERY = 1.0
AFRESH = 10.0
HEARTBEAT = 15.0
LONGEST = 300.0
MOST_WATCHING = 500


class Room:
    """The subscribers of a class on this server."""

    def __init__(
        self, monitor: str = "classroom", *, look_every: float = LOOK_EVERY, most_watching: int = MOST_WATCHING
    ) -> None:
        self.monitor = monitor
        self.watching = 0
        self.looks = 0
        self._look_every = look_every
        self._most_watching = most_watching
        self._reader: BoardReader | None = None
        self._reading = asyncio.Lock()
        self._body = b""
        self._read_at = -1e9
        self._pulse: tuple[Any, ...] | None = None
        self._mark = 0
        self._turn = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None

    async def board(self, database: Database) -> bytes:
        """The board as JSON, as it is now."""
        async with self._reading:
            reader = self._reader_on(database)
            pulse = await reader.pulse()
            if pulse != self._pulse or time.monotonic() - self._read_at > self._look_every or not self._body:
                self._body = msgspec.json.encode(await reader.read())
                self._read_at, self._pulse = time.monotonic(), pulse
            return self._body

    def check_room(self) -> None:
        """Refuse a stream above the limit."""
        if self.watching >= self._most_watching:
            told = f"{self._most_watching:,} pages of this class are open on this server, and no more fit"
            raise Refused(503, told, Retry_After="10")

    async def watch(self, database: Database, closed: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Server-sent events: `news` for each change of the board. It ends after some minutes; the page reconnects."""
        self.watching += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(database, closed), name="classroom-look")
        loop = asyncio.get_running_loop()
        until, seen = loop.time() + LONGEST, self._mark
        try:
            yield b"event: news\ndata: {}\n\n"
            said = loop.time()
            while not closed() and loop.time() < until:
                if self._looking.done():
                    self._looking.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every), self._turn:
                        await self._turn.wait_for(lambda seen=seen: self._mark != seen)
                if self._mark != seen:
                    seen, said = self._mark, loop.time()
                    yield b"event: news\ndata: {}\n\n"
                elif loop.time() - said > HEARTBEAT:
                    said = loop.time()
                    yield b": still here\n\n"
        finally:
            self.watching -= 1

    async def _look(self, database: Database, closed: Callable[[], bool]) -> None:
        """Read once a second until there are no subscribers."""
        reader, before, told = self._reader_on(database), None, time.monotonic()
        while self.watching and not closed():
            try:
                pulse = await reader.pulse()
                self.looks += 1
                if pulse != before or time.monotonic() - told > AFRESH:
                    before, told = pulse, time.monotonic()
                    async with self._turn:
                        self._mark += 1
                        self._turn.notify_all()
            except Exception as error:
                if not (is_unavailable(error) or is_full(error) or isinstance(error, StoreError)):
                    raise
                log.warning("the class cannot be looked at now", error=str(error))
            await asyncio.sleep(self._look_every)

    def _reader_on(self, database: Database) -> BoardReader:
        if self._reader is None:
            self._reader = BoardReader(database, self.monitor)
        return self._reader
