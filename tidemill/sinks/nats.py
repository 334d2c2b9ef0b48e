"""A subject of NATS JetStream as a sink: an item is sent when the stream of its subject has stored it.

The server drops an item that it has within its duplicate window: the message id is the item's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.sinks.base import SHOWN, ItemRefused, SendResult, Sink, SinkItem, Unreachable, refuse_headers, send_by_key
from tidemill.sources.base import SourceError
from tidemill.sources.nats.client import NatsConnection

AT_ONCE = 64
MOST_SUBJECT = 3000  # bytes: a server ends connections whose commands are longer than 4096
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

        if (refused := refuse_headers(item.headers, encoding="utf-8")) is not None:
            return refused
        subject = self._sink.subject
        if by_key := "{key}" in subject:
            if not _can_be_subject(item.key):
                return ItemRefused(f"key {str(item.key)[:SHOWN]!r} cannot be part of a subject", is_final=True)
            subject = subject.replace("{key}", str(item.key))
        headers = {**item.headers, "Nats-Msg-Id": item.id}
        try:
            await jetstream.publish(subject, item.payload, timeout=self._sink.timeout, headers=headers)
        except MaxPayloadError as error:
            return ItemRefused(str(error), is_final=True)
        except NoStreamResponseError:
            message = f"no stream of the server takes subject {subject}"
            return ItemRefused(message) if by_key else Unreachable(message)
        except APIError as error:
            message = f"{error.description} ({error.err_code})"
            return ItemRefused(message, is_final=True) if error.err_code == TOO_LARGE else Unreachable(message)
        except (Error, OSError, TimeoutError) as error:
            return Unreachable(str(connection.error(error)))
        return None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


def _can_be_subject(key: str | None) -> bool:
    """Whether a key is one or more tokens of a subject, none of them a wildcard, of a length that servers take."""
    if not key or len(key.encode()) > MOST_SUBJECT or any(each.isspace() or not each.isprintable() for each in key):
        return False
    return all(token and token not in ("*", ">") for token in key.split("."))
