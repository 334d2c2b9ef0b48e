"""Sessions of browsers: log in with a token or a log-in link, log out. And the health check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import JSONBody

from tidemill.core.accounts import Caller
from tidemill.core.errors import ForbiddenError
from tidemill.ops.operator.operation import doc
from tidemill.server.middleware.authentication import APPLICATIONS, CALLER, OPEN, csrf_token
from tidemill.server.middleware.middleware import cookie_name
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState, TheServerState
from tidemill.store.access.sessions import BrowserInfo, close_session, open_session
from tidemill.store.access.tokens import Holder, find_token, use_login_link
from tidemill.store.transaction import transaction
from tidemill.version import VERSION


class Session(msgspec.Struct, frozen=True):
    """The caller and its role. `csrf` goes into the header X-CSRF-Token of everything but GET."""

    authenticated: bool
    login_required: Annotated[bool, doc("Whether a caller must log in.")]
    read_only: Annotated[bool, doc("Whether the server refuses every change.")]
    application: str | None = None
    version: str | None = None
    name: str | None = None
    role: Annotated[str | None, doc("The caller's role.")] = None
    csrf: Annotated[str | None, doc("Goes into the header X-CSRF-Token of everything but GET.")] = None
    only: Annotated[str | None, doc("The only application that the role is for; null for all.")] = None
    oidc: Annotated[str | None, doc("What the identity provider is called, if users can log in there.")] = None
    applications: Annotated[
        list[str], doc("The applications that this server serves and the caller has a role in.")
    ] = []


class LogIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str

    def __repr__(self) -> str:
        return "LogIn(...)"


class Health(msgspec.Struct, frozen=True):
    """The server lives, and its database answers."""

    ok: bool


@get("/health", opt={"role": OPEN}, summary="Whether the server lives")
async def health(server_state: TheServerState) -> Health:
    """Answers while the database answers; 503 otherwise."""
    await server_state.database.fetch("SELECT 1", patience=2.0)
    return Health(True)


@get("/healthz", opt={"role": OPEN}, include_in_schema=False)
async def get_healthz(server_state: TheServerState) -> Health:
    """The health check at the root, where load balancers look for it."""
    await server_state.database.fetch("SELECT 1", patience=2.0)
    return Health(True)


@get("/session", opt={"role": OPEN}, summary="The current session")
async def get_session(server_state: TheServerState, request: Request[Any, Any, Any]) -> Session:
    """What a page needs to know before anything else."""
    return _session(server_state, request.scope.get(CALLER), request.scope.get(APPLICATIONS, ()))


@post("/session", opt={"role": OPEN}, status_code=201, summary="Log in")
async def log_in(
    server_state: TheServerState, request: Request[Any, Any, Any], data: JSONBody[LogIn]
) -> Response[Session]:
    """Log a browser in with a token, or with that of a log-in link, once: the answer sets a cookie."""
    client = client_of(request)
    server_state.authenticator.tries.check(client)
    database, lasts = server_state.database, server_state.settings.session_hours * 3600
    holder = await find_token(database, data.token) or await use_login_link(database, data.token, lasts=lasts)
    if holder is None:
        server_state.authenticator.tries.failed(client)
        raise Refused(
            401,
            "this token is not known, has expired or was revoked; a log-in link works once: "
            "`tidemill token link` makes another",
        )
    here = await server_state.of_account(holder.grants)
    caller, cookie = await open_browser_session(here, request, holder)
    many = () if here.applications is None else here.applications.of(holder.grants)
    return Response(_session(here, caller, many), cookies=[cookie])


async def open_browser_session(
    server_state: ServerState, request: Request[Any, Any, Any], holder: Holder
) -> tuple[Caller, Cookie]:
    """Open a session for an account: the caller that it is here, and the cookie. Raises if it has no role here."""
    settings = server_state.settings
    lasts = settings.session_hours * 3600
    if server_state.authenticator.caller_of(holder) is None:
        raise ForbiddenError(f"this account has no role in application {server_state.app.name}")
    browser = BrowserInfo(client_of(request), request.headers.get("user-agent"))
    async with transaction(server_state.database, by=holder.name) as tx:
        opened = await open_session(tx, holder, browser, lasts=lasts)
    account = msgspec.structs.replace(holder, session_id=opened.id)
    caller = server_state.authenticator.caller_of(account, session=opened.secret)
    assert caller is not None  # noqa: S101 - it had a role above
    await server_state.note(caller, "session.open", caller.name, after={"from": browser.address})
    cookie = Cookie(
        key=cookie_name(settings),
        value=opened.secret,
        max_age=int(lasts),
        path="/",
        httponly=True,
        secure=settings.is_tls,
        samesite="strict",
    )
    return caller, cookie


def client_of(request: Request[Any, Any, Any]) -> str:
    """The address of the client, as log-in limits count it."""
    return request.client.host if request.client else "?"


@delete("/session", opt={"role": OPEN}, status_code=200, summary="Log out")
async def log_out(server_state: TheServerState, request: Request[Any, Any, Any]) -> Response[Session]:
    """Log this browser out."""
    caller: Caller | None = request.scope.get(CALLER)
    if caller is not None and caller.session is not None:
        async with transaction(server_state.database, by=caller.name) as tx:
            await close_session(tx, caller.session)
        server_state.authenticator.forget()
        await server_state.note(caller, "session.close", caller.name)
    response = Response(_session(server_state, None))
    response.delete_cookie(cookie_name(server_state.settings), path="/")
    return response


routes = [health, get_session, log_in, log_out]


def _session(server_state: ServerState, caller: Caller | None, many: Sequence[str] = ()) -> Session:
    settings = server_state.settings
    label = None if settings.oidc is None else settings.oidc.label
    if caller is None:
        return Session(False, settings.asks_login, settings.read_only, oidc=label)
    return Session(
        authenticated=True,
        login_required=settings.asks_login,
        read_only=settings.read_only,
        application=server_state.app.name,
        version=VERSION,
        name=caller.name,
        role=caller.role,
        csrf=None if caller.session is None else csrf_token(caller.session),
        only=caller.application,
        oidc=label,
        applications=list(many) or [server_state.app.name],
    )
