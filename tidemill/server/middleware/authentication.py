"""Which role a route needs, and how a browser proves that a change comes from a page of ours."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Literal

from tidemill.core.accounts import AccountRole, Caller, check_role
from tidemill.core.errors import ForbiddenError
from tidemill.server.middleware.encoded_slashes import restore_slashes
from tidemill.server.problems import Refused

#: For routes without authentication: the health check and the log-in.
OPEN: Literal["open"] = "open"

CALLER = "tidemill.caller"

#: In a request to a server of many applications: those in which its account has a role.
APPLICATIONS = "tidemill.applications"


def csrf_token(session: str) -> str:
    """The value that a page must send with each change: only a page that can read our answers knows it."""
    return hmac.new(session.encode(), b"tidemill csrf", hashlib.sha256).hexdigest()


class RoleCheck:
    """Checks the `role` that a route declares; a route without one needs admin.

    Not a guard, for which the whole handler would be copied with each request.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        needed = scope["route_handler"].opt.get("role", "admin")
        if needed != OPEN:
            require_role(scope.get(CALLER), needed, read_only=scope["litestar_app"].state.read_only)
        restore_slashes(scope)
        await self._app(scope, receive, send)


def require_role(caller: Caller | None, needed: AccountRole, *, read_only: bool) -> Caller:
    """The caller, if it has this role."""
    if caller is None:
        raise Refused(
            401,
            "this needs a token: send `Authorization: Bearer tm_...`, or log in; "
            "`tidemill token create NAME --role viewer` makes a token, `tidemill token link` a link for a browser",
            WWW_Authenticate="Bearer",
        )
    check_role(caller, needed)
    if needed != "viewer" and read_only:
        raise ForbiddenError("this server is read-only: it was started with --read-only")
    return caller
