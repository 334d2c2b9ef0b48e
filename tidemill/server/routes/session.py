"""Sessions of browsers: log in with a token or a log-in link, log out. And the health check."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody

from tidemill.server.middleware.authentication import CALLER, OPEN, Caller, csrf_token
from tidemill.server.middleware.middleware import cookie_name
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState, TheServerState
from tidemill.store.tokens import close_session, find_token, open_session, use_login_link
from tidemill.version import VERSION


class Session(msgspec.Struct, frozen=True):
    """The caller and its scope. `csrf` goes into the header X-CSRF-Token of everything but GET."""

    authenticated: bool
    login_required: bool
    read_only: bool
    application: str | None = None
    version: str | None = None
    name: str | None = None
    scope: str | None = None
    csrf: str | None = None


class LogIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str

    def __repr__(self) -> str:
        return "LogIn(...)"


class Health(msgspec.Struct, frozen=True):
    """The server lives, and its database answers."""

    ok: bool


@get("/health", opt={"scope": OPEN}, summary="Whether the server lives")
async def health(server_state: TheServerState) -> Health:
    """Answers while the database answers; 503 otherwise."""
    await server_state.database.fetch("SELECT 1", patience=2.0)
    return Health(True)


@get("/session", opt={"scope": OPEN}, summary="The current session")
async def get_session(server_state: TheServerState, request: Request[Any, Any, Any]) -> Session:
    """What a page needs to know before anything else."""
    return _session(server_state, request.scope.get(CALLER))


@post("/session", opt={"scope": OPEN}, status_code=201, summary="Log in")
async def log_in(
    server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[LogIn]
) -> Response[Session]:
    """Log a browser in with a token, or with that of a log-in link, once: the answer sets a cookie."""
    client = request.client.host if request.client else "?"
    server_state.authenticator.tries.check(client)
    settings, database = server_state.settings, server_state.database
    lasts = settings.session_hours * 3600
    holder = await find_token(database, data.token) or await use_login_link(database, data.token, lasts=lasts)
    if holder is None:
        server_state.authenticator.tries.failed(client)
        raise Refused(
            401,
            "this token is not known, has expired or was revoked; a log-in link works once: "
            "`tidemill token link` makes another",
        )
    secret, _ = await open_session(server_state.database, holder.token_id, lasts=lasts)
    caller = Caller(f"{holder.name} (token {holder.token_id})", holder.scope, holder.token_id, secret)
    await server_state.note(caller, "session.open", caller.name, after={"from": client})
    cookie = Cookie(
        key=cookie_name(settings),
        value=secret,
        max_age=int(lasts),
        path="/",
        httponly=True,
        secure=settings.is_tls,
        samesite="strict",
    )
    return Response(_session(server_state, caller), cookies=[cookie])


@delete("/session", opt={"scope": OPEN}, status_code=200, summary="Log out")
async def log_out(server_state: TheServerState, request: Request[Any, Any, Any]) -> Response[Session]:
    """Log this browser out."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None and caller.session is not None:
        await close_session(server_state.database, caller.session)
        server_state.authenticator.forget()
        await server_state.note(caller, "session.close", caller.name)
    response = Response(_session(server_state, None))
    response.delete_cookie(cookie_name(server_state.settings), path="/")
    return response


routes = [health, get_session, log_in, log_out]


def _session(server_state: ServerState, caller: Caller | None) -> Session:
    settings = server_state.settings
    if caller is None:
        return Session(False, settings.asks_login, settings.read_only)
    return Session(
        authenticated=True,
        login_required=settings.asks_login,
        read_only=settings.read_only,
        application=server_state.app.name,
        version=VERSION,
        name=caller.name,
        scope=caller.scope,
        csrf=None if caller.session is None else csrf_token(caller.session),
    )
