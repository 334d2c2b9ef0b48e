"""The server's life as a process: waits for the schema, listens, follows the changes, drains and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from tidemill.app import App
from tidemill.core.errors import ConfigError
from tidemill.engine.roles.role import Life
from tidemill.server.app import build
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.listening import listen
from tidemill.server.local_socket import close_locally, listen_locally
from tidemill.server.many_applications import ManyApplications
from tidemill.server.middleware.connection_limits import HttpServer, Parser, room_for_connections
from tidemill.server.middleware.middleware import Middleware
from tidemill.server.server_state import ServerState
from tidemill.server.settings import LOOPBACK, ServerSettings
from tidemill.store.access.tokens import create_login_link, has_tokens, login_url
from tidemill.store.transaction import Reader

GRACE = 3
PATIENCE = 3.0


class ApiServer:
    """Serves an application, or with `others` all of its database, each with the state that this makes of its name.

    `on_url` is called with the URL, and a log-in link if one is needed.
    """

    channels: Mapping[str, None] = {}

    def __init__(
        self,
        app: App,
        database: FairDatabase,
        settings: ServerSettings,
        *,
        on_url: Callable[[str, str | None], None],
        others: Callable[[str], Awaitable[ServerState]] | None,
    ) -> None:
        self.settings = settings.validate()
        self.server_state = ServerState(app, database, self.settings)
        self._database = database
        self._on_url = on_url
        self._others = others

    async def work(self, life: Life) -> None:
        """Serve until stopped: then requests are answered, and streams are closed."""
        await self._check_login()
        self._database.most_patience = PATIENCE
        with contextlib.ExitStack() as closing:
            listening = closing.enter_context(contextlib.closing(listen(self.settings)))
            local = None
            if self.settings.socket is not None:
                path = Path(self.settings.socket)
                local = listen_locally(path)
                if local is not None:
                    closing.callback(close_locally, local, path)
            async with self._beside_grpc():
                await self._serve(listening, local, life)

    def _beside_grpc(self) -> contextlib.AbstractAsyncContextManager[None]:
        if self.settings.grpc is None:
            return contextlib.nullcontext()
        from tidemill.server.rpc.serve import serving_grpc  # Imported here, because it takes a while.

        return serving_grpc(self.server_state)

    def _http(self, site: Middleware | ManyApplications, *, local: bool) -> HttpServer:
        settings = self.settings
        return HttpServer(
            uvicorn.Config(
                site,
                loop="none",
                http=Parser,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=settings.behind_proxy and not local,
                forwarded_allow_ips=list(settings.proxies) or [LOOPBACK, "::1"],
                ssl_certfile=None if local else settings.tls_cert,
                ssl_keyfile=None if local else settings.tls_key,
                timeout_graceful_shutdown=GRACE,
                timeout_keep_alive=30,
                limit_concurrency=None,
            )
        )

    async def _serve(self, listening: socket.socket, local: socket.socket | None, life: Life) -> None:
        Parser.most = room_for_connections()
        many = None if self._others is None else ManyApplications(self.server_state, self._others)
        site = build(self.server_state) if many is None else many
        servers = [(self._http(site, local=False), listening)]
        if local is not None:
            servers.append((self._http(site, local=True), local))
        # Objects of the start live as long as the process: the collector must not visit them while requests wait.
        gc.collect()
        gc.freeze()
        following = asyncio.create_task(self.server_state.hub.run(), name="tidemill-changes")
        recording = asyncio.create_task(self.server_state.authenticator.record_uses(), name="tidemill-uses")
        serving = [asyncio.create_task(http.serve(sockets=[each]), name="tidemill-http") for http, each in servers]
        stopping = asyncio.create_task(life.stopped.wait())
        background = [following, recording]
        if many is not None:
            background.append(asyncio.create_task(many.run(), name="tidemill-applications"))
        try:
            await self._announce(listening)  # The socket already listens: requests that come now wait a moment.
            life.ready()
            await asyncio.wait([*background, *serving, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done() and not life.is_stopping:
                    task.result()
            self.server_state.hub.close()
            if many is not None:
                many.close()
            for http, _ in servers:
                http.should_exit = True
            await asyncio.gather(*serving)
        finally:
            for http, _ in servers:
                http.should_exit = True
            for task in (*background, stopping):
                task.cancel()
            ending: list[asyncio.Task[Any]] = [*background, *serving, stopping]
            await asyncio.gather(*ending, return_exceptions=True)
            if many is not None:
                await many.close_databases()

    async def _announce(self, listening: socket.socket) -> None:
        settings = self.settings
        url = msgspec.structs.replace(settings, port=listening.getsockname()[1]).url
        link = await self._login_link(url) if settings.asks_login and settings.is_local else None
        self._on_url(url, link)

    async def _login_link(self, url: str) -> str:
        async with Reader(self._database, "server").transaction() as tx:
            token = await create_login_link(tx, lasts=self.settings.session_hours * 3600)
        return login_url(url, token)

    async def _check_login(self) -> None:
        settings = self.settings
        if not settings.asks_login or settings.is_local or settings.oidc is not None:
            return
        if not await has_tokens(self.server_state.database):
            raise ConfigError(
                "no browser or command could log in, because there is no token: make one with "
                "`tidemill token create NAME --role admin`, and start the server again"
            )


def serving_others(
    known: Sequence[App], settings: ServerSettings, make: Callable[[str], App]
) -> Callable[[str], Awaitable[ServerState]]:
    """Opens an application's database for a server of many; `make` makes those whose code is not known."""
    by_name = {app.name: app for app in known}

    async def state_of(name: str) -> ServerState:
        app = by_name.get(name) or make(name)
        database = FairDatabase(app.settings.database(), label=f"tidemill server {name}")
        database.most_patience = PATIENCE
        await database.open(patience=PATIENCE)
        return ServerState(app, database, settings)

    return state_of
