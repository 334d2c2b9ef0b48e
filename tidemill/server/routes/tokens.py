"""API tokens: made, listed, revoked. A token is shown once, when it is made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.params import FromPath, JSONBody

from tidemill.core.duration import parse_duration
from tidemill.core.errors import NotFoundError
from tidemill.server.server_state import TheDesk, caller_of
from tidemill.store.tokens import Scope, create_token, list_tokens, revoke_token


class Token(msgspec.Struct, frozen=True):
    """A token, without the token: `hint` are its last characters."""

    id: int
    name: str
    scope: Scope
    hint: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class Tokens(msgspec.Struct, frozen=True):
    items: list[Token]


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """read: look at everything. operate: act on jobs, runs and workers. admin: tokens as well."""

    name: str
    scope: Scope
    expires_in: str | float | None = "90d"


class Made(msgspec.Struct, frozen=True):
    """A new token. This is the only time that `secret` is told."""

    secret: str
    token: Token


@get("/tokens", opt={"scope": "admin"}, summary="List tokens")
async def get_tokens(desk: TheDesk) -> Tokens:
    """All tokens, revoked and expired ones too."""
    return Tokens([Token(*row) for row in await list_tokens(desk.database)])


@post("/tokens", opt={"scope": "admin"}, status_code=201, summary="Make a token")
async def make(desk: TheDesk, request: Request[Any, Any, Any], data: JSONBody[NewToken]) -> Made:
    """Make a token; it is shown here and never again."""
    lasts = None if data.expires_in is None else parse_duration(data.expires_in, what="expires_in")
    secret, row = await create_token(desk.database, data.name, data.scope, by=caller_of(request).name, expires_in=lasts)
    return Made(secret, Token(*row))


@delete("/tokens/{token_id:int}", opt={"scope": "admin"}, status_code=204, summary="Revoke a token")
async def revoke(desk: TheDesk, request: Request[Any, Any, Any], token_id: FromPath[int]) -> None:
    """Take a token back, and log out the browsers that used it."""
    if not 0 < token_id < 2**63:
        raise NotFoundError(f"there is no token {token_id}")
    await revoke_token(desk.database, token_id, by=caller_of(request).name)
    desk.doorman.forget()


routes = [get_tokens, make, revoke]
