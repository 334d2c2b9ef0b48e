"""The caller and their scope: by a token in a header, by a browser's cookie, or as a local user."""

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

#: For routes without authentication: the health check, and logging in.
OPEN = "open"

CALLER = "tidemill.caller"
_KNOWN_FOR = 5.0
_MOST_KNOWN = 10_000


class Authenticator:
    """Recognises callers. What was recognised a moment ago is not looked up again."""

    def __init__(self, database: Database, settings: ServerSettings) -> None:
        self.settings = settings
        self.tries = LoginAttempts(most=10, within=300.0)
        self._database = database
        self._known: OrderedDict[bytes, tuple[float, Holder | None]] = OrderedDict()

    async def find(self, bearer: str | None, cookie: str | None) -> Caller | None:
        """The caller; None if the request has no valid credentials."""
        if bearer is not None:
            holder = await self._recall(bearer, find_token)
            return None if holder is None else _caller(holder)
        if cookie is not None:
            holder = await self._recall(cookie, find_session)
            if holder is not None:
                return _caller(holder, session=cookie)
        return None if self.settings.asks_login else Caller("local", "admin")

    def forget(self) -> None:
        """A token was revoked here: forget all cached callers."""
        self._known.clear()

    async def _recall(self, secret: str, find: Any) -> Holder | None:
        told = f"{find.__name__} {secret}"  # A cookie's word is not a token.
        place, now = hashlib.sha256(told.encode("utf-8", "surrogatepass")).digest(), time.monotonic()
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
    """Limits how many log-ins may fail within a time."""

    def __init__(self, *, most: int, within: float) -> None:
        self._most = most
        self._within = within
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def check(self, who: str) -> None:
        """Raise if a client has failed too often."""
        recent = self._recent(who)
        if len(recent) >= self._most:
            wait = max(1, round(recent[0] + self._within - time.monotonic()))
            raise Refused(429, f"too many failed log-ins: try again in {wait} s", Retry_After=str(wait))

    def failed(self, who: str) -> None:
        """Count a failure."""
        self._failed[who] = [*self._recent(who), time.monotonic()]
        self._failed.move_to_end(who)
        while len(self._failed) > _MOST_KNOWN:
            self._failed.popitem(last=False)

    def _recent(self, who: str) -> list[float]:
        since = time.monotonic() - self._within
        return [at for at in self._failed.get(who, ()) if at > since]


def csrf_token(session: str) -> str:
    """What a page must send along with a change: only one that could read our answer knows it."""
    return hmac.new(session.encode(), b"tidemill csrf", hashlib.sha256).hexdigest()


class ScopeCheck:
    """Stands before every route, whose `scope` says who may ask. One that says nothing is for admins.

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
    """The caller, if their scope allows this; else raise."""
    if caller is None:
        raise Refused(
            401,
            "say who you are: send `Authorization: Bearer tm_...`, or log in; "
            "`tidemill token create NAME --scope read` makes a token",
            WWW_Authenticate="Bearer",
        )
    if not caller.may(needed):
        raise ForbiddenError(f"this needs a token with scope {needed}, and yours has {caller.scope}")
    if needed != "read" and read_only:
        raise ForbiddenError("this server is read-only: it was started with --read-only")
    return caller


def _caller(holder: Holder, session: str | None = None) -> Caller:
    return Caller(f"{holder.name} (token {holder.token_id})", holder.scope, holder.token_id, session)
