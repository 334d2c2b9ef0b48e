"""A subject of NATS JetStream as a sink: an item is sent when the stream of its subject has stored it.

The server drops an item that it has within its duplicate window: the message id is the item's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.sinks.base import ItemRefused, SendResult, Sink, SinkItem, Unreachable, send_by_key
from tidemill.sources.base import SourceError
from tidemill.sources.nats.client import NatsConnection

AT_ONCE = 64
TOO_LARGE = 10054  # the code of JetStream for a message that is larger than its stream allows


class NatsSink(Sink, frozen=True, tag="nats"):
    """A subject of a JetStream stream; `{key}` in it stands for the key of an item."""

    subject: str
    servers: str = "nats://localhost:4222"
    timeout: float = 5.0
    """How many seconds the server has to store an item."""

    @property
    def default_name(self) -> str:
        return self.subject.replace(".{key}", "").replace(".", "-")

    def sender(self) -> NatsSender:
        return NatsSender(self)


class NatsSender:
    def __init__(self, sink: NatsSink) -> None:
        self._sink = sink
        self._connection: NatsConnection | None = None

    async def send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        connection = self._connection
        if connection is None:
            connection = NatsConnection(f"sink {self._sink.name}", self._sink.servers)
            try:
                await connection.connect()
            except SourceError as error:
                return [Unreachable(str(error))] * len(items)
            self._connection = connection
        jetstream = connection.jetstream
        return await send_by_key(items, lambda item: self._send(jetstream, connection, item), at_once=AT_ONCE)

    async def _send(self, jetstream: Any, connection: NatsConnection, item: SinkItem) -> SendResult:
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError, NoStreamResponseError

        subject = self._sink.subject
        if "{key}" in subject:
            if not item.key or any(character.isspace() for character in item.key):
                return ItemRefused(f"key {item.key!r} cannot be part of a subject", is_final=True)
            subject = subject.replace("{key}", item.key)
        headers = {**item.headers, "Nats-Msg-Id": item.id}
        try:
            await jetstream.publish(subject, item.payload, timeout=self._sink.timeout, headers=headers)
        except MaxPayloadError as error:
            return ItemRefused(str(error), is_final=True)
        except NoStreamResponseError:
            return Unreachable(f"no stream of the server takes subject {subject}")
        except APIError as error:
            said = f"{error.description} ({error.err_code})"
            return ItemRefused(said, is_final=True) if error.err_code == TOO_LARGE else Unreachable(said)
        except (Error, OSError, TimeoutError) as error:
            return Unreachable(str(connection.error(error)))
        return None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
