"""The wire between dispatcher and engine: frames of MessagePack over a Unix socket, many messages to a frame."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.streams.definition.message import Answer

_LENGTH = 4
_encode = msgspec.msgpack.Encoder().encode


class Work(msgspec.Struct, array_like=True, gc=False):
    """A message for an engine. `extra` is (id, key, headers, at, deadline, attempt, plans), left out when all usual."""

    ticket: int
    source: int
    payload: bytes
    part: int = 0
    position: int = 0
    extra: tuple[Any, ...] | None = None
    eligibilities: tuple[str, ...] | None = None


class ToEngine(msgspec.Struct, array_like=True):
    """From the dispatcher: work of the streams, live requests, or the word to stop."""

    work: list[Work] = []
    live: list[Work] = []
    stop: bool = False


class ToDispatcher(msgspec.Struct, array_like=True):
    """From an engine: tickets that simply succeeded, answers that say more, figures, and that it is ready.

    One with nothing in it is a sign of life.
    """

    ok: list[int] = []
    answers: list[Answer] = []
    figures: dict[str, Any] | None = None
    ready: bool = False
    stopped: bool = False


class Link(asyncio.Protocol):
    """One end of the wire."""

    def __init__(self, kind: type, on_frame: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._rest = bytearray()
        self._wanted = _LENGTH  # how many bytes are needed before there can be another frame
        self._transport: asyncio.Transport | None = None

    def send(self, frame: ToEngine | ToDispatcher) -> None:
        """Send a frame; to nobody, if the other end is gone."""
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
                return  # A large frame comes in many pieces, which are put together once.
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


async def connect(end: socket.socket, kind: type, on_frame: Callable[[Any], None], on_lost: Callable[[], None]) -> Link:
    """Make a link of one end of a socket pair."""
    end.setblocking(False)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    link = Link(kind, on_frame, on_lost)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=end)
    return link
