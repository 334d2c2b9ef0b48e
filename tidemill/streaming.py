"""The streams of one application: declaring them, running them in one process, publishing to topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from typing_extensions import Unpack

from tidemill.core.check_given import check_kind
from tidemill.core.codec import check_storable, encode
from tidemill.core.did_you_mean import refuse_unknown
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.injected import injected_parameters
from tidemill.core.jobs.job import check_name
from tidemill.core.limits.size_limits import check_payload
from tidemill.core.ticks import Received
from tidemill.engine.application.connections import Connections
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.jobs.origin import origin_text
from tidemill.engine.roles.role import Role
from tidemill.engine.telemetry.tracing import current_trace
from tidemill.flows.encoding.journal import encode_tick
from tidemill.pipelines.definition.declared import Pipelines
from tidemill.pipelines.stores.external_states import Inputs
from tidemill.store.connection.caller_connection import run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.streams.event_log import Entry, append, append_statements
from tidemill.streams.definition.stream import Stream

if TYPE_CHECKING:
    from tidemill.streams.runner.dispatcher import Dispatcher, ServeStream


class MessageOptions(TypedDict, total=False):
    """The options of a message."""

    key: str | None
    """Messages with the same key are handled in their order, where the stream says so."""
    headers: Mapping[str, str] | None


class PublishOptions(MessageOptions, total=False):
    """The options of `publish`."""

    conn: Any
    """The caller's own open connection: the message exists if and only if its transaction commits."""


class Streams:
    """What an application knows of streams."""

    def __init__(self, connections: Connections, pipelines: Pipelines, lifespan: Lifespan) -> None:
        self._lifespan = lifespan
        self.declared: dict[str, Stream] = {}
        self._connections = connections
        self._inputs = Inputs(pipelines)

    def declare(self, stream: Stream) -> Stream:
        """A stream that `tidemill up` and `tidemill stream run` run."""
        check_kind("app.stream", stream, Stream, "a Stream, such as Stream('orders', plans=[...], sources=[...])")
        if stream.name in self.declared:
            raise ConfigError(f"two streams are called {stream.name!r}: give one of them another name")
        stream.event_tick = _event_tick
        stream.states = self._inputs
        stream.lifespan = self._lifespan
        for plan in stream.plans:
            for task in plan.tasks:
                where = f"stream task {stream.name}/{plan.name}.{task}"
                self._lifespan.add_taker(where, injected_parameters(getattr(plan, task), where=where))
        self.declared[stream.name] = stream
        return stream

    def dispatchers(
        self, database: Database, source: str | None, serve: ServeStream | None = None
    ) -> list[Role[Dispatcher]]:
        """A dispatcher for each stream, for a program that runs everything in one process."""
        from tidemill.streams.runner.role import dispatcher_role  # only their processes need it

        return [dispatcher_role(stream, database, target=source, serve=serve) for stream in self.declared.values()]

    async def publish(
        self,
        topic: str,
        value: Any,
        **options: Unpack[PublishOptions],
    ) -> None:
        """Append one message to a topic of the PostgreSQL log."""
        refuse_unknown("publish", options, PublishOptions.__annotations__)
        await self.publish_many(topic, [value], **options)

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

        `conn` is your own open connection: the messages then exist if and only if your transaction commits.
        """
        entries = _entries(topic, values, key, headers)
        if conn is not None:
            await run_async(self._connections.unopened, conn, append_statements(self._connections.unopened, entries))
            return
        await _append((await self._connections.open()).database, entries)

    def publish_sync(
        self,
        topic: str,
        value: Any,
        **options: Unpack[PublishOptions],
    ) -> None:
        """`publish` for plain code; `conn` is then a plain connection."""
        refuse_unknown("publish", options, PublishOptions.__annotations__)
        self.publish_many_sync(topic, [value], **options)

    def publish_many_sync(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        conn: Any = None,
    ) -> None:
        """`publish_many` for plain code; `conn` is then a plain connection."""
        entries = _entries(topic, values, key, headers)
        if conn is not None:
            run_sync(self._connections.unopened, conn, append_statements(self._connections.unopened, entries))
            return
        self._connections.call(lambda opened: _append(opened.database, entries))


def _entries(topic: str, values: Iterable[Any], key: str | None, headers: Mapping[str, str] | None) -> list[Entry]:
    check_name("topic", topic)
    if not isinstance(key, str | None):
        raise ConfigError(f"key={key!r:.100} is not text, such as '7'")
    if key is not None:
        check_storable("key", key)
    if headers is not None:
        _check_headers(headers)
    trace, origin = current_trace(), origin_text()
    if trace is not None:
        headers = {"traceparent": trace, **(headers or {})}
    header_text = None if headers is None else encode(dict(headers))
    payloads = (value if isinstance(value, bytes) else encode(value) for value in values)
    return [
        Entry(topic, check_payload(each, f"a message for topic {topic}"), key, header_text, origin) for each in payloads
    ]


def _check_headers(headers: Any) -> None:
    """Raise a `ConfigError` for what no reader of messages takes for headers."""
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers={headers!r:.100} are not headers: write a dict, such as {{'source': 'shop'}}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"header {name!r:.100} is {value!r:.100}: names and values of headers are text")
        check_storable("header", f"{name}: {value}")


async def _append(database: Database, entries: list[Entry]) -> None:
    async with database.transaction(patience=30.0) as connection:
        await append(database, connection, entries)


def _event_tick(event: Any, token: str) -> bytes:
    return encode_tick(Received(time.time(), event, None, token))
