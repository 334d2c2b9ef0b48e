"""Stores the ids of finished messages, and looks them up when messages arrive, so that dispatchers share them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from tidemill.sources.base import identify
from tidemill.sources.delivery import Delivery
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient
from tidemill.store.streams.seen import add_seen, find_seen, forget_seen
from tidemill.streams.runner.store_later import store_finished

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher

log = structlog.get_logger("tidemill.streams")

FORGET_EVERY = 30.0


class StoredIds:
    """The ids of one dispatcher."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._finished: list[tuple[str, str]] = []
        self._warned: set[str] = set()

    async def load(self, index: int, deliveries: Sequence[Delivery]) -> None:
        """Tell the reducer which of these messages were finished before, by any dispatcher."""
        stream, source = self._dispatcher.stream, self._dispatcher.stream.sources[index]
        ids = [id for each in deliveries if (id := identify(source, each)) is not None]
        if ids and stream.dedup_window:
            found = await find_seen(self._database, stream.name, source.name, ids, stream.dedup_window)
            self._dispatcher.reducer.ids.recall(index, found, time.monotonic())

    async def load_stored(self, deliveries: Sequence[Delivery]) -> None:
        """The same for stored messages, which other dispatchers may have got and finished since."""
        for index in {each.source for each in deliveries if each.id is not None}:
            await self.load(index, [each for each in deliveries if each.source == index])

    async def flush(self) -> bool:
        """Store the ids of finished messages; whether all of them are stored."""
        sources = self._dispatcher.stream.sources
        taken = self._dispatcher.reducer.ids.take_finished()
        self._finished += [(sources[index].name, id) for index, id in taken]
        await store_finished(
            self._database,
            self._finished,
            lambda connection, ids: add_seen(self._database, connection, self._dispatcher.stream.name, ids),
        )
        return not self._finished

    def warn_of_forgotten(self) -> None:
        """Log once for each source that more ids came within the window than are remembered here."""
        stream = self._dispatcher.stream
        for index, source in enumerate(stream.sources):
            known, forgotten = self._dispatcher.reducer.ids.known(index)
            if forgotten and source.name not in self._warned:
                self._warned.add(source.name)
                log.warning(
                    "more message ids came within dedup_window than are remembered here: duplicates of older ones "
                    "are found only by the lookup in the database when they arrive",
                    stream=stream.name,
                    source=source.name,
                    known_ids=known,
                    forgotten_ids=forgotten,
                )

    async def forget_old(self) -> None:
        """Delete ids that are older than the window, until cancelled."""
        stream = self._dispatcher.stream
        while True:
            try:
                while await forget_seen(self._database, stream.name, stream.dedup_window):
                    pass
            except Exception as error:
                if not is_transient(error):
                    raise
            await asyncio.sleep(FORGET_EVERY)
