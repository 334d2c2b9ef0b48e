"""API tokens: make, list and revoke them. A token is shown once, when it is made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from tidemill.core.accounts import AccountRole
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ForbiddenError, NotFoundError
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.store.access import tokens as store
from tidemill.store.transaction import Reader, Transaction

ROLE_HELP = (
    "viewer (look), operator (act on jobs, runs and workers), editor (also workflow files) or admin (also tokens, and "
    "everything that can run a command)."
)
LINK_LASTS = 12 * 3600.0


class CreateToken(Arguments, frozen=True, kw_only=True):
    """A token to make."""

    name: Annotated[str, doc("What it is for, as the audit trail will name it.")]
    role: Annotated[AccountRole, doc(ROLE_HELP)]
    application: Annotated[str | None, doc("The only application that it is for; null for all.")] = None
    expires_in: Annotated[str | float | None, doc("How long it is valid: 90d, 12h; null for ever.")] = "90d"


class TokenRef(Arguments, frozen=True, kw_only=True):
    """Which token."""

    id: Annotated[int, doc("The token, as `tidemill token list` shows it.")]


class Token(msgspec.Struct, frozen=True):
    """A token, without its secret: `hint` is the end of it."""

    id: int
    name: Annotated[str, doc("Who or what uses it, as the audit trail names it.")]
    role: AccountRole
    application: str | None
    hint: Annotated[str, doc("The end of its secret.")]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class LoginLink(msgspec.Struct, frozen=True):
    """The token of a log-in link: it goes behind `#token=` of the server's address."""

    secret: str


class TokenCreated(msgspec.Struct, frozen=True):
    """A new token. `secret` is returned only here."""

    secret: str
    token: Token


@operation("GET /tokens", role="admin")
async def list_tokens(at: Reader, args: Nothing) -> ListOf[Token]:
    """List all tokens, also revoked and expired ones, newest first; for an admin of one application, those for it."""
    return ListOf([Token(*row) for row in await store.list_tokens(at.database, application=administered(at))])


@operation("POST /tokens", role="admin", status=201, secret=True)
async def create_token(tx: Transaction, args: CreateToken) -> TokenCreated:
    """Make an API token; it is shown this once."""
    lasts = None if args.expires_in is None else parse_duration(args.expires_in, what="expires_in")
    only = administered(tx)
    if only is not None and args.application != only:
        raise ForbiddenError(f"you are an admin of application {only} only: make the token for it (`application`)")
    secret, row = await store.create_token(tx, args.name, args.role, application=args.application, expires_in=lasts)
    return TokenCreated(secret, Token(*row))


@operation("POST /tokens/link", role="admin", status=201, secret=True)
async def create_login_link(tx: Transaction, args: Nothing) -> LoginLink:
    """Make a link that logs one browser in, once, as an admin."""
    return LoginLink(await store.create_login_link(tx, lasts=LINK_LASTS, application=administered(tx)))


@operation("DELETE /tokens/{id}", role="admin")
async def revoke_token(tx: Transaction, args: TokenRef) -> None:
    """Revoke a token for good, and log out the browsers that used it."""
    if not 0 < args.id < 2**63:
        raise NotFoundError(f"there is no token {args.id}: `tidemill token list` lists them")
    await store.revoke_token(tx, args.id, application=administered(tx))


def administered(at: Reader | Transaction) -> str | None:
    """The only application that the caller is an admin of; None for all of them."""
    return None if at.caller is None else at.caller.application
