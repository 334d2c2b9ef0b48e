"""What every connection to PostgreSQL is set up with: keepalives, how values are read, a pooler in between."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg

from tidemill.core.encoding.sealing import PayloadCodec, open_bytes, open_json, open_text
from tidemill.store.connection.known_types import KnownTypesConnection


class PooledConnection(KnownTypesConnection):
    """A connection through a transaction pooler: each statement runs in a transaction, which pins it to one backend.

    Without that, the pooler may prepare a statement on one backend and run it on another.
    """

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._pinned(super().fetch, query, *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._pinned(super().fetchrow, query, *args, **options)

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return await self._pinned(super().fetchval, query, *args, **options)

    async def execute(self, query: str, *args: Any, **options: Any) -> Any:
        if not args:  # sent as one message; transactions begin this way
            return await super().execute(query, **options)
        return await self._pinned(super().execute, query, *args, **options)

    async def _pinned(self, call: Callable[..., Awaitable[Any]], query: str, *args: Any, **options: Any) -> Any:
        if self.is_in_transaction():
            return await call(query, *args, **options)
        async with self.transaction():
            return await call(query, *args, **options)


#: How long the other end may stay silent: keepalives after 10 s, 4 times; the user timeout is in ms.
_SILENCE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


def watched(connection: asyncpg.Connection) -> asyncpg.Connection:
    """Enable keepalives on a connection to PostgreSQL, and leave it in forked children."""
    _connections.add(connection)
    sock = _socket_of(connection)
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        enable_keepalives(sock)
    return connection


def _socket_of(connection: asyncpg.Connection) -> Any:
    return connection._transport.get_extra_info("socket")  # pyright: ignore[reportAttributeAccessIssue]


_connections: weakref.WeakSet[asyncpg.Connection] = weakref.WeakSet()


def _leave_connections() -> None:
    """In a forked child: leave the connections, so that they end with the process that has opened them.

    PostgreSQL keeps a session, with its transaction and locks, while any process has the other end of its socket.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in list(_connections):
        if not connection.is_closed() and (sock := _socket_of(connection)) is not None:
            os.dup2(nothing, sock.fileno(), inheritable=False)  # Its number stays taken: it is closed once more later.
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_connections)


def enable_keepalives(sock: socket.socket) -> None:
    """Let a TCP connection to a vanished host fail in half a minute: otherwise a read from it blocks forever."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE.items():
        if hasattr(socket, option):  # Not every system has all of them.
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def set_types(connection: asyncpg.Connection, codec: PayloadCodec | None) -> None:
    """Let JSON pass as bytes, which msgspec encodes and decodes; with a codec, open what is sealed when it is read."""
    opened = _same if codec is None else partial(open_json, codec)
    await connection.set_type_codec("json", schema="pg_catalog", encoder=_same, decoder=opened, format="binary")
    if codec is None:
        return

    def text(data: bytes) -> str:
        return open_text(codec, data.decode())

    await connection.set_type_codec("text", schema="pg_catalog", encoder=str.encode, decoder=text, format="binary")
    await connection.set_type_codec(
        "bytea", schema="pg_catalog", encoder=_same, decoder=partial(open_bytes, codec), format="binary"
    )


def _same(value: Any) -> Any:
    return value
