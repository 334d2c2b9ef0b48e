"""Authentication and scopes: a token in a header, a session cookie, or the socket of the user that runs the server."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from typing import Any

from tidemill.core.errors import ForbiddenError
from tidemill.ops.operator.local import Caller
from tidemill.server.problems import Refused
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database
from tidemill.store.tokens import Holder, find_session, find_token

#: For routes without authentication: the health check and the log-in.
OPEN = "open"

CALLER = "tidemill.caller"
_KNOWN_FOR = 5.0
_MOST_KNOWN = 10_000


class Authenticator:
    """Finds the caller of a request. A token or cookie that was found a moment ago is not read again."""

    def __init__(self, database: Database, settings: ServerSettings) -> None:
        self.settings = settings
        self.tries = LoginAttempts(most=10, within=300.0)
        self.wrong_tokens = LoginAttempts(most=30, within=60.0)
        self._database = database
        self._known: OrderedDict[bytes, tuple[float, Holder | None]] = OrderedDict()

    async def find(
        self, bearer: str | None, cookie: str | None, *, client: str, socket_user: str | None = None
    ) -> Caller | None:
        """The caller; None if the request names none. `socket_user` is the user on the other end of our own socket."""
        if bearer is not None:
            holder = await self._recall(bearer, find_token)
            if holder is None:  # Only wrong tokens count, so that no client can lock out the holder of a good one.
                self.wrong_tokens.check(client)
                self.wrong_tokens.failed(client)
                return None
            return _caller(holder)
        if cookie is not None:
            holder = await self._recall(cookie, find_session)
            if holder is not None:
                return _caller(holder, session=cookie)
        if socket_user is not None:
            return Caller(socket_user, "admin")
        return None if self.settings.asks_login else Caller("local", "admin")

    def forget(self) -> None:
        """Forget all callers, because a token was revoked or a session closed."""
        self._known.clear()

    async def _recall(self, secret: str, find: Any) -> Holder | None:
        kind = f"{find.__name__} {secret}"  # A cookie's value is not a token.
        place, now = hashlib.sha256(kind.encode("utf-8", "surrogatepass")).digest(), time.monotonic()
        known = self._known.get(place)
        if known is not None and known[0] > now:
            return known[1]
        holder = await find(self._database, secret)
        self._known[place] = (now + _KNOWN_FOR, holder)
        self._known.move_to_end(place)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return holder


class LoginAttempts:
    """Limits failed log-ins per client within a time."""

    def __init__(self, *, most: int, within: float) -> None:
        self._most = most
        self._within = within
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, client: str) -> None:
        """Refuse a client with too many failed log-ins."""
        recent = self._recent(client)
        if len(recent) >= self._most:
            wait = max(1, round(recent[0] + self._within - time.monotonic()))
            raise Refused(429, f"too many wrong tokens: try again in {wait} s", Retry_After=str(wait))

    def failed(self, client: str) -> None:
        """Count a failed log-in."""
        self._failed[client] = [*self._recent(client), time.monotonic()]
        self._failed.move_to_end(client)
        while len(self._failed) > _MOST_KNOWN:
            self._failed.popitem(last=False)

    def _recent(self, client: str) -> list[float]:
        since = time.monotonic() - self._within
        return [at for at in self._failed.get(client, ()) if at > since]


def csrf_token(session: str) -> str:
    """The value that a page must send with each change: only a page that can read our answers knows it."""
    return hmac.new(session.encode(), b"tidemill csrf", hashlib.sha256).hexdigest()


class ScopeCheck:
    """Checks the `scope` that a route declares; a route without one needs admin.

    Not a guard, for which the whole handler would be copied with each request.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        needed = scope["route_handler"].opt.get("scope", "admin")
        if needed != OPEN:
            require_scope(scope.get(CALLER), needed, read_only=scope["litestar_app"].state.read_only)
        await self._app(scope, receive, send)


def require_scope(caller: Caller | None, needed: str, *, read_only: bool) -> Caller:
    """The caller, if it has this scope."""
    if caller is None:
        raise Refused(
            401,
            "this needs a token: send `Authorization: Bearer tm_...`, or log in; "
            "`tidemill token create NAME --scope read` makes a token, `tidemill token link` a link for a browser",
            WWW_Authenticate="Bearer",
        )
    if not caller.may(needed):
        raise ForbiddenError(f"this needs a token with scope {needed}, and yours has {caller.scope}")
    if needed != "read" and read_only:
        raise ForbiddenError("this server is read-only: it was started with --read-only")
    return caller


def _caller(holder: Holder, session: str | None = None) -> Caller:
    return Caller(f"{holder.name} (token {holder.token_id})", holder.scope, holder.token_id, session)
