"""A wire to the database that can be cut at a chosen moment: what the client has said arrives, the answer does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qs, urlsplit, urlunsplit


class Wire:
    """Between clients and the server. `cut_after(text)` loses the answer to the next message with this text in it.

    `cut_after(text, then="COMMIT")` loses the answer to the commit of the transaction that this text is in; `shut` lets
    nobody through until `mend`.
    """

    def __init__(self, server: str) -> None:
        self._parts = urlsplit(server)
        self._fatal: bytes | None = None
        self._then: bytes | None = None
        self._is_shut = False
        self.refused = 0
        self._broken: set[asyncio.Event] = set()
        self.cuts = 0
        self.heard: Callable[[], None] | None = None
        """Called after each message of a client has been handed on."""
        self.url = ""

    def cut(self) -> None:
        """Lose all connections at once. The server may not notice before it wants to say something."""
        for broken in self._broken:
            broken.set()

    def cut_after(self, text: str, *, then: str | None = None) -> None:
        self._fatal, self._then = text.encode(), None if then is None else then.encode()

    def shut(self) -> None:
        """Lose all connections, and refuse new ones."""
        self._is_shut = True
        self.cut()

    def mend(self) -> None:
        self._is_shut = False

    async def _meet(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._is_shut:
            self.refused += 1
            to_client.close()
            return
        server, to_server = await self._connect()
        lost = asyncio.Event()

        async def forth() -> None:
            awaited: bytes | None = None
            while data := await client.read(65536):
                if self._fatal is not None and self._fatal in data:
                    self._fatal, awaited = None, self._then
                    if awaited is None:
                        lost.set()
                elif awaited is not None and awaited in data:
                    lost.set()
                to_server.write(data)
                await to_server.drain()
                if self.heard is not None:
                    self.heard()

        async def back() -> None:
            while data := await server.read(65536):
                if lost.is_set():
                    self.cuts += 1
                    return
                to_client.write(data)
                await to_client.drain()

        broken = asyncio.Event()
        self._broken.add(broken)
        directions = [asyncio.create_task(each) for each in (forth(), back(), broken.wait())]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        self._broken.discard(broken)
        for each in directions:
            each.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = parse_qs(self._parts.query).get("host", [self._parts.hostname or "localhost"])[0]
        port = int(parse_qs(self._parts.query).get("port", [self._parts.port or 5432])[0])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        listener = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        who = self._parts.username or parse_qs(self._parts.query).get("user", ["postgres"])[0]
        if self._parts.password:
            who += f":{self._parts.password}"
        self.url = urlunsplit(("postgresql", f"{who}@127.0.0.1:{port}", self._parts.path, "", ""))
        try:
            yield self
        finally:
            listener.close()
