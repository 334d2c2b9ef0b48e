"""Streams for tests: a dispatcher in this process while a block lasts, and messages to give it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.waiting import PATIENCE, eventually
from tidemill.core.codec import encode
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.eventlog import Entry, append
from tidemill.streams.dispatcher import Dispatcher
from tidemill.streams.model import Stream


@asynccontextmanager
async def running_stream(stream: Stream, url: str, **options: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher that is ready; drained at the end of the block."""
    async with Database(DatabaseSettings(url=url), application="test stream") as database:
        dispatcher = Dispatcher(stream, database, **options)
        life = asyncio.create_task(dispatcher.run())
        ready = asyncio.create_task(dispatcher.wait_ready())
        try:
            await asyncio.wait([life, ready], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
            assert ready.done(), f"not ready within {PATIENCE:g} s"
            yield dispatcher
            dispatcher.stop()
            await life
        finally:
            for task in (ready, life):
                task.cancel()
            await asyncio.gather(ready, life, return_exceptions=True)


async def publish(database: Database, topic: str, values: Iterable[Any], **fields: Any) -> None:
    """Append messages to the log."""
    async with database.transaction() as connection:
        entries = [Entry(topic, value if isinstance(value, bytes) else encode(value), **fields) for value in values]
        await append(connection, database.schema, entries)


async def all_read(database: Database, topic: str) -> None:
    """Return when a topic's messages are all taken and done."""

    async def is_done() -> bool:
        left = await database.fetchrow(
            "SELECT (SELECT count(*) FROM tidemill.log_range WHERE topic = $1) AS open,"
            " (SELECT count(*) FROM tidemill.event_log AS e, tidemill.log_group AS g"
            "  WHERE e.topic = $1 AND g.topic = $1 AND (e.xid, e.id) > (g.xid, g.id)) AS behind,"
            " (SELECT count(*) FROM tidemill.log_group WHERE topic = $1) AS groups",
            topic,
        )
        return left is not None and left["groups"] and not left["open"] and not left["behind"]

    await eventually(is_done, timeout=PATIENCE * 3, what=f"all of {topic} is done")
