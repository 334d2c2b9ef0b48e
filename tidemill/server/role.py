"""The server's life as a process: waits for the schema, listens, follows the changes, ends in its own time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
from collections.abc import Callable, Mapping

import msgspec
import structlog
import uvicorn

from tidemill.app import App
from tidemill.core.errors import ConfigError
from tidemill.engine.role import Life
from tidemill.server.app import build
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.middleware.connection_limits import HttpServer, Parser, room_for_connections
from tidemill.server.server_state import ServerState
from tidemill.server.settings import LOOPBACK, ServerSettings
from tidemill.store.tokens import has_tokens

log = structlog.get_logger("tidemill.server")

GRACE = 3
PATIENCE = 3.0
BACKLOG = 2048


class ApiServer:
    """Serves one application's database. `on_url` is told where, once it answers."""

    channels: Mapping[str, None] = {}

    def __init__(
        self,
        app: App,
        database: FairDatabase,
        settings: ServerSettings,
        *,
        on_url: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings.validate()
        self.server_state = ServerState(app, database, self.settings)
        self._database = database
        self._on_url = on_url

    async def work(self, life: Life) -> None:
        """Serve until stopped: then requests are answered, and streams are closed."""
        await self._check_login()
        self._database.most_patience = PATIENCE
        listening = listen(self.settings)
        try:
            async with self._beside_grpc():
                await self._serve(listening, life)
        finally:
            listening.close()

    def _beside_grpc(self) -> contextlib.AbstractAsyncContextManager[None]:
        if self.settings.grpc is None:
            return contextlib.nullcontext()
        from tidemill.server.rpc.serve import serving_grpc  # Here: its import is slow, and most servers do not need it.

        return serving_grpc(self.server_state)

    async def _serve(self, listening: socket.socket, life: Life) -> None:
        settings = self.settings
        Parser.most = room_for_connections()
        http = HttpServer(
            uvicorn.Config(
                build(self.server_state),
                loop="none",
                http=Parser,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=settings.behind_proxy,
                forwarded_allow_ips=list(settings.proxies) or [LOOPBACK, "::1"],
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                timeout_graceful_shutdown=GRACE,
                timeout_keep_alive=30,
                limit_concurrency=None,
            )
        )
        # What is there now stays: the collector need not look at all of it again while requests wait.
        gc.collect()
        gc.freeze()
        following = asyncio.create_task(self.server_state.hub.run(), name="tidemill-changes")
        serving = asyncio.create_task(http.serve(sockets=[listening]), name="tidemill-http")
        stopping = asyncio.create_task(life.stopped.wait())
        try:
            self._tell(listening)  # It listens already: a request that comes now waits a moment.
            life.ready()
            await asyncio.wait([following, serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            if following.done() and not life.is_stopping:
                following.result()
            self.server_state.hub.close()
            http.should_exit = True
            await serving
        finally:
            http.should_exit = True
            for helper in (following, stopping):
                helper.cancel()
            await asyncio.gather(following, serving, stopping, return_exceptions=True)

    def _tell(self, listening: socket.socket) -> None:
        url = msgspec.structs.replace(self.settings, port=listening.getsockname()[1]).url
        log.info("serving", url=url, login=self.settings.asks_login, read_only=self.settings.read_only)
        if self._on_url is not None:
            self._on_url(url)

    async def _check_login(self) -> None:
        if self.settings.asks_login and not await has_tokens(self.server_state.database):
            raise ConfigError(
                "nobody could log in, for there is no token: make one with "
                "`tidemill token create NAME --scope admin`, and start the server again"
            )


def listen(settings: ServerSettings) -> socket.socket:
    """A socket that listens where the settings say."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"there is no address {settings.host!r} to listen at: {error}") from error
    family, kind, protocol, _, address = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE and settings.or_any_port and settings.port:
            return listen(msgspec.structs.replace(settings, port=0))
        why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ConfigError(
            f"cannot listen at {settings.host}:{settings.port}: {why}; choose another with --port"
        ) from error
    made.setblocking(False)
    return made
