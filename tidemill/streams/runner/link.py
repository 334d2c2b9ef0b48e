"""The connection between dispatcher and engine: MessagePack frames over a Unix socket, many messages per frame."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.sources.delivery import Delivery
from tidemill.streams.definition.message import EngineAnswer
from tidemill.streams.engine.garbage import CollectedGarbage

_LENGTH = 4
_encode = msgspec.msgpack.Encoder().encode


class DeliveryDetails(msgspec.Struct, array_like=True, gc=False):
    """What most messages do not have."""

    id: str | None = None
    key: bytes | None = None
    headers: Any = None
    at: float = 0.0
    deadline: float | None = None
    attempt: int = 1
    plans: Any = None

    @property
    def is_batchable(self) -> bool:
        """Whether the message needs no trace, deadline, choice of plans or further attempt of its own."""
        return not (self.headers or self.deadline or self.plans or self.attempt > 1)


class MessageWork(msgspec.Struct, array_like=True, gc=False):
    """A message for an engine; without `details` they have their defaults."""

    ticket: int
    source: int
    payload: bytes
    part: int = 0
    position: int = 0
    details: DeliveryDetails | None = None
    eligibilities: tuple[str, ...] | None = None


class ToEngine(msgspec.Struct, array_like=True):
    """From the dispatcher: messages, live requests, or the request to stop."""

    work: list[MessageWork] = []
    live: list[MessageWork] = []
    stop: bool = False


class ToDispatcher(msgspec.Struct, array_like=True):
    """From an engine: tickets that simply succeeded, other answers, statistics, and whether it is ready.

    An empty frame is a heartbeat.
    """

    ok: list[int] = []
    answers: list[EngineAnswer] = []
    statistics: dict[str, Any] | None = None
    ready: bool = False
    stopped: bool = False
    exhausted: bool = False
    """Too many of its threads did not come back: it must be replaced."""
    lost_threads: list[str] | None = None
    """What runs in its threads that did not come back; None if that has not changed."""
    trouble: str | None = None
    """Why it does not start, empty if it does; None if that has not changed."""
    garbage: CollectedGarbage | None = None
    """Its full collections of garbage so far."""


class EngineLink(asyncio.Protocol):
    """One end of the connection."""

    def __init__(self, kind: type, on_frame: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._rest = bytearray()
        self._wanted = _LENGTH  # bytes that are needed for the next frame
        self._transport: asyncio.Transport | None = None

    def send(self, frame: ToEngine | ToDispatcher) -> None:
        """Send a frame; it is dropped if the other end is closed."""
        if self._transport is not None and not self._transport.is_closing():
            body = _encode(frame)
            self._transport.write(len(body).to_bytes(_LENGTH, "big") + body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return  # A large frame arrives in many pieces, which are joined once.
            data = bytes(self._rest)
        at, end, stop = 0, len(data), _LENGTH
        while end - at >= _LENGTH:
            stop = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "big")
            if stop > end:
                break
            self._on_frame(self._decode(memoryview(data)[at + _LENGTH : stop]))
            at, stop = stop, stop + _LENGTH
        self._rest, self._wanted = bytearray(data[at:]), stop - at

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost()


async def connect(
    end: socket.socket, kind: type, on_frame: Callable[[Any], None], on_lost: Callable[[], None]
) -> EngineLink:
    """Open a link on one end of a socket pair."""
    end.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    link = EngineLink(kind, on_frame, on_lost)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
    return link


def message_work(ticket: int, delivery: Delivery) -> MessageWork:
    """A message as it is sent to an engine: without what most messages do not have."""
    usual = (
        not delivery.at
        and delivery.key is None
        and delivery.headers is None
        and delivery.id is None
        and delivery.deadline is None
        and delivery.attempt == 1
        and delivery.plans is None
    )
    if usual:
        return MessageWork(ticket, delivery.source, delivery.payload, delivery.part, delivery.position)
    details = DeliveryDetails(
        delivery.id,
        delivery.key,
        delivery.headers,
        delivery.at,
        delivery.deadline,
        delivery.attempt,
        delivery.plans,
    )
    return MessageWork(ticket, delivery.source, delivery.payload, delivery.part, delivery.position, details)
