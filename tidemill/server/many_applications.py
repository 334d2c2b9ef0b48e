"""All applications of a database behind one address: every request goes to the site of one of them.

A request names its application in the header `Tidemill-Application`, a webhook in the query (`?application=shop`), a
browser in a cookie that the console sets. Without a name it goes to the first one in which its account has a role. What
an account has no role in does not exist for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from tidemill.core.accounts import EVERY_APPLICATION, Grants, role_in
from tidemill.core.errors import NotFoundError
from tidemill.server.app import build
from tidemill.server.middleware.authentication import APPLICATIONS
from tidemill.server.middleware.middleware import (
    WEBHOOKS,
    Middleware,
    bearer_token,
    cookie_name,
    header_text,
    read_cookie,
)
from tidemill.server.problems import Refused, problem_of
from tidemill.server.server_state import ServerState

HEADER = b"tidemill-application"
COOKIE = "tidemill-application"
_EVERYWHERE: Grants = {EVERY_APPLICATION: "admin"}


class ManyApplications:
    """The sites of all applications; those of others than the first are made when they are first asked for."""

    def __init__(self, first: ServerState, make: Callable[[str], Awaitable[ServerState]]) -> None:
        self._first, self._make = first, make
        self._sites: dict[str, tuple[ServerState, Middleware]] = {first.app.name: (first, build(first))}
        self._making = asyncio.Lock()
        self._background: asyncio.TaskGroup | None = None
        first.applications = self

    @property
    def names(self) -> list[str]:
        """The applications that the database has, as of the last look."""
        return list(self._first.database.applications or {self._first.app.name: ""})

    async def run(self) -> None:
        """Follow the changes of the sites that are made later; runs until cancelled."""
        async with asyncio.TaskGroup() as self._background:
            while True:
                await asyncio.sleep(LOOK_EVERY)
                await self._first.database.locate(patience=None)

    def close(self) -> None:
        """End the streams to browsers."""
        for state, _ in self._sites.values():
            state.hub.close()

    async def close_databases(self) -> None:
        for state, _ in self._sites.values():
            if state is not self._first:
                await state.database.close()

    def of(self, grants: Grants) -> list[str]:
        """The applications in which an account has a role."""
        return [name for name in self.names if role_in(grants, name) is not None]

    async def state_of(self, name: str) -> ServerState:
        """The state of an application's site."""
        return (await self._site(name))[0]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            site = await self._choose(scope) if scope["type"] == "http" else self._sites[self._first.app.name][1]
        except Exception as error:  # noqa: BLE001 - every error is an answer
            answer, more = problem_of(error)
            body = msgspec.json.encode(answer)
            headers = [(b"content-type", b"application/problem+json"), *_encoded(more)]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await site(scope, receive, send)

    async def _choose(self, scope: Any) -> Middleware:
        headers = dict(scope["headers"])
        named = header_text(headers, HEADER)
        if scope["path"].startswith(WEBHOOKS) and named is None:
            named = parse_qs(scope["query_string"].decode("latin-1")).get("application", [None])[0]
            if named in self.names:
                return (await self._site(named))[1]
            if named is not None:  # The webhook must not run a workflow of another application.
                raise NotFoundError(f"there is no application {named[:100]!r} whose webhooks could be called")
        grants = await self._grants(headers)
        allowed = [] if grants is None else self.of(grants)
        scope[APPLICATIONS] = allowed
        if named is not None:
            if named not in allowed and grants is not None:
                raise Refused(403, f"this account has no role in an application {named[:100]!r} here")
        else:
            named = read_cookie(headers, COOKIE)
        if named not in allowed:
            named = allowed[0] if allowed else self._first.app.name
        return (await self._site(named))[1]

    async def _grants(self, headers: dict[bytes, bytes]) -> Grants | None:
        """The roles of the account of a request; None if it has none."""
        cookie = read_cookie(headers, cookie_name(self._first.settings))
        bearer = bearer_token(header_text(headers, b"authorization"))
        holder = await self._first.authenticator.find_holder(bearer, cookie)
        if holder is not None:
            return holder.grants
        return _EVERYWHERE if bearer is None and self._first.settings.trust_local else None

    async def _site(self, name: str) -> tuple[ServerState, Middleware]:
        async with self._making:
            if name not in self._sites:
                state = await self._make(name)
                state.applications = self
                self._sites[name] = state, build(state)
                if self._background is not None:
                    self._background.create_task(state.hub.run(), name=f"tidemill-changes-{name}")
                    self._background.create_task(state.authenticator.record_uses(), name=f"tidemill-uses-{name}")
        return self._sites[name]


#: How often a new application is looked for, in seconds.
LOOK_EVERY = 5.0


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
