"""Log-in at an identity provider: a browser is sent there, and comes back with a code."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

import structlog
from litestar import Request, Response, get
from litestar.datastructures import Cookie
from litestar.params import QueryParameter

from tidemill.core.accounts import Caller, role_in
from tidemill.core.errors import NotFoundError
from tidemill.engine.authentication import oidc_name
from tidemill.server.middleware.authentication import OPEN
from tidemill.server.oidc import LoginRequest, OidcClient, OidcError
from tidemill.server.routes.session import client_of, open_browser_session
from tidemill.server.server_state import ServerState, TheServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.access.sessions import end_sessions_of
from tidemill.store.transaction import transaction

log = structlog.get_logger("tidemill.server")

CALLBACK = "/login/oidc/callback"
LOGIN_WITHIN = 600

Text = Annotated[str | None, QueryParameter(max_length=4096)]


@get("/login/oidc", opt={"role": OPEN}, include_in_schema=False)
async def begin_login(
    server_state: TheServerState, request: Request[Any, Any, Any], next: Text = None
) -> Response[None]:
    """Send a browser to the identity provider. `next` is the page to come back to."""
    provider = _provider(server_state)
    begun = LoginRequest.begin(next or "/")
    try:
        address = await provider.authorization_url(begun, _redirect_uri(server_state.settings, request))
    except OidcError as error:
        log.warning("a log-in could not begin", error=str(error))
        return _back("failed")
    cookie = Cookie(
        key=login_cookie_name(server_state.settings),
        value=begun.to_cookie(),
        max_age=LOGIN_WITHIN,
        path="/",
        httponly=True,
        secure=server_state.settings.is_tls,
        samesite="lax",  # The browser comes back from another site.
    )
    return Response(None, status_code=303, headers={"location": address}, cookies=[cookie])


@get(CALLBACK, opt={"role": OPEN}, include_in_schema=False)
async def finish_login(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    code: Text = None,
    returned: Annotated[str | None, QueryParameter(name="state", max_length=4096)] = None,
    iss: Text = None,
    error: Text = None,
) -> Response[None]:
    """Open a session for a browser that comes back from the identity provider."""
    provider, settings = _provider(server_state), server_state.settings
    begun = LoginRequest.from_cookie(request.cookies.get(login_cookie_name(settings), ""))
    if begun is None or returned is None or not hmac.compare_digest(returned.encode(), begun.state.encode()):
        return _back("expired")
    if error is not None or code is None:
        log.info("a log-in was refused by the identity provider", error=(error or "no code")[:200])
        return _forgotten(_back("denied"), settings)
    client = client_of(request)
    server_state.authenticator.tries.check(client)
    try:
        holder = await provider.log_in(begun, code, _redirect_uri(settings, request), iss)
    except OidcError as failed:
        server_state.authenticator.tries.failed(client)
        log.warning("a log-in failed", error=str(failed))
        return _forgotten(_back("failed"), settings)
    server_state = await server_state.of_account(holder.grants)
    if role_in(holder.grants, server_state.app.name) is None:
        name = oidc_name(holder)
        if not holder.grants:  # The user may have had roles before.
            async with transaction(server_state.database, by=name) as tx:
                ended = await end_sessions_of(tx, holder.subject or "")
            server_state.authenticator.forget()
            await server_state.note(Caller(name, "viewer"), "session.refuse", name, after={"ended": ended})
        return _forgotten(_back("no_role"), settings)
    server_state.authenticator.forget()  # Older sessions of the user have the new roles now.
    _, cookie = await open_browser_session(server_state, request, holder)
    back = Response(None, status_code=303, headers={"location": begun.next}, cookies=[cookie])
    return _forgotten(back, settings)


routes = [begin_login, finish_login]


def login_cookie_name(settings: ServerSettings) -> str:
    """The cookie of a log-in under way; over TLS one that browsers guard."""
    return "__Host-tidemill-login" if settings.is_tls else "tidemill-login"


def _provider(server_state: ServerState) -> OidcClient:
    if server_state.oidc is None:
        raise NotFoundError("this server has no log-in by OIDC: it was started without --oidc-issuer")
    return server_state.oidc


def _redirect_uri(settings: ServerSettings, request: Request[Any, Any, Any]) -> str:
    """The address to come back to, under the name by which the browser knows this server; the name was checked."""
    return f"{'https' if settings.is_tls else 'http'}://{request.headers.get('host', '')}{CALLBACK}"


def _back(reason: str) -> Response[None]:
    """Back to the log-in page, which explains the reason."""
    return Response(None, status_code=303, headers={"location": f"/?login={reason}"})


def _forgotten(response: Response[None], settings: ServerSettings) -> Response[None]:
    """A response that removes the cookie of the log-in: it is used once."""
    response.delete_cookie(login_cookie_name(settings), path="/")
    return response
