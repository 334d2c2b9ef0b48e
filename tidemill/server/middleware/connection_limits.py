"""Connections: how many there may be, how long a request's head may take, how long an answer may stay unread.

A slow or silent client costs little, and not forever. A stream is written only as fast as it is read (the events are
kept once for all subscribers, by `live.Hub`); a connection that hardly reads for a while is closed.
When there are too many connections, an idle one is closed to make room for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tidemill.server.local_socket import SOCKET_USER, socket_user
from tidemill.server.middleware.middleware import MOST_HEAD, TOO_LONG
from tidemill.server.problems import MEDIA_TYPE, problem

MOST_CONNECTIONS = 4000
SPARE_FILES = 200  # for the database, logs and whatever else is open
IDLE = 1.0
LEAST_READ = 32 * 1024
LINGER = 1.0
LOOK_EVERY = 10  # ticks of the server; it ticks ten times a second


class CorkedTransport:
    """A transport that sends the head of an answer together with what follows at once: one packet, not two."""

    __slots__ = ("_held", "_inner", "_loop")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        if self._held:
            self._inner.write(self._held + data)
            self._held = b""
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self._flush)
        else:
            self._inner.write(data)

    def close(self) -> None:
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            self._inner.write(held)


class Parser(HttpToolsProtocol):
    """One connection. It is cut where a request's head has no end or does not come, or an answer is not read."""

    most = MOST_CONNECTIONS
    head_within = 20.0
    read_within = 30.0
    """In this time, at least `LEAST_READ` bytes of what is to be read must go, or all of it."""

    url = b""

    _refused = False
    _socket_user: str | None = None
    _in_head = False
    _head = 0
    _head_since: float | None = None
    """Since when the head of a request is awaited, if it is."""
    _unread = 0
    _unread_since = 0.0
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(CorkedTransport(transport, self.loop))  # pyright: ignore[reportArgumentType] - it has the same methods
        self._socket_user = socket_user(transport.get_extra_info("socket"))
        self._idle_since = self._head_since = time.monotonic()
        if len(self.connections) > self.most and not self._make_room():
            self._refuse(503, "there are too many connections: try again soon", b"retry-after: 5\r\n")

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        self._await_head()
        super().on_message_begin()
        if self._socket_user is not None:
            self.scope[SOCKET_USER] = self._socket_user  # pyright: ignore[reportGeneralTypeIssues]

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = time.monotonic()
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._await_head()  # The first byte ends the time that a connection may be idle.
        super().data_received(data)
        self._head += len(data) if self._in_head else 0
        if self._in_head and self._head > MOST_HEAD:
            self._refuse(431, TOO_LONG)

    def send_400_response(self, msg: str) -> None:
        if len(self.url) > MOST_HEAD:
            self._refuse(431, TOO_LONG)
        else:
            self._refuse(400, "this is not a valid HTTP request")

    def _refuse(self, status: int, detail: str, more: bytes = b"") -> None:
        """Respond without calling the application; the rest of the request is discarded, so that it is read."""
        if self._refused or self.transport.is_closing():
            return
        body = msgspec.json.encode(problem(status, detail))
        kind = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n".encode()
        self.transport.write(STATUS_LINE[status] + kind + more + b"\r\n" + body)
        self._refused = True
        self.loop.call_later(LINGER, self.transport.close)

    def resume_writing(self) -> None:
        self._unread = 0  # The client has read enough to empty the buffer.
        super().resume_writing()

    def check_speed(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        if self._is_busy():
            # The head of the next request is awaited once this one is answered.
            self._head_since = None if self._head_since is None else now
        elif self._head_since is not None and now - self._head_since > self.head_within:
            self.transport.close()
        self._check_unread(now)

    def _check_unread(self, now: float) -> None:
        left = self.transport.get_write_buffer_size()
        if not left or not self._unread or left <= self._unread - LEAST_READ:
            self._unread, self._unread_since = left, now
        elif now - self._unread_since >= self.read_within:
            self.transport.abort()

    def is_idle(self, now: float) -> bool:
        """Whether no request has come for a while, and none is being answered."""
        return not self._is_busy() and now - self._idle_since > IDLE and not self.transport.is_closing()

    def _make_room(self) -> bool:
        """Close a connection that is idle; False if all are in use."""
        now = time.monotonic()
        idle = next((each for each in self.connections if each.is_idle(now)), None)  # pyright: ignore[reportAttributeAccessIssue]
        if idle is not None:
            idle.transport.close()
        return idle is not None

    def _await_head(self) -> None:
        if self._head_since is None:
            self._head_since = time.monotonic()

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class HttpServer(uvicorn.Server):
    """Leaves signals to the role that runs it, and checks connections periodically."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_EVERY == 0:
            now = time.monotonic()
            for each in list(self.server_state.connections):
                each.check_speed(now)  # pyright: ignore[reportAttributeAccessIssue] - they are all of our class
        return await super().on_tick(counter)


def room_for_connections() -> int:
    """How many connections this process may have, once it may have as many files open as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else MOST_CONNECTIONS + SPARE_FILES
    wanted = min(MOST_CONNECTIONS + SPARE_FILES, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(1, wanted - SPARE_FILES)
