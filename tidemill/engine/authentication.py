"""Finds the caller that a token, a session cookie or our own socket stands for, and records when each was last used."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from tidemill.core.accounts import Caller, role_in
from tidemill.core.errors import ForbiddenError, TooManyAttemptsError
from tidemill.store.access.sessions import find_live_sessions, find_session, record_session_use
from tidemill.store.access.tokens import Holder, find_token, find_valid_tokens, record_token_use
from tidemill.store.database import Database
from tidemill.store.database_errors import is_transient

_KNOWN_FOR = 5.0
_MOST_KNOWN = 10_000

#: Uses are written together, at most this often in seconds.
USE_RECORDED_EVERY = 60.0


class Authenticator:
    """Finds callers of one application. A token or cookie that was found a moment ago is not read again."""

    def __init__(self, database: Database, application: str, *, trust_local: bool, provider: str | None = None) -> None:
        self.tries = LoginAttempts(most=10, within=300.0)
        self.wrong_tokens = LoginAttempts(most=30, within=60.0)
        self.provider = provider
        """The version of the OIDC settings; sessions of another version have to log in again."""
        self._database = database
        self._application = application
        self._trust_local = trust_local
        self._known: OrderedDict[bytes, tuple[float, Holder | None]] = OrderedDict()
        self._used_tokens: set[int] = set()
        self._used_sessions: set[int] = set()
        self._used = asyncio.Event()

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
            caller = self.caller_of(holder)
            if caller is None:
                only = ", ".join(holder.grants)
                raise ForbiddenError(f"this token is for application {only}, and here is {self._application}")
            return caller
        if cookie is not None and (caller := await self.find_session(cookie)) is not None:
            return caller
        if socket_user is not None:
            return Caller(socket_user, "admin")
        return Caller("local", "admin") if self._trust_local else None

    async def find_holder(self, bearer: str | None, cookie: str | None) -> Holder | None:
        """The account of a token or a session, with any role or none."""
        if bearer is not None:
            return await self._recall(bearer, find_token)
        return None if cookie is None else await self._recall(cookie, find_session)

    async def find_session(self, cookie: str) -> Caller | None:
        """The caller of a browser's session; None if it has ended or gives no role here."""
        holder = await self._recall(cookie, find_session)
        return None if holder is None else self.caller_of(holder, session=cookie)

    def caller_of(self, holder: Holder, *, session: str | None = None) -> Caller | None:
        """The caller that an account is in this application; None if it has no role here."""
        if holder.provider is not None and holder.provider != self.provider:
            return None
        found = role_in(holder.grants, self._application)
        if found is None:
            return None
        self._note_use(holder)
        name = oidc_name(holder) if holder.token_id is None else f"{holder.name} (token {holder.token_id})"
        return Caller(name, *found, holder.token_id, session, holder.session_id, holder.subject)

    async def find_ended(self, callers: Collection[Caller]) -> set[Caller]:
        """Those of these callers whose token was revoked, whose session has ended, or who have another role now."""
        of_sessions = {each.session_id for each in callers if each.session_id is not None}
        of_tokens = {each.token_id for each in callers if each.session_id is None and each.token_id is not None}
        sessions = await find_live_sessions(self._database, of_sessions) if of_sessions else {}
        tokens = await find_valid_tokens(self._database, of_tokens) if of_tokens else {}
        ended: set[Caller] = set()
        for caller in callers:
            if caller.session_id is None and caller.token_id is None:
                continue  # The socket or the machine identifies this caller.
            by_id = tokens if caller.session_id is None else sessions
            holder = by_id.get(caller.token_id if caller.session_id is None else caller.session_id)  # pyright: ignore[reportArgumentType]
            now = None if holder is None else self.caller_of(holder)
            if now is None or now.role != caller.role:
                ended.add(caller)
        return ended

    def forget(self) -> None:
        """Forget all callers, because a token was revoked or a session ended."""
        self._known.clear()

    async def record_uses(self) -> None:
        """Record which tokens and sessions are used, together and at most once a minute; runs until cancelled."""
        try:
            while True:
                await self._used.wait()
                await self._write_uses()
                await asyncio.sleep(USE_RECORDED_EVERY)
        finally:
            await self._write_uses()

    def _note_use(self, holder: Holder) -> None:
        if holder.session_id is not None:
            self._used_sessions.add(holder.session_id)
        if holder.token_id is not None:
            self._used_tokens.add(holder.token_id)
        self._used.set()

    async def _write_uses(self) -> None:
        self._used.clear()
        tokens, self._used_tokens = self._used_tokens, set()
        sessions, self._used_sessions = self._used_sessions, set()
        try:
            if tokens:
                await record_token_use(self._database, tokens)
            if sessions:
                await record_session_use(self._database, sessions)
        except Exception as error:
            if not is_transient(error):
                raise
            self._used_tokens |= tokens
            self._used_sessions |= sessions
            self._used.set()

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
            raise TooManyAttemptsError(f"too many wrong tokens: try again in {wait} s", retry_after=wait)

    def failed(self, client: str) -> None:
        """Count a failed log-in."""
        self._failed[client] = [*self._recent(client), time.monotonic()]
        self._failed.move_to_end(client)
        while len(self._failed) > _MOST_KNOWN:
            self._failed.popitem(last=False)

    def _recent(self, client: str) -> list[float]:
        since = time.monotonic() - self._within
        return [at for at in self._failed.get(client, ()) if at > since]


def oidc_name(holder: Holder) -> str:
    """The name of a user in the audit trail; the subject tells users of the same name apart."""
    return f"{holder.name} (oidc {(holder.subject or '').partition(' ')[2][:100]})"


def bearer_token(authorization: str | None) -> str | None:
    """The token of an `Authorization` header; empty if it holds something else, None if there is no header."""
    if authorization is None:
        return None
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def find_grpc_caller(authenticator: Authenticator, context: Any) -> Caller | None:
    """The caller of a call; None if it names none."""
    metadata = dict(context.invocation_metadata() or ())
    bearer = bearer_token(str(metadata["authorization"]) if "authorization" in metadata else None)
    return await authenticator.find(bearer, None, client=_client_of(context.peer()))


def _client_of(peer: str) -> str:
    """The client's address without its port: `ipv4:127.0.0.1:4711` is 127.0.0.1."""
    return peer.partition(":")[2].rpartition(":")[0] or peer
