"""The streams of one application: declaring them, running them in one process, publishing to topics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import Received
from tidemill.engine.role import Role
from tidemill.flows.encoding.journal import encode_tick
from tidemill.pipelines.definition.declared import Pipelines
from tidemill.pipelines.stores.external_states import Inputs
from tidemill.store.database import Database
from tidemill.store.streams.event_log import Entry, append
from tidemill.streams.definition.stream import Stream
from tidemill.streams.runner.dispatcher import Dispatcher, ServeStream
from tidemill.streams.runner.role import dispatcher_role


class Streams:
    """What an application knows of streams."""

    def __init__(self, reach: Callable[[], Awaitable[Database]], pipelines: Pipelines) -> None:
        self.declared: dict[str, Stream] = {}
        self._reach = reach
        self._inputs = Inputs(pipelines)

    def declare(self, stream: Stream) -> Stream:
        """A stream that `tidemill up` and `tidemill stream run` run."""
        if stream.name in self.declared:
            raise ConfigError(f"two streams are called {stream.name!r}: give one of them another name")
        stream.event_tick = _event_tick
        stream.states = self._inputs
        self.declared[stream.name] = stream
        return stream

    def dispatchers(
        self, database: Database, source: str | None, serve: ServeStream | None = None
    ) -> list[Role[Dispatcher]]:
        """A dispatcher for each stream, for a program that runs everything in one process."""
        return [dispatcher_role(stream, database, target=source, serve=serve) for stream in self.declared.values()]

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> None:
        """Append one message to a topic of the PostgreSQL log."""
        await self.publish_many(topic, [value], key=key, headers=headers, conn=conn)

    async def publish_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> None:
        """Append messages to a topic, all or none; `bytes` go as they are, everything else as JSON.

        `conn` is your own asyncpg connection: the messages then exist if and only if your transaction commits.
        """
        told = None if headers is None else encode(dict(headers))
        entries = [Entry(topic, value if isinstance(value, bytes) else encode(value), key, told) for value in values]
        database = await self._reach()
        if conn is not None:
            await append(conn, database.schema, entries)
            return
        async with database.transaction(patience=30.0) as connection:
            await append(connection, database.schema, entries)


def _event_tick(event: Any, token: str) -> bytes:
    return encode_tick(Received(time.time(), event, None, token))
