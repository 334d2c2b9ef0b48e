"""What a process reports over HTTP about itself: `GET /metrics`, and `/livez` and `/readyz` for probes.

async with MetricsEndpoint(database, "127.0.0.1:9464"):
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.web.address import is_loopback, read_address
from tidemill.engine.application.lifespan import lifespan_trouble
from tidemill.store.database import Database

log = structlog.get_logger("tidemill.metrics")

PATIENCE = 10.0
MOST_HEAD = 16 * 1024


class MetricsEndpoint:
    """Serves the metrics of a database at an address inside its `async with` block."""

    def __init__(self, database: Database, address: str, is_ready: Callable[[], bool] = lambda: True) -> None:
        from tidemill.engine.telemetry.exposition import Exposition  # slow to load, and rarely needed

        self._host, self._port = read_address(address)
        self._database = database
        self._is_ready = is_ready
        self._exposition = Exposition(database)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    async def __aenter__(self) -> MetricsEndpoint:
        try:
            self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=MOST_HEAD)
        except OSError as error:
            raise ConfigError(f"metrics cannot be served at {self._host}:{self._port}: {_why(error)}") from error
        log.info("metrics served", url=self.url)
        if not is_loopback(self._host):
            log.warning("metrics are served without a token to every client that can reach this address")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head.decode("latin-1")))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # The client has disconnected, or sent no request.
        finally:
            writer.close()

    async def _respond(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if path not in ("/metrics", "/", "/livez", "/readyz"):
            return _response("404 Not Found", b"not found: this endpoint serves /metrics, /livez and /readyz\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"only GET is allowed\n", more="Allow: GET, HEAD\r\n")
        if path == "/livez":
            return _response("200 OK", b"the event loop turns\n")
        if path == "/readyz":
            return await self._probe()
        try:
            body, kind = await self._exposition.text(_header(lines, "accept"))
        except TidemillError as error:
            return _response("503 Service Unavailable", f"{error}\n".encode())
        return _response("200 OK", body, kind=kind, bare=method == "HEAD")

    async def _probe(self) -> bytes:
        """Whether the process does its work: it has started, and its database answers."""
        if (trouble := lifespan_trouble()) is not None:
            return _response("503 Service Unavailable", f"{trouble}\n".encode())
        if not self._is_ready():
            return _response("503 Service Unavailable", b"starting or stopping\n")
        try:
            await self._database.fetch("SELECT 1", patience=1.0)
        except TidemillError as error:
            return _response("503 Service Unavailable", f"{error}\n".encode())
        return _response("200 OK", b"ready\n")


@asynccontextmanager
async def serving_metrics(
    database: Database, address: str | None, is_ready: Callable[[], bool] = lambda: True
) -> AsyncIterator[None]:
    """Serve metrics and probes inside the block; does nothing without an address."""
    if address is None:
        yield
        return
    async with MetricsEndpoint(database, address, is_ready):
        yield


def _header(lines: list[str], name: str) -> str:
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""


def _response(
    status: str, body: bytes, *, kind: str = "text/plain; charset=utf-8", more: str = "", bare: bool = False
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if bare else body)


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            "another process listens there; choose another address with --metrics or TIDEMILL_METRICS, "
            "or let only one process serve them: it has the numbers of all"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return "this user may not listen there; choose a port above 1023"
    return error.strerror or str(error)
